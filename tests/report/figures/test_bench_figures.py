import numpy as np

from sgpmil.report.figures.bench_figures import GrowthCurve, growth_figure


def test_a_panel_a_quantity_and_size_with_what_would_be_linear():
    curves = [
        GrowthCurve("instances", "predict", [10, 100], [0.1, 1.0], [float("nan")] * 2),
        GrowthCurve("instances", "train", [10, 100], [0.3, 4.0], [0.1, 0.2]),
        GrowthCurve("bags", "predict", [2, 4], [0.1, 0.2], [0.1, 0.1]),
    ]
    figure = growth_figure(curves, "here")
    time, _, memory, _ = figure.axes
    measured, linear = time.lines[2:]
    np.testing.assert_allclose(measured.get_ydata(), [0.3, 4.0])
    np.testing.assert_allclose(linear.get_ydata(), [0.4, 4.0])
    assert len(memory.lines) == 2  # of the curve whose memory is known
    assert time.get_xscale() == time.get_yscale() == "log"


def test_every_curve_is_in_the_legend_whichever_panel_has_it():
    curves = [
        GrowthCurve("instances", "predict", [10, 100], [0.1, 1.0], [0.1, 0.2]),
        GrowthCurve("bags", "predict", [2, 4], [0.1, 0.2], [0.1, 0.1]),
        GrowthCurve("bags", "train", [2, 4], [0.1, 0.2], [0.1, 0.1]),
    ]
    (legend,) = growth_figure(curves, "here").legends
    named = {
        text.get_text(): line.get_color()
        for text, line in zip(legend.get_texts(), legend.get_lines(), strict=True)
    }
    assert [*named] == ["forward and backward", "prediction"]
    assert len(set(named.values())) == 2
