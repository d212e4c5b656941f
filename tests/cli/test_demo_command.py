import pytest

import sgpmil.experiments.digits_demo as demo


@pytest.mark.slow
def test_demo_says_it_is_digits_and_where_results_are(sgpmil, tmp_path, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr(demo, "DEMO_TRAINING", replace(demo.DEMO_TRAINING, epochs=1))
    run = tmp_path / "run"
    code, out, _ = sgpmil("demo", "--run", run, "--folds", "2", "--model", "abmil")
    assert code == 0
    assert "handwritten digits" in out
    assert "not slides" in out
    assert "instance AUC, attention" in out
    for name in ("reliability", "roc", "attention"):
        assert str(run / "figures" / f"{name}.png") in out
        assert (run / "figures" / f"{name}.png").stat().st_size > 10_000
