import math

from sgpmil.cli.output import console, facts, print_summary
from sgpmil.evaluation import MetricSummary


def test_undefined_is_never_a_number():
    nan = math.nan
    with console.capture() as capture:
        print_summary([MetricSummary("auc", 0.9, nan, (0.9, nan), 1)], "run")
    text = capture.get()
    assert "0.900 ± undefined" in text
    assert "AUC is undefined in 1 of 2" in text


def test_sensitivity_is_left_out_where_there_are_several_classes():
    nan = math.nan
    auc = MetricSummary("auc", 0.9, nan, (0.9,), 0)
    sensitivity = MetricSummary("sensitivity_at_95_specificity", nan, nan, (nan,), 1)
    with console.capture() as capture:
        print_summary([auc, sensitivity], "three classes")
    assert "sensitivity" not in capture.get()
    no_auc = MetricSummary("auc", nan, nan, (nan,), 1)
    with console.capture() as capture:
        print_summary([no_auc, sensitivity], "a class is missing")
    assert "sensitivity at 95 % specificity is undefined in 1 of 1" in capture.get()


def test_brackets_are_printed():
    with console.capture() as capture:
        facts("parts", [("slides", 'pip install "sgpmil[slides]"')])
    assert "sgpmil[slides]" in capture.get()
