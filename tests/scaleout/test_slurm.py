import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sgpmil.cli import main
from sgpmil.runs.run import Run
from sgpmil.scaleout.slurm import slurm_array

ARRAY = ["sgpmil", "train", "--features", "my data", "--run", "runs/a", "--overwrite"]
ARRAY += ["--cpus-per-job", "4", "--gpus_per_job=1"]


def test_every_task_resumes_its_fold_and_the_last_job_collects():
    text = slurm_array(ARRAY, ["0", "late fold"], run=Path("runs/a"), cpus=4, gpus=1)
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert "#SBATCH --array=0-1" in lines
    assert "#SBATCH --cpus-per-task=4" in lines
    assert "#SBATCH --gpus-per-task=1" in lines
    assert "#SBATCH --output=sgpmil-a-%a.log" in lines
    assert "folds=(0 'late fold')" in lines
    command = "exec sgpmil train --features 'my data' --run runs/a --resume"
    assert lines[-1] == f'{command} --fold "${{folds[$SLURM_ARRAY_TASK_ID]}}"'
    assert "--overwrite" not in text  # a task would delete what another one trains
    assert "gpus" not in slurm_array(ARRAY, ["0"], run=Path("a"))


def test_only_the_folds_that_were_named_are_tasks():
    words = ["sgpmil", "train", "--run", "a", "--fold", "0", "--fold=2"]
    text = slurm_array(words, ["0", "2"], run=Path("a"))
    assert "folds=(0 2)" in text.splitlines()
    task = 'exec sgpmil train --run a --resume --fold "${folds[$SLURM_ARRAY_TASK_ID]}"'
    assert text.splitlines()[-1] == task
    assert "--wrap 'sgpmil train --run a --fold 0 --fold=2 --resume'" in text


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--on", "ray"], "each train on one device, but got --on"),
        (["--devices", "2"], "each train on one device"),
        (["--nodes", "2"], "each train on one device"),
        (
            ["--gpus-per-job", "0.25"],
            "whole GPUs for a task of Slurm (--gpus-per-job), but got 0.25",
        ),
    ],
)
def test_what_an_array_cannot_do_is_refused(capsys, option, said):
    with pytest.raises(SystemExit) as stop:
        main.run(["train", "--features", "f", "--print-slurm", *option])
    assert stop.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_tasks_of_an_array_train_one_run_at_the_same_time(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "features").mkdir()
    for i in range(12):
        np.save(tmp_path / f"features/s{i}.npy", rng.normal(size=(4, 3)) + 3 * (i % 2))
    rows = "".join(f"s{i},{'ab'[i % 2]}\n" for i in range(12))
    (tmp_path / "labels.csv").write_text(f"slide_id,label\n{rows}")
    program = [sys.executable, "-m", "sgpmil"]
    options = [
        *("train", "--features", "features", "--labels", "labels.csv", "--model", "abmil"),
        *("--epochs", "2", "--device", "cpu", "--set", "data.folds=3"),
        *("--cpus-per-job", "2"),
    ]
    made = subprocess.run(
        [*program, *options, "--run", "runs/a", "--print-slurm"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert not (tmp_path / "runs").exists()
    # As on a machine on whose path the command is.
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin/sgpmil"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m sgpmil "$@"\n')
    command.chmod(0o755)
    (tmp_path / "job.sh").write_text(made.stdout)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    tasks = [
        subprocess.Popen(
            ["bash", "job.sh"],
            cwd=tmp_path,
            env={**environment, "SLURM_ARRAY_TASK_ID": str(task)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for task in range(3)
    ]
    said = [task.communicate()[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0, 0], said
    for run, last in (("runs/a", ["--resume"]), ("runs/b", [])):
        subprocess.run(
            [*program, *options[:-2], "--run", run, *last],
            cwd=tmp_path,
            capture_output=True,
            check=True,
        )
    array, whole = (Run.open(tmp_path / "runs" / name) for name in "ab")
    assert array.unfinished == ()
    assert array.metrics_path.exists()
    for name, fold in whole.folds.items():
        np.testing.assert_array_equal(fold.predictions.probs, array.folds[name].predictions.probs)
    assert not list((tmp_path / "runs").rglob("*.lock"))
