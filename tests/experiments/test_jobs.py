import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from sgpmil.errors import RunFolderError, SettingsError
from sgpmil.experiments.jobs import JobFile, StudyPlan, one_thread, read_result, run_all, unfinished
from tests.waiting import HANGS_S, wait_until

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


pytestmark = pytest.mark.slow


def _square():
    return lambda x: x * x


class _Worker:
    """Notes the process and threads of every job."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __call__(self, job):
        (self.folder / str(job)).write_text(str(torch.get_num_threads()))
        if job == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if job.startswith("sleep"):
            time.sleep(600)
        if job == "full":
            raise OSError(28, "No space left on device", "x.json")
        return os.getpid()


def test_one_process_is_this_one_and_keeps_the_order():
    done, running = [], []
    run_all(
        _square,
        [3, 1, 2],
        processes=1,
        on_change=lambda jobs: running.append(list(jobs)),
        on_done=lambda job, result: done.append((job, result)),
        on_death=print,
    )
    assert done == [(3, 9), (1, 1), (2, 4)]
    assert running == [[3], [1], [2]]
    assert not multiprocessing.active_children()


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_no_process_is_refused():
    with pytest.raises(SettingsError, match="`jobs`"):
        run_all(_square, [1], processes=0, on_change=print, on_done=print, on_death=print)


def test_two_processes_share_the_jobs_with_a_thread_each(tmp_path):
    found, most = {}, []
    run_all(
        partial(_Worker, tmp_path),
        list("abcdefgh"),
        processes=2,
        on_change=lambda jobs: most.append(len(jobs)),
        on_done=found.__setitem__,
        on_death=print,
    )
    assert sorted(found) == list("abcdefgh")
    assert os.getpid() not in found.values()
    assert max(most) == 2
    assert {path.read_text() for path in tmp_path.iterdir()} == {"1"}


def test_a_process_that_is_killed_costs_its_own_job_alone(tmp_path):
    found = {}
    run_all(
        partial(_Worker, tmp_path),
        ["a", "die", "b", "die", "c"],
        processes=2,
        on_change=lambda jobs: None,
        on_done=lambda job, result: found.setdefault(job, []).append(result),
        on_death=lambda job: f"{job}d",
    )
    assert found.pop("die") == ["died", "died"]
    assert sorted(found) == ["a", "b", "c"]
    assert not multiprocessing.active_children()


def test_an_error_of_the_study_itself_stops_it_and_leaves_no_process(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        run_all(
            partial(_Worker, tmp_path),
            ["sleep", "full"],
            processes=2,
            on_change=lambda jobs: None,
            on_done=lambda job, result: None,
            on_death=print,
        )
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_a_parent_that_is_stopped(tmp_path, end):
    script = f"""
        from functools import partial
        from sgpmil.experiments.jobs import run_all
        from tests.experiments.test_jobs import _Worker

        if __name__ == "__main__":
            run_all(
                partial(_Worker, {str(tmp_path)!r}),
                ["sleep 0", "sleep 1", "sleep 2"],
                processes=2,
                on_change=lambda jobs: None,
                on_done=lambda job, result: None,
                on_death=print,
            )
    """
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(script))
    root = Path(__file__).parents[2]
    parent = subprocess.Popen(
        [sys.executable, file],
        env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=hear_interrupts,
    )
    try:
        wait_until(lambda: len(list(tmp_path.glob("sleep *"))) == 2)
        children = _children(parent.pid)
        assert len(children) >= 2
        parent.send_signal(end)
        parent.wait(timeout=HANGS_S)
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    finally:
        parent.kill()
        parent.wait()


def hear_interrupts():
    """Undo what a shell does to a job in the background, and with it to these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _children(pid):
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found
