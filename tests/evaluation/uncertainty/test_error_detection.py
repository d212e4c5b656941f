import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation import Prediction, PredictionTable
from sgpmil.evaluation.uncertainty.error_detection import error_detection, least_errors

TARGET = ClassTarget(("a", "b"))


def table(wrong, right, patients=None):
    """Slides of these uncertainties (1 - largest probability), all predicted as the class b."""
    rows = []
    for number, (value, label) in enumerate([(u, 0) for u in wrong] + [(u, 1) for u in right]):
        case = f"p{number}" if patients is None else patients[number]
        samples = np.array([[value, 1 - value]])
        rows.append(Prediction.from_samples(f"s{number}", case, label, samples))
    return PredictionTable(tuple(rows), TARGET)


def detect(wrong, right, **options):
    return error_detection(table(wrong, right, **options), "max_probability")


def test_the_area_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    wrong, right = rng.uniform(0.1, 0.45, 9), rng.uniform(0, 0.4, 40)
    found = detect(wrong, right)
    is_wrong = np.r_[np.ones(9), np.zeros(40)]
    assert found.area == pytest.approx(roc_auc_score(is_wrong, np.r_[wrong, right]))
    assert (found.num_wrong, found.num_right) == (9, 40)
    assert found.low < found.area < found.high


@pytest.mark.parametrize("above", [0, 3, 7, 8])
def test_errors_beyond_all_right_slides_are_a_binomial_share(above):
    wrong = [0.4] * above + [0.01] * (8 - above)
    found = detect(wrong, np.linspace(0.1, 0.3, 30))
    exact = binomtest(above, 8).proportion_ci(method="exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def uniform(rng, shift):
    return rng.uniform(0.1, 0.35, 6) + shift * 0.1, rng.uniform(0.1, 0.35, 50)


def two_kinds(rng, shift):
    """Errors are surer than all right slides, or less sure than all of them."""
    above = rng.uniform(size=6) < 0.5 + shift * 0.3
    return np.where(above, 0.45, 0.01) + rng.uniform(0, 0.01, 6), rng.uniform(0.1, 0.35, 50)


@pytest.mark.parametrize(("draw", "shift"), [(uniform, 0), (uniform, 1), (two_kinds, 1)])
def test_the_interval_covers_the_true_area(draw, shift):
    rng = np.random.default_rng(1)
    many = [draw(rng, shift) for _ in range(2000)]
    true = np.mean([np.mean(w[:, None] > r[None, :10]) for w, r in many])
    found = [detect(*pair) for pair in many[:250]]
    covered = np.mean([one.low <= true <= one.high for one in found])
    assert covered >= 0.93  # 95 % less two standard errors of 250 rounds


def test_few_errors_make_no_claim():
    assert least_errors(0.95) == 6
    # Six of the smallest number that tells a perfect measure from chance, five not.
    right = np.linspace(0.1, 0.3, 30)
    assert detect([0.4] * 6, right).low > 0.5
    assert detect([0.4] * 5, right).low < 0.5
    two = detect([0.4, 0.45], right)
    assert not two.is_known
    assert two.sentence.startswith("2 of 32 predictions are wrong. That is too few")
    assert "chance of" not in two.sentence
    assert "None of 30 predictions is wrong" in detect([], right).sentence
    assert np.isnan(detect([], right).area)


def test_many_errors_are_told_with_their_numbers():
    found = detect([0.4] * 9 + [0.01], np.linspace(0.1, 0.3, 30))
    assert found.is_known
    assert "10 of 40 predictions are wrong" in found.sentence
    assert f"{found.area:.2f} (95% interval {found.low:.2f}–{found.high:.2f}" in found.sentence


def test_slides_of_one_patient_count_once():
    wrong, right = [0.4] * 8, list(np.linspace(0.1, 0.3, 30))
    patients = ["anna"] * 8 + [f"p{i}" for i in range(30)]
    found = detect(wrong, right, patients=patients)
    assert found.num_independent == 1
    assert not found.is_known
    assert found.low < detect(wrong, right).low


def test_an_impossible_level():
    with pytest.raises(PredictionError, match="level between 0 and 1"):
        error_detection(table([0.4], [0.1]), "entropy", level=95.0)
