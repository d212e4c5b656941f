import csv
import json
import subprocess
import sys
import textwrap

import pytest
from rich.console import Console

import sgpmil.cli.experiments as command
import sgpmil.experiments.study as study
from sgpmil.errors import TrainingError
from sgpmil.experiments import bench
from sgpmil.experiments.cohorts.rehearsal import RehearsalOptions, write_rehearsal
from sgpmil.runs.run import run_lock
from tests.experiments.cohorts.tables_of_labels import write_labels
from tests.experiments.tiny_data import write_classic, write_colon, write_mnist

pytestmark = pytest.mark.slow

FEW = ("--jobs", "1", "--epochs", "1", "--model", "bag-size", "--set", "colon", "--seeds", "1")
QUICK = ("--jobs", "1", "--epochs", "2", "--model", "bag-size", "--model", "mean-pool")


@pytest.fixture
def data(tmp_path):
    write_colon(tmp_path / "data" / "colon")
    write_classic(tmp_path / "data" / "classic_mil" / "fox.npz")
    return tmp_path / "data"


def times(out):
    return {p: p.stat().st_mtime_ns for p in out.rglob("*-seed*.json")}


def test_trains_resumes_and_writes_a_table(sgpmil, data, tmp_path):
    out = tmp_path / "out"
    call = ("experiment", "models", "--data", data, "--out", out, *QUICK)
    code, printed, err = sgpmil(*call, "--set", "colon")
    assert code == 0
    assert "bag-size, mean-pool on colon: 12 runs" in printed
    assert "12 of 12: colon/mean-pool/1-seed2" in err
    assert "instance AUC, attention" in printed
    before = times(out)
    assert len(before) == 12

    code, printed, err = sgpmil(*call)
    assert code == 0
    assert {p: t for p, t in times(out).items() if p in before} == before
    assert len(times(out)) == 12 + 2 * 10
    assert "colon/" not in err
    with (out / "table.csv").open(newline="") as file:
        rows = {(r["data_set"], r["model"]): r for r in csv.DictReader(file)}
    assert {key: row["runs"] for key, row in rows.items()} == {
        ("colon", "bag-size"): "6",
        ("colon", "mean-pool"): "6",
        ("fox", "bag-size"): "10",
        ("fox", "mean-pool"): "10",
    }
    assert "## fox" in (out / "table.md").read_text()
    assert str(out / "table.md") in printed


def test_a_table_in_a_file_is_whole_and_on_a_narrow_terminal_readable(monkeypatch, capsys):
    columns = ("model", *command._DISPENSABLE, "bag AUC", "failed")
    rows = [("kernel-attention", *["0.123 ± 0.456"] * 6, "0.500 ± 0.000 (at chance)", "3")]
    monkeypatch.setenv("COLUMNS", "60")
    command._print_fitting("colon", columns, rows)
    whole = capsys.readouterr().out
    assert all(word in whole for word in (*columns, *rows[0]))
    narrow = Console(width=60, height=25, force_terminal=True, color_system=None)
    monkeypatch.setattr(command, "console", narrow)
    command._print_fitting("colon", columns, rows)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("model", "bag AUC", "failed", rows[0][0], rows[0][-2]))
    assert "parameters" not in printed
    assert max(map(len, printed.splitlines())) <= 60


def test_changed_epochs_do_not_mix(sgpmil, data, tmp_path):
    out = tmp_path / "out"
    call = ("experiment", "models", "--data", data, "--out", out, "--set", "fox", "--jobs", "1")
    assert sgpmil(*call, "--model", "bag-size", "--epochs", "1")[0] == 0
    before = times(out)
    code, _, err = sgpmil(*call, "--model", "mean-pool", "--epochs", "2", "--overwrite")
    assert code == 2
    assert "epochs 1" in err
    assert "--out" in err
    assert times(out) == before


def test_failures_are_told_at_the_end_and_tried_again(sgpmil, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    call = ("experiment", "models", "--data", data, "--out", out, *QUICK, "--set", "colon")
    fit = study.fit

    def failing(train, *, model, training, **options):
        if model == "mean-pool" and training.seed == 1:
            raise TrainingError("The loss is not finite at epoch 0.")
        return fit(train, model=model, training=training, **options)

    with monkeypatch.context() as patch:
        patch.setattr(study, "fit", failing)
        code, printed, err = sgpmil(*call)
    assert code == 1
    assert "2 failed" in err
    assert "colon/mean-pool/0-seed1: The loss is not finite at epoch 0." in err
    assert "4 of 6" in printed
    assert "Traceback" not in err
    code, printed, err = sgpmil(*call)
    assert (code, "failed" in err) == (0, False)
    assert "4 of 6" not in printed


def test_interrupted_says_how_to_go_on_and_shows_what_there_is(sgpmil, data, tmp_path, monkeypatch):
    out = tmp_path / "out"
    call = ("experiment", "models", "--data", data, "--out", out, *QUICK, "--set", "colon")
    fit = study.fit

    def interrupted(train, *, model, training, **options):
        if training.seed == 1:
            raise KeyboardInterrupt
        return fit(train, model=model, training=training, **options)

    monkeypatch.setattr(study, "fit", interrupted)
    code, printed, err = sgpmil(*call)
    assert code == 130
    assert "Run the command again to continue" in err
    assert "2 of 6" in printed
    assert "2 of 6" in (out / "table.md").read_text()


def test_timing_is_written_and_joins_the_table(sgpmil, data, tmp_path):
    out = tmp_path / "out"
    call = ("experiment", "models", "--data", data, "--out", out, "--set", "fox")
    code, printed, _ = sgpmil(*call, "--model", "bag-size", "--timing")
    assert code == 0
    assert "s/epoch" in printed
    assert not (out / "table.md").exists()
    seconds = json.loads((out / "timing.json").read_text())["fox"]["bag-size"]["seconds_per_epoch"]
    assert sgpmil(*call, *QUICK)[0] == 0
    with (out / "table.csv").open(newline="") as file:
        rows = {r["model"]: r for r in csv.DictReader(file)}
    assert float(rows["bag-size"]["seconds_per_epoch"]) == seconds
    assert [rows[m]["timed_alone"] for m in ("bag-size", "mean-pool")] == ["1", "0"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--data", "nowhere"], "Expected a folder of data sets at nowhere, but there is none."),
        (["--set", "mnist"], "'mnist'"),
        (["--set", "musk3"], "'musk3'"),
        (["--model", "abmill"], "'abmill'"),
        (["--seeds", "0"], "at least one seed"),
        (["--jobs", "0"], "--jobs"),
        (["--device", "tpu"], "'tpu'"),
        (["--epochs", "0"], "epochs >= 1"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_code_2(sgpmil, data, tmp_path, options, said):
    out = tmp_path / "out"
    code, _, err = sgpmil("experiment", "models", "--data", data, "--out", out, *options)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
    assert not times(out)


def test_a_folder_that_another_process_writes_to_is_left_alone(sgpmil, data, tmp_path):
    out = tmp_path / "out"
    with run_lock(out):
        code, _, err = sgpmil("experiment", "models", "--data", data, "--out", out, *QUICK)
    assert code == 2
    assert "Another process" in err


def test_works_without_pydantic(data, tmp_path):
    # Not blocked altogether: typer itself uses it, where it is there.
    script = f"""
        import builtins, sys

        found = builtins.__import__

        def without(name, globals=None, *arguments, **options):
            importer = (globals or {{}}).get("__name__", "")
            if name.partition(".")[0] == "pydantic" and importer.startswith("sgpmil"):
                raise ImportError("No pydantic here.")
            return found(name, globals, *arguments, **options)

        builtins.__import__ = without
        from sgpmil.cli.main import run

        try:
            run(["experiment", "models", "--help"])
        except SystemExit as stop:
            assert not stop.code
        run({["experiment", "models", "--data", str(data), "--out", str(tmp_path / "out"), *FEW]})
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "table.md").exists()


MNIST = ("--row", "mean-pool", "--jobs", "1", "--device", "cpu", "--seeds", "0")


def test_bags_of_all_digits_are_listed_trained_and_shown(sgpmil, tmp_path):
    call = ("experiment", "mnist", "--data", tmp_path, "--out", tmp_path / "out", *MNIST)
    code, _, error = sgpmil(*call, "--dry-run")
    assert code == 2
    assert "--fetch" in error
    write_mnist(tmp_path / "mnist")
    code, printed, _ = sgpmil(*call, "--dry-run")
    assert code == 0
    assert "digit-9/mean-pool/deal-seed0" in printed
    assert "1 of 1 runs to do" in printed
    assert not (tmp_path / "out").exists()
    quick = ("--max-bags", "36", "--epochs", "1")
    code, printed, error = sgpmil(*call, *quick)
    assert code == 0, error
    assert "683,608" in printed
    assert "table.md, runs.csv, digit-9.png" in printed
    code, printed, _ = sgpmil(*call, *quick, "--dry-run")
    assert "(done)" in printed
    code, _, error = sgpmil(*call)
    assert code == 2
    assert "epochs" in error
    assert "--out" in error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--row", "nosuch"), "nosuch"),
        (("--design", "abmil@x:drop=1"), "drop"),
        (("--seeds", "x"), "--seeds"),
        (("--device", "gpu:99"), "gpu"),
        (("--digit", "10"), "--digit"),
    ],
)
def test_mistakes_about_bags_of_digits_are_told_in_a_sentence(sgpmil, tmp_path, arguments, said):
    code, _, error = sgpmil("experiment", "mnist", "--data", tmp_path, *arguments)
    assert code == 2
    assert said in error.lower()
    assert "Traceback" not in error


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
    assert "| mean-pool |" in (out / "bench.md").read_text()
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


def test_uncertainty_is_planned_run_and_shown(sgpmil, tmp_path):
    out = tmp_path / "out"
    call = ("experiment", "uncertainty", "--out", out, "--set", "planted-0.5", "--quick")
    call += ("--row", "abmil", "--design", "mean:model=mean-pool,hidden_dim=8")
    call += ("--seeds", "0", "--jobs", "1", "--device", "cpu")
    code, text, _ = sgpmil(*call, "--dry-run")
    assert code == 0
    assert "planted-0.5/abmil/run-seed0" in text.split()
    assert "planted-0.5/mean/run-seed0" in text.split()
    assert "2 of 2 runs to do" in text
    assert not out.exists()
    code, text, _ = sgpmil(*call)
    assert code == 0
    found = json.loads((out / "planted-0.5/mean/run-seed0.json").read_text())
    assert f"{found['columns']['auc']:.3f}" in text
    assert (out / "table-seeds-0.md").read_text().count("| mean |") >= 3
    code, text, _ = sgpmil(*call, "--dry-run")
    assert "planted-0.5/mean/run-seed0 (done)" in text
    assert "0 of 2 runs to do" in text
    code, _, err = sgpmil(*call[:-6], "--seeds", "x")
    assert code == 2
    assert "Expected seeds such as 0-9" in err


@pytest.fixture
def cohort(tmp_path):
    labels = write_labels(tmp_path / "published.csv", "camelyon16")
    out = tmp_path / "data"
    options = RehearsalOptions(
        cohort="camelyon16", labels=labels, out=out, scale=0.01, dim=16, device="cpu"
    )
    found = write_rehearsal(options)
    files = ("--features", found.features, "--labels", found.labels, "--splits", found.splits)
    return ("experiment", "cohort", "camelyon16", *files, "--out", tmp_path / "study")


def test_a_cohort_is_checked_trained_and_resumed(sgpmil, cohort, tmp_path):
    few = ("--model", "mean-pool", "--fold", "0", "--epochs", "1", "--no-maps")
    code, printed, _ = sgpmil(*cohort, *few, "--dry-run")
    assert code == 0
    assert "Ready. Run the command without --dry-run." in printed
    assert "one core of an AMD EPYC" in printed or "NVIDIA" in printed
    assert not (tmp_path / "study").exists()
    code, printed, err = sgpmil(*cohort, *few)
    assert code == 0
    assert "1 of 1: mean-pool, fold 0" in err
    assert "CAMELYON16, slides" in printed
    assert (tmp_path / "study" / "results.md").exists()
    code, printed, err = sgpmil(*cohort, *few)
    assert code == 0
    assert "fold 0" not in err


def test_a_cohort_without_features_names_the_step_that_makes_them(sgpmil, cohort, tmp_path):
    call = [tmp_path / "none" if one == tmp_path / "data" / "features" else one for one in cohort]
    code, printed, _ = sgpmil(*call, "--dry-run")
    assert code == 1
    words = " ".join(printed.replace("│", " ").split())
    assert "✗ Expected a folder of bag files" in words
    assert "sgpmil extract SLIDES --out extracted --encoder uni_v1 --mag 10" in words
    code, _, err = sgpmil(*call)
    assert code == 2
    assert "sgpmil extract SLIDES" in err
    code, _, err = sgpmil("experiment", "cohort", "camelyon17", *cohort[3:])
    assert code == 2
    assert "camelyon16, tcga-nsclc, panda, bracs" in err
