import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.scaleout.executors import LocalExecutor
from tests.waiting import HANGS_S, wait_until

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
    LocalExecutor().run(
        _square,
        [3, 1, 2],
        on_change=lambda jobs: running.append([one.job for one in jobs]),
        on_done=lambda job, result: done.append((job, result)),
        on_death=print,
    )
    assert done == [(3, 9), (1, 1), (2, 4)]
    assert running == [[3], [1], [2]]
    assert not multiprocessing.active_children()


def test_no_process_is_refused():
    with pytest.raises(SettingsError, match="`jobs`"):
        LocalExecutor(0)


def test_two_processes_share_the_jobs_with_a_thread_each(tmp_path):
    found, most = {}, []
    LocalExecutor(2).run(
        partial(_Worker, tmp_path),
        list("abcdefgh"),
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
    LocalExecutor(2).run(
        partial(_Worker, tmp_path),
        ["a", "die", "b", "die", "c"],
        on_change=lambda jobs: None,
        on_done=lambda job, result: found.setdefault(job, []).append(result),
        on_death=lambda job: f"{job}d",
    )
    assert found.pop("die") == ["died", "died"]
    assert sorted(found) == ["a", "b", "c"]
    assert not multiprocessing.active_children()


def test_an_error_of_the_study_itself_stops_it_and_leaves_no_process(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        LocalExecutor(2).run(
            partial(_Worker, tmp_path),
            ["sleep", "full"],
            on_change=lambda jobs: None,
            on_done=lambda job, result: None,
            on_death=print,
        )
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_a_parent_that_is_stopped(tmp_path, end):
    script = f"""
        from functools import partial
        from sgpmil.scaleout.executors import LocalExecutor
        from tests.scaleout.test_executors import _Worker

        if __name__ == "__main__":
            LocalExecutor(2).run(
                partial(_Worker, {str(tmp_path)!r}),
                ["sleep 0", "sleep 1", "sleep 2"],
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
