import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from sgpmil import processes
from sgpmil.errors import SettingsError
from sgpmil.processes import (
    FileLock,
    ProgressBar,
    available_cores,
    compute_device,
    handle_signal,
    hold_interrupts,
    progress_bar,
    progress_bars,
    repeat_lost_interrupts,
    set_up_worker,
)
from tests.waiting import HANGS_S

fcntl = pytest.importorskip("fcntl", reason="This system has no file locks")
CHILD = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"

HOLD = """
import sys, time
from pathlib import Path
from sgpmil.processes import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.acquire(), flush=True)
time.sleep(600)
"""


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "new" / "a slide.h5.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "True\n"
        ours = FileLock(path)
        assert not ours.acquire()
        holder.kill()
        holder.wait()
        assert ours.acquire()  # a lock ends with its process, though its file is still there
    assert not FileLock(path).acquire()
    ours.release()
    assert list(path.parent.iterdir()) == []


def test_a_file_removed_between_open_and_lock_is_not_held(tmp_path, monkeypatch):
    first, second, third = (FileLock(tmp_path / "lock") for _ in range(3))
    assert first.acquire()

    def release_first_then_lock(file, how):
        first.release()  # the second has opened the file; now its holder removes it
        monkeypatch.setattr(processes.fcntl, "flock", flock)
        return flock(file, how)

    flock = fcntl.flock
    monkeypatch.setattr(processes.fcntl, "flock", release_first_then_lock)
    assert second.acquire()
    assert not third.acquire()
    second.release()
    assert third.acquire()
    third.release()


def started():
    found = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    return found.stdout.strip()


def test_processes_that_start_meanwhile_do_not_receive_an_interrupt():
    with hold_interrupts():
        assert started() == "True"
    assert started() == "False"


def interrupted_within(reached):
    with hold_interrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append(True)


def test_an_interrupt_is_held_back_and_not_lost():
    reached = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_within(reached)
    assert reached == [True]


class InterruptedFinaliser:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)


def test_an_interrupt_that_a_finaliser_dropped_arrives_later():
    def finalise_and_wait():
        InterruptedFinaliser()
        threading.Event().wait(HANGS_S)

    before = sys.unraisablehook
    with repeat_lost_interrupts(), pytest.raises(KeyboardInterrupt):
        finalise_and_wait()
    assert sys.unraisablehook is before


def test_nothing_is_interrupted_after_the_block(monkeypatch):
    monkeypatch.setattr(processes, "_REPEAT_AFTER_S", HANGS_S)
    before = set(threading.enumerate())
    with repeat_lost_interrupts():
        InterruptedFinaliser()
        (timer,) = set(threading.enumerate()) - before
    timer.join(HANGS_S / 2)  # it ends without its time having come
    assert not timer.is_alive()


def test_a_signal_has_its_old_handler_again_after_the_block():
    before = signal.getsignal(signal.SIGTERM)
    received = []
    with handle_signal(signal.SIGTERM, lambda number, frame: received.append(number)):
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def _worker(path):
    set_up_worker(on_orphaned=lambda: os.unlink(path))
    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, flush=True)  # noqa: T201
    signal.pause()


def _parent(path):
    multiprocessing.get_context("spawn").Process(target=_worker, args=(path,)).start()
    signal.pause()


def test_a_worker_ignores_interrupts_and_ends_with_its_parent(tmp_path):
    path = tmp_path / "shared memory"
    path.touch()
    code = f"from tests.test_processes import _parent; _parent({str(path)!r})"
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )
    with parent:
        assert parent.stdout.readline() == "True\n"
        parent.kill()
        assert parent.stdout.read() == ""  # the end of the output: the worker has ended, too
    assert not path.exists()


def test_a_bar_counts_and_shows_a_state():
    with progress_bar("Reading", 5, "slides", num_done=2, show=False) as bar:
        bar.advance()
        bar.show(state="12 patches/s")
        (task,) = bar.bars.tasks
        assert (task.completed, task.total, task.fields["state"]) == (3, 5, "12 patches/s")
        assert bar.count == "3 of 5"
        bar.advance(0.5)
        assert bar.count == "3 of 5"
        bar.begin("Drawing", 2)
        bar.advance()
        (task,) = bar.bars.tasks
        assert (task.completed, task.total, task.description) == (1, 2, "Drawing")


def test_work_that_ends_early_fills_its_bar():
    with progress_bar("fold 0", 200, "epochs", show=False) as bar:
        bar.advance(71)
        bar.finish("testing")
        (task,) = bar.bars.tasks
        assert (task.completed, task.total, task.fields["state"]) == (71, 71, "testing")
    with progress_bar("fold 0", 20, "epochs", show=False) as bar:
        bar.finish()
        (task,) = bar.bars.tasks
        assert (task.completed, task.total) == (20, 20)


def test_bars_of_work_at_once_are_below_each_other():
    with progress_bars("epochs", show=False) as bars:
        with bars.bar("fold 0", 3) as first, bars.bar("fold 1", 3) as second:
            second.advance()
            first.advance(2)
            shown = [(task.description, task.completed) for task in bars.bars.tasks]
            assert shown == [("fold 0", 2), ("fold 1", 1)]
        assert not bars.bars.tasks


def test_a_log_file_gets_lines_instead_of_a_bar(capfd):
    with progress_bar("", 5, "jobs", num_done=2, show=True) as bar:
        bar.advance()
        bar.log(f"{bar.count}: colon [abmil]")
        bar.say("It [diverged].")
    with progress_bars("epochs", show=True) as bars:
        bars.say("fold 0: done")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["3 of 5: colon [abmil]", "It [diverged].", "fold 0: done"]


def test_no_progress_is_shown_unless_asked_for(capfd):
    with progress_bar("", 1, "jobs", show=False) as bar:
        bar.say("a")
        bar.log("b")
    with progress_bars("epochs", show=False) as bars:
        bars.say("c")
    assert capfd.readouterr() == ("", "")


def test_a_narrow_terminal_cuts_the_state_and_not_the_count():
    name = "kernel-attention, fold 0 (1 of 5)"
    with progress_bar(name, 200, "epochs", show=False) as bar:
        bar.advance(4)
        bar.show(state="loss 0.500  val loss 0.250  balanced accuracy 0.875")
        console = Console(file=io.StringIO(), width=80)
        console.print(bar.bars.get_renderable())
    line = console.file.getvalue().rstrip("\n")
    assert "\n" not in line
    assert name in line
    assert "4/200 epochs" in line
    assert line.rstrip().endswith("…")


def test_long_jobs_still_have_a_time_left():
    clock = iter(range(0, 10**6, 100))  # every look at the clock is 100 seconds later
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
        get_time=lambda: float(next(clock)),
        speed_estimate_period=processes._SPEED_PERIOD_S,
    ) as bars:
        bar = ProgressBar(bars, "", 10)
        for _ in range(3):
            bar.advance()
        assert bars.tasks[0].time_remaining is not None


def test_the_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert compute_device() == torch.device("cuda")
    assert compute_device("gpu") == compute_device("cuda") == torch.device("cuda")
    assert compute_device("cuda:1") == compute_device("gpu:1") == torch.device("cuda", 1)
    assert compute_device("cpu") == torch.device("cpu")
    with pytest.raises(SettingsError, match="Expected a GPU for device 'cuda:2', but found 2"):
        compute_device("cuda:2")


def test_without_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute_device() == torch.device("cpu")
    for name in ("gpu", "cuda", "cuda:1"):
        with pytest.raises(SettingsError, match="found none"):
            compute_device(name)
    for name in ("tpu", "mps", "gpu1"):
        with pytest.raises(SettingsError, match=name):
            compute_device(name)
    assert compute_device("mps", needs_float64=False).type == "mps"


def test_only_the_cores_of_this_process_count(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert available_cores() == 6
