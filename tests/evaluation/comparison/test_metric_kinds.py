from dataclasses import fields

import numpy as np
import pytest

from sgpmil.errors import PredictionError
from sgpmil.evaluation.comparison.metric_kinds import METRIC_KINDS, metric_kind
from sgpmil.evaluation.instance_metrics import InstanceMetrics
from sgpmil.evaluation.slide_metrics import SlideMetrics, slide_metrics
from tests.evaluation.tables import table_of


def test_every_metric_has_a_kind():
    measured = {field.name for kind in (SlideMetrics, InstanceMetrics) for field in fields(kind)}
    assert set(METRIC_KINDS) == measured - {"num_slides", "num_bags"}
    assert all(name == kind.name for name, kind in METRIC_KINDS.items())


def test_directions_are_those_in_which_a_perfect_prediction_beats_its_opposite():
    labels = np.array([0, 0, 1, 1, 1])
    perfect = np.eye(2)[labels]
    best, worst = (
        slide_metrics(table_of(perfect, labels)),
        slide_metrics(table_of(1 - perfect, labels)),
    )
    for name in set(METRIC_KINDS) & {field.name for field in fields(SlideMetrics)}:
        higher = getattr(best, name) > getattr(worst, name)
        assert metric_kind(name).higher_is_better is higher


def test_an_unknown_metric_is_refused_with_the_choices():
    with pytest.raises(PredictionError, match=r"balanced_accuracy, .* but got 'loss'"):
        metric_kind("loss")
