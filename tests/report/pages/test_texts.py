import math

import pytest

from sgpmil.evaluation.metrics import METRICS
from sgpmil.report.pages.texts import (
    format_mean,
    format_number,
    format_range,
    metric_name,
    setting_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.9996, "1.000"), (-0.0004, "0.000"), (-0.0006, "−0.001"), (math.nan, "–"), (math.inf, "∞")],
)
def test_numbers(value, text):
    assert format_number(value) == text


def test_ranges_and_means():
    assert format_range(0.1, 0.25, 2) == "0.10–0.25"
    assert format_range(math.nan, 0.2) == "–"
    assert format_mean([0.5, math.nan, 1.0]) == "0.750"
    assert format_mean([math.nan]) == "–"


def test_every_metric_has_a_name_of_its_own():
    names = [metric_name(name) for name in METRICS]
    assert len(set(names)) == len(names)
    assert not any("_" in name for name in names)


def test_settings():
    assert setting_text(None) == "none"
    assert setting_text((1, False)) == "1, no"
