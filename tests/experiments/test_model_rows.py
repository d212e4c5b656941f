import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from sgpmil.experiments.model_rows import Spread, at_chance, read_rows, spread_of

pytestmark = pytest.mark.slow


def test_chance_is_that_of_labels_dealt_at_random(rng):
    labels = np.array([0, 1] * 40)
    areas = [roc_auc_score(labels, rng.normal(size=80)) for _ in range(2000)]
    marked = [at_chance(Spread(a, math.nan, a, 1), labels.tolist()) for a in areas]
    assert np.mean(marked) == pytest.approx(0.954, abs=0.02)


def test_many_runs_on_the_same_bags_are_no_evidence():
    # Fifteen runs agree to a hair, but all were tested on the same twenty bags.
    assert at_chance(Spread(0.58, 0.001, 0.57, 15), [0, 1] * 10)
    assert not at_chance(Spread(0.58, 0.001, 0.57, 15), [0, 1] * 1000)
    # Runs that disagree are none either, however many bags there are.
    assert at_chance(Spread(0.58, 0.2, 0.3, 10), [0, 1] * 1000)
    assert not at_chance(spread_of([]), [0, 1])


def test_spread_leaves_out_what_is_undefined():
    found = spread_of([0.2, None, 0.6, math.nan])
    assert (found.mean, found.worst, found.count) == (0.4, 0.2, 2)
    assert found.sd == pytest.approx(np.std([0.2, 0.6], ddof=1))
    alone = spread_of([0.3])
    assert math.isnan(alone.sd)
    assert math.isnan(spread_of([None]).mean)


def test_a_folder_without_a_study_has_no_rows(tmp_path):
    assert read_rows(tmp_path) == []
