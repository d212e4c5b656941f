import json

import pytest

import sgpmil.cli.studies as command
from sgpmil.experiments import design_study
from sgpmil.experiments import stability_study as stability

QUICK = ("--quick", "--seeds", "0", "--jobs", "1", "--device", "cpu")


@pytest.fixture
def trained(monkeypatch):
    """Replace training by scores that need none."""

    class Work:
        def __call__(self, job):
            columns = {"auc": 0.5 + 0.1 * (job.design.model == "sgpmil"), "nll": 0.7, "ace": 0.1}
            sizes = {"parameters": 3, "num_train": 10, "num_test": 5}
            return {"columns": {**columns, "attention_auc": 0.9, "best_auc": 0.9}, **sizes}

    monkeypatch.setattr(design_study, "_TrainAndScore", Work)


def test_stress_runs_and_estimates_what_is_left(sgpmil, trained, tmp_path):
    out = tmp_path / "out"
    call = ("experiment", "stress", "--axis", "witness", "--value", "1", "--out", out, *QUICK)
    code, printed, _ = sgpmil(*call, "--model", "abmil", "--model", "sgpmil", "--dry-run")
    assert code == 0
    assert "2 of 2 runs to do" in printed
    code, printed, _ = sgpmil(*call, "--model", "abmil", "--model", "sgpmil")
    assert code == 0
    assert "stress-witness.png" in printed
    assert (out / "stress.md").is_file()
    code, printed, _ = sgpmil(*call, "--seeds", "0,1", "--model", "abmil", "--dry-run")
    assert "witness-1/abmil/run-seed0 (done)" in printed
    assert "1 of 2 runs to do" in printed
    assert "About 0.0 hours in 1 process" in printed


def test_ablations_write_their_tables_again(sgpmil, trained, tmp_path):
    out = tmp_path / "out"
    call = (
        "experiment",
        "ablations",
        "--set",
        "camelyon",
        "--axis",
        "kernel",
        "--out",
        out,
        *QUICK,
    )
    assert sgpmil(*call, "--base", "paper")[0] == 0
    text = (out / "ablations.md").read_text()
    assert ".985 / .988 / .024; .960 / .062" in text
    (out / "ablations.md").unlink()
    code, _, _ = sgpmil(*call, "--tables")
    assert code == 0
    assert (out / "ablations.md").read_text() == text


def test_a_failed_run_is_named_and_the_others_are_there(sgpmil, trained, monkeypatch, tmp_path):
    own = design_study._TrainAndScore

    class Work(own):
        def __call__(self, job):
            if job.design.name == "abmil":
                raise ValueError("no memory")
            return super().__call__(job)

    monkeypatch.setattr(design_study, "_TrainAndScore", Work)
    call = ("experiment", "stress", "--axis", "witness", "--value", "1", "--out", tmp_path, *QUICK)
    code, _, err = sgpmil(*call, "--model", "abmil", "--model", "dsmil")
    assert code == 1
    assert "witness-1/abmil/run-seed0: ValueError: no memory" in err
    found = json.loads((tmp_path / "witness-1/dsmil/run-seed0.json").read_text())
    assert found["status"] == "done"


def test_ctrl_c_leaves_tables_and_says_how_to_go_on(sgpmil, trained, monkeypatch, tmp_path):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "measure_stability", stop)
    code, printed, err = sgpmil("experiment", "stability", "--runs", "2", "--out", tmp_path)
    assert code == 130
    assert "stability.md" in printed
    assert "Run the command again to continue." in err


def test_stability_counts(sgpmil, monkeypatch, tmp_path):
    monkeypatch.setattr(
        stability,
        "judge",
        lambda design, condition, device: stability.Verdict("error", "no factor"),
    )
    call = ("experiment", "stability", "--design", "agp", "--runs", "2", "--jobs", "1")
    assert "2 of 2 runs to do" in sgpmil(*call, "--out", tmp_path, "--dry-run")[1]
    code, printed, _ = sgpmil(*call, "--out", tmp_path)
    assert code == 0
    assert [word for word in printed.split() if word == "2"]
    assert "agp, seed 1: error: no factor" in (tmp_path / "stability.md").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("stress", "--axis", "size"), "Expected --axis among witness, noise, bags"),
        (("ablations", "--data", "nowhere"), "Expected mnist/ or colon/ in nowhere"),
        (("stability", "--design", "x"), "Expected --design among default"),
        (("lipschitz", "--design", "x"), "Expected --design among default"),
    ],
)
def test_mistakes_are_one_sentence(sgpmil, words, sentence):
    code, _, err = sgpmil("experiment", *words)
    assert code == 2
    assert sentence in " ".join(err.split())
