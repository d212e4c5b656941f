import json

import pytest

from sgpmil.experiments import bench

SMALL = ("--train-bags", "4", "--test-bags", "2", "--features", "4", "--scale", "0.005")


def test_models_are_timed_and_written(sgpmil, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "_BAG_COUNTS", (2, 4))
    monkeypatch.setattr(bench, "_BAG_SIZES", (10, 100, 1000))
    out = tmp_path / "bench"
    arguments = (*SMALL, "--repeats", "1", "--largest", "1000", "--out", out)
    code, text, error = sgpmil("bench", "--model", "mean-pool", "--device", "cpu", *arguments)
    assert code == 0, error
    assert "mean-pool" in text
    assert "4 training and 2 test bags" in text
    content = json.loads((out / "bench.json").read_text())
    assert content["models"][0]["train_seconds"] > 0
    assert {point["along"] for point in content["growth"]} == {"instances", "bags"}
    assert (out / "growth.png").stat().st_size > 10_000
    code, _, error = sgpmil("bench", *arguments)
    assert code == 2
    assert "--overwrite" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "nosuch"), "nosuch"),
        (("--train-bags", "1"), "train_bags >= 2"),
        (("--scale", "0"), "scale above 0"),
    ],
)
def test_mistakes_are_told_in_a_sentence(sgpmil, tmp_path, arguments, said):
    code, _, error = sgpmil("bench", *SMALL, *arguments, "--out", tmp_path / "bench")
    assert code == 2
    assert said in error
    assert not (tmp_path / "bench").exists()
