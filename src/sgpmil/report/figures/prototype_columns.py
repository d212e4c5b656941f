"""Columns of numbers beside the prototypes of a sheet."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from sgpmil.explanation.prototypes import NEUTRAL, PrototypeExplanation, PrototypeSummary
from sgpmil.report.figures.canvas import COLOURS, GREY, SMALL_SIZE, plain_words

_NUCLEUS_COLOURS = {
    "Neoplastic": COLOURS[1],
    "Inflammatory": COLOURS[0],
    "Connective": COLOURS[2],
    "Dead": COLOURS[6],
    "Epithelial": COLOURS[4],
    "Unlabelled": NEUTRAL,
}
_OTHER_NUCLEI = (COLOURS[3], COLOURS[5], COLOURS[7])


def number_columns(
    explanation: PrototypeExplanation, shown: Sequence[PrototypeSummary], fewest_labelled: int
) -> list[Callable[[Axes], None]]:
    """Choose the columns: those for which anything is known.

    Args:
        explanation: The prototypes.
        shown: Those of the rows, from the top.
        fewest_labelled: Fewest labelled patches for which a share of positive ones is drawn.

    Returns:
        What draws each column on axes whose rows are at 0, 1, 2 and so on.
    """
    panels: list[Callable[[Axes], None]] = []
    if any(p.num_labelled for p in explanation.prototypes):
        panels.append(lambda axes: _draw_positive(axes, explanation, shown, fewest_labelled))
    if any(np.isfinite(p.relative_attention) for p in shown):
        panels.append(lambda axes: _draw_attention(axes, shown))
        panels.append(lambda axes: _draw_parts(axes, shown, explanation.attention_gap))
    panels.append(lambda axes: _draw_logits(axes, shown, explanation.mean_logit))
    if all(p.single for p in shown):
        panels.append(lambda axes: _draw_single(axes, shown, explanation.class_names))
    if explanation.nucleus_types:
        panels.append(lambda axes: _draw_nuclei(axes, shown, explanation.nucleus_types))
    return panels


def _draw_positive(
    axes: Axes, explanation: PrototypeExplanation, shown: Sequence[PrototypeSummary], fewest: int
) -> None:
    for row, prototype in enumerate(shown):
        share = prototype.positive_share(fewest)
        axes.barh(row, 1, height=0.34, color="#eeeeee")
        if np.isnan(share):
            text = f"only {prototype.num_labelled} labelled"
        else:
            axes.barh(row, share, height=0.34, color=COLOURS[1])
            text = f"{100 * share:.0f} % of {prototype.num_labelled:,}"
        axes.text(0, row - 0.24, text, fontsize=SMALL_SIZE - 1.5, va="bottom")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    entitle(axes, f"Patches of {explanation.positive_name},\nas annotated")


def _draw_attention(axes: Axes, shown: Sequence[PrototypeSummary]) -> None:
    values = np.array([p.relative_attention for p in shown])
    axes.axvline(1, color=GREY, lw=0.8, ls=":")
    for row, value in enumerate(values):
        if value > 0:  # neither 0 nor unknown, which a log scale cannot show
            axes.plot(value, row, "o", ms=5.5, color=COLOURS[0])
        text = "unknown" if np.isnan(value) else f"{value:.2g}"
        _annotate(axes, float(np.nanmax([value, 1e-3])) if value > 0 else 1.0, row, text)
    within = values[values > 0]
    axes.set_xscale("log")
    axes.set_xlim(min([0.4, *within / 1.8]), max([2.5, *within * 1.8]))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    entitle(axes, "Attention of its patches,\n× the slide's mean")


def _draw_parts(axes: Axes, shown: Sequence[PrototypeSummary], total: float) -> None:
    values = np.array([p.attention_part for p in shown])
    axes.axvline(0, color=GREY, lw=0.8)
    for row, value in enumerate(values):
        axes.barh(row, value, height=0.26, color=COLOURS[2] if value >= 0 else COLOURS[3])
        _annotate(axes, 0.0, row, _signed(f"{value:+.2g}"))
    _symmetric(axes, float(np.abs(values).max()))
    entitle(axes, f"Its part in the attention\n(all together {_signed(f'{total:+.2g}')})")


def _draw_logits(axes: Axes, shown: Sequence[PrototypeSummary], mean: float) -> None:
    values = np.array([p.logit_at for p in shown])
    spread = np.array([p.logit_at_sd for p in shown])
    axes.axvline(mean, color=GREY, lw=0.8, ls=":")
    texts = [f"{value:.2f} ± {sd:.2f}" for value, sd in zip(values, spread, strict=True)]
    _draw_spread(axes, values, spread, texts, mean)
    entitle(axes, "Attention logit at\nthe prototype ± sd")


def _draw_single(axes: Axes, shown: Sequence[PrototypeSummary], names: Sequence[str]) -> None:
    """Draw the log-odds of the second of two classes; of more, of the one with the highest."""
    has_two = len(shown[0].single) == 2
    classes = [1 if has_two else int(np.argmax(p.single)) for p in shown]
    values = np.array([p.single[c] for p, c in zip(shown, classes, strict=True)])
    spread = np.array([p.single_sd[c] for p, c in zip(shown, classes, strict=True)])
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    texts = [
        ("" if has_two else f"{plain_words(names[c])}: ") + f"{value:+.1f} ± {sd:.1f}"
        for c, value, sd in zip(classes, values, spread, strict=True)
    ]
    _draw_spread(axes, values, spread, texts, 0.0)
    of = plain_words(names[1]) if has_two else "its likeliest class"
    entitle(axes, f"Log-odds of {of},\nthe patch alone ± sd")


def _draw_spread(
    axes: Axes, values: np.ndarray, spread: np.ndarray, texts: Sequence[str], line: float
) -> None:
    axes.errorbar(
        values, np.arange(len(values)), xerr=spread, fmt="o", ms=5.5, color=COLOURS[0], lw=1.2,
        capsize=2,
    )  # fmt: skip
    for row, text in enumerate(texts):
        _annotate(axes, values[row], row, _signed(text))
    low, high = min((values - spread).min(), line), max((values + spread).max(), line)
    margin = 0.15 * max(high - low, 1e-6)
    axes.set_xlim(low - margin, high + margin)
    axes.locator_params(axis="x", nbins=4)


def _signed(text: str) -> str:
    return text.replace("-", "−")


def _annotate(axes: Axes, x: float, row: int, text: str) -> None:
    axes.annotate(
        text,
        (x, row),
        xytext=(0, 7),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=SMALL_SIZE - 1.5,
        bbox={"fc": "white", "ec": "none", "pad": 0.6},
        annotation_clip=False,
    )


def _symmetric(axes: Axes, largest: float) -> None:
    """Show as much to the left of zero as to the right, with three ticks that do not collide."""
    reach = 1.25 * max(largest, 1e-12)
    axes.set_xlim(-reach, reach)
    power = 10.0 ** np.floor(np.log10(0.8 * reach))
    tick = max(step * power for step in (1, 2, 5) if step * power <= 0.81 * reach)
    axes.set_xticks([-tick, 0, tick], [f"−{tick:g}", "0", f"{tick:g}"])


def entitle(axes: Axes, text: str) -> None:
    """Set the title of a column."""
    axes.set_title(text, fontsize=SMALL_SIZE, loc="left", pad=6)


def _draw_nuclei(axes: Axes, shown: Sequence[PrototypeSummary], types: Sequence[str]) -> None:
    others = [name for name in types if name not in _NUCLEUS_COLOURS]
    colours = _NUCLEUS_COLOURS | {
        name: _OTHER_NUCLEI[number % len(_OTHER_NUCLEI)] for number, name in enumerate(others)
    }
    for row, prototype in enumerate(shown):
        total = sum(prototype.nuclei)
        start = 0.0
        for name, count in zip(types, prototype.nuclei, strict=True):
            share = count / total if total else 0.0
            axes.barh(row, share, left=start, height=0.34, color=colours[name])
            start += share
        axes.text(0, row - 0.24, f"{total:,} nuclei", fontsize=SMALL_SIZE - 1.5, va="bottom")
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0", "50", "100 %"])
    entitle(axes, "Nucleus types")
    axes.legend(
        [Patch(fc=colours[name]) for name in types],
        list(types),
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        fontsize=SMALL_SIZE - 1,
        frameon=False,
    )
