import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace

import pytest

from sgpmil.errors import RunFolderError, SettingsError
from sgpmil.experiments.jobs import JobFile, StudyPlan, read_result, unfinished

SETTINGS = {"model": "abmil", "training": {"epochs": 20, "betas": (0.9, 0.999)}, "data": "aa"}
FILE = JobFile("colon", "abmil", "0", 1, SETTINGS)
DONE = {"status": "done", "error": None}


def test_a_result_is_read_as_written(tmp_path):
    FILE.write(tmp_path, DONE)
    assert FILE.path(tmp_path) == tmp_path / "colon" / "abmil" / "0-seed1.json"
    found = FILE.read(tmp_path)
    assert found["variant"] == "abmil"
    assert found["settings"]["training"] == {"epochs": 20, "betas": [0.9, 0.999]}
    assert unfinished([FILE], tmp_path, overwrite=False) == []


def test_absent_failed_and_damaged_results_are_unfinished(tmp_path):
    files = [replace(FILE, seed=seed) for seed in range(4)]
    files[0].write(tmp_path, DONE)
    files[1].write(tmp_path, {"status": "failed", "error": "It diverged."})
    files[2].write(tmp_path, DONE)
    whole = files[2].path(tmp_path).read_text()
    files[2].path(tmp_path).write_text(whole[: len(whole) // 2])
    assert unfinished(files, tmp_path, overwrite=False) == files[1:]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {**SETTINGS, "training": {"epochs": 30, "betas": (0.9, 0.999)}},
            "training.epochs of colon/abmil/0-seed1 was 20 and is now 30",
        ),
        ({**SETTINGS, "data": "bb"}, "the bags or the fold of colon/abmil/0-seed1 have changed"),
        ({**SETTINGS, "more": 1}, "more of colon/abmil/0-seed1 was None and is now 1"),
    ],
)
def test_results_of_other_settings_are_refused_until_told_otherwise(tmp_path, settings, said):
    FILE.write(tmp_path, DONE)
    other = replace(FILE, settings=settings)
    with pytest.raises(RunFolderError, match=said) as error:
        unfinished([other], tmp_path, overwrite=False)
    assert "`overwrite=True`" in str(error.value)
    assert unfinished([other], tmp_path, overwrite=True) == [other]


def test_a_failed_job_of_other_settings_just_runs_again(tmp_path):
    FILE.write(tmp_path, {"status": "failed", "error": "It diverged."})
    other = replace(FILE, settings={"model": "abmil"})
    assert unfinished([other], tmp_path, overwrite=False) == [other]


@pytest.mark.parametrize("name", ["", "..", "a/b"])
def test_names_that_cannot_be_folders_are_refused(name):
    with pytest.raises(SettingsError, match="folder"):
        replace(FILE, variant=name).check()


def test_killed_in_mid_write_leaves_no_result(tmp_path):
    # The process is killed, as by kill -9, when the content is half on the disk.
    script = f"""
        import os, signal
        from pathlib import Path
        import sgpmil.bags.files as files
        from sgpmil.experiments.jobs import JobFile

        def fsync(number):
            os.truncate(number, os.fstat(number).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

        files.os.fsync = fsync
        JobFile("colon", "abmil", "0", 1, {{}}).write(Path({str(tmp_path)!r}), {{"status": "done"}})
    """
    code = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False).returncode
    assert code == -signal.SIGKILL
    (left,) = (tmp_path / "colon" / "abmil").iterdir()
    assert left.stat().st_size > 0
    assert left.suffix == ".tmp"
    assert read_result(left) is None
    assert unfinished([FILE], tmp_path, overwrite=False) == [FILE]


def test_a_plan_grows_by_what_is_asked_for(tmp_path):
    StudyPlan().joined([FILE], {"epochs": None}, tmp_path).write(tmp_path)
    other = replace(FILE, seed=2)
    StudyPlan.read(tmp_path).joined([FILE, other], {"epochs": None}, tmp_path).write(tmp_path)
    assert StudyPlan.read(tmp_path).jobs == (FILE.key, other.key)


def test_results_of_other_conditions_are_refused(tmp_path):
    plan = StudyPlan().joined([FILE], {"epochs": None}, tmp_path)
    with pytest.raises(RunFolderError, match=r"epochs of each model's own .* but got 2.*`out`"):
        plan.joined([FILE], {"epochs": 2}, tmp_path)


def test_a_damaged_plan_is_no_plan(tmp_path):
    (tmp_path / "study.json").write_text(json.dumps({"jobs": 3}))
    assert StudyPlan.read(tmp_path) == StudyPlan()
    assert os.listdir(tmp_path) == ["study.json"]
