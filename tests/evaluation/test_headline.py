import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import cohen_kappa_score, roc_auc_score

from sgpmil.bags.target import OrdinalTarget
from sgpmil.evaluation.assessment import AssessmentOptions, TestedFold, assess
from sgpmil.evaluation.headline import headline
from sgpmil.evaluation.uncertainty.decisions import DecisionMetrics

from .tables import table_of

NO_INTERVALS = AssessmentOptions(rounds=0)


def lines_of(*tests, **given):
    folds = [TestedFold(str(k), test) for k, test in enumerate(tests)]
    return dict(headline(assess(folds, options=NO_INTERVALS), tests, **given))


def sure_of(labels, num_classes, confidence=0.8):
    probs = np.full((len(labels), num_classes), (1 - confidence) / (num_classes - 1))
    probs[np.arange(len(labels)), labels] = confidence
    return probs


def test_each_number_is_that_of_another_library():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    p = np.clip(0.3 * labels + rng.uniform(0, 0.7, 40), 0.01, 0.99)
    lines = lines_of(table_of(np.stack([1 - p, p], axis=1), labels))
    wrong = (p > 0.5) != labels
    assert lines["measured"] == "40 slides of 20 patients"
    assert lines["AUC"] == f"{roc_auc_score(labels, p):.3f}"
    assert lines["wrong"].startswith(f"{wrong.sum()} of 40: c")
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    assert f"in {roc_auc_score(wrong, entropy):.0%} of pairs" in lines["uncertainty"]
    assert "quadratic kappa" not in lines
    assert "temperature, sets" not in lines


def test_the_classes_with_most_errors_come_first():
    labels = [0] * 4 + [1] * 4 + [2] * 4
    said = [0, 0, 0, 1] + [1] * 4 + [0, 0, 2, 2]
    lines = lines_of(table_of(sure_of(said, 3), labels, ("a", "b", "c"), OrdinalTarget))
    assert lines["wrong"] == "3 of 12: c 2 of 4, a 1 of 4"
    assert lines["quadratic kappa"] == f"{cohen_kappa_score(labels, said, weights='quadratic'):.3f}"
    assert lines["error of grades"] == f"{5 / 12:.3f}"
    assert lines["uncertainty"] == "too few errors to judge it: 3 wrong, 6 needed"


@pytest.mark.parametrize(("num_wrong", "verdict"), [(4, "no fault shown"), (14, "a fault")])
def test_calibration_is_judged_against_chance(num_wrong, verdict):
    # All slides have one confidence, so that the ECE is the distance from it of a binomial share.
    labels = np.arange(20) % 2
    said = np.where(np.arange(20) < num_wrong, 1 - labels, labels)
    high = np.abs(binom.rvs(20, 0.8, size=20000, random_state=0) / 20 - 0.8)
    line = lines_of(table_of(sure_of(said, 2), labels))["calibration"]
    assert line.startswith(f"ECE {abs((20 - num_wrong) / 20 - 0.8):.3f}")
    assert f"–{np.quantile(high, 0.975):.3f} if calibrated" in line
    assert line.endswith(verdict)


def test_decisions_and_folds_have_lines():
    table = table_of(sure_of([0, 1] * 5, 2), [0, 1] * 5)
    found = DecisionMetrics(
        num_slides=10,
        num_seen=3,
        num_with_set=10,
        num_covered=9,
        num_deferred=2,
        wrong_kept=1,
        wrong_deferred=4,
    )
    lines = lines_of(table, decisions=found)
    assert lines["prediction sets"] == "hold the label of 9 of 10 slides (3 seen left out)"
    assert lines["to a human"] == "2 of 10 slides, with 4 of 5 errors (3 seen left out)"
    none = DecisionMetrics(0, 7, 0, 0, 0, 0, 0)
    assert lines_of(table, decisions=none)["decisions"].startswith(
        "not measured: seen before (7 slides)"
    )
    assert lines_of(table, table)["measured"].endswith("means over 2 folds")


def test_few_right_predictions_are_said_as_such():
    labels = [0] * 6 + [1] * 6
    said = [0, 0, 1, 1, 1, 1] + [0] * 6
    line = lines_of(table_of(sure_of(said, 2), labels))["uncertainty"]
    assert line == "too few right predictions to judge it: 2 right, 6 needed"
