import numpy as np
import pytest
from sklearn.datasets import load_digits

from sgpmil.experiments import digits as demo
from sgpmil.experiments.digits import digit_bags


def test_labels_follow_from_the_digits():
    data = load_digits()
    digit_of = {image.astype(np.float32).tobytes(): d for image, d in zip(*_xy(data), strict=True)}
    bags = digit_bags(target=4, num_bags=40, seed=1)
    assert len(bags) == 40
    for bag in bags:
        digits = np.array([digit_of[row.numpy().tobytes()] for row in bag.features])
        np.testing.assert_array_equal(bag.instance_labels.numpy(), digits == 4)
        assert bag.label == int((digits == 4).any())


def test_no_digit_is_in_two_bags():
    # Five images occur twice in scikit-learn's own set, so rows are compared with their number.
    rows = np.concatenate([bag.features.numpy() for bag in digit_bags()])
    whole = load_digits().data.astype(np.float32)
    assert len(rows) == 180 * 9
    assert _most_often(rows) <= _most_often(whole)


def test_same_seed_same_bags():
    first, again, other = digit_bags(seed=3), digit_bags(seed=3), digit_bags(seed=4)
    assert first.fingerprint() == again.fingerprint()
    assert first.fingerprint() != other.fingerprint()


def _xy(data):
    return data.data, data.target


def _most_often(rows):
    return np.unique(rows, axis=0, return_counts=True)[1].max()


@pytest.mark.slow
def test_demo_learns_where_the_digit_is(tmp_path):
    made = demo.run_demo(tmp_path / "run", num_folds=2, progress=False)
    found = {metric.name: metric.mean for metric in made.result.summary()}
    assert found["auc"] > 0.85
    assert found["attention_auc"] > 0.95
    assert [path.name for path in made.figures] == ["reliability.png", "roc.png", "attention.png"]


@pytest.mark.slow
def test_same_seed_same_result(tmp_path):
    first, again = (
        demo.run_demo(tmp_path / name, num_folds=2, epochs=1, progress=False).result.metrics
        for name in ("a", "b")
    )
    assert first == again
