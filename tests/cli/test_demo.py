from importlib.util import find_spec

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
    for command in ("phantom", "extract", "train", "evaluate", "explain", "report"):
        assert f"$ sgpmil {command} " in out
    assert len((out + error).splitlines()) < 60
    assert "of 10 slides are called rightly; AUC" in out
    assert "Temperature and prediction sets are left out" in out
    # What the commands say is kept.
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert "balanced accuracy" in log
    assert "10 of 10" in log
    maps = sorted((run / "run" / "explanation" / "maps").glob("*.png"))
    assert 2 <= len(maps) <= 3
    for path in maps:
        assert str(path) in out
        assert path.stat().st_size > 50_000
    assert "  unsure: phantom-" in out
    page = run / "run" / "report.html"
    assert page.stat().st_size > 100_000
    last = out.splitlines()[-1]
    if find_spec("sgpmil.viewer"):
        assert last == f"Look into the slides: sgpmil view {run / 'run'}"
    else:
        assert last == f"Open {page} in a browser."
    code, _, error = sgpmil("demo", *arguments)
    assert code == 2  # the run is there
    assert "--overwrite" in error
