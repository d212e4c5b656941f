import pytest

from sgpmil.experiments import digits_demo as demo


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
