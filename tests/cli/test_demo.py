import pytest


@pytest.mark.slow
def test_digits_says_what_it_is_and_where_results_are(sgpmil, tmp_path):
    run = tmp_path / "run"
    short = ("--folds", "2", "--model", "abmil", "--epochs", "1")
    code, out, _ = sgpmil("demo", "--digits", "--run", run, *short)
    assert code == 0
    assert "handwritten digits" in out
    assert "not slides" in out
    assert "instance AUC, attention" in out
    for name in ("reliability", "roc", "attention"):
        assert str(run / "figures" / f"{name}.png") in out
        assert (run / "figures" / f"{name}.png").stat().st_size > 10_000


@pytest.mark.slow
def test_from_slides_to_maps(sgpmil, tmp_path, monkeypatch):
    pytest.importorskip("openslide", reason="pip install '.[slides]'")
    pytest.importorskip("efficientnet_lite_pytorch", reason="pip install '.[encoders]'")
    monkeypatch.setattr("sgpmil.cli.demo._SIZE", "1024x1024")
    run = tmp_path / "demo"
    arguments = ("--run", run, "--num-slides", "10", "--epochs", "1", "--model", "mean-pool")
    code, out, error = sgpmil("demo", *arguments)
    assert code == 0, error
    assert "drawn, not of patients" in out
    for command in ("phantom", "extract", "train", "evaluate", "explain"):
        assert f"$ sgpmil {command} " in out
    assert "instance AUC, evidence" in out
    maps = sorted((run / "explanation" / "maps").glob("*.png"))
    assert len(maps) == 4
    for path in maps:
        assert str(path) in out
        assert path.stat().st_size > 50_000
    code, _, error = sgpmil("demo", *arguments)
    assert code == 2  # the run is there
    assert "--overwrite" in error
