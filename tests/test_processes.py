import multiprocessing
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from sgpmil import processes
from sgpmil.errors import SettingsError
from sgpmil.processes import (
    FileLock,
    available_cores,
    compute_device,
    handle_signal,
    hold_interrupts,
    one_thread,
    repeat_lost_interrupts,
    set_up_worker,
    threads_for,
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


def test_threads_are_given_back():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_little_work_takes_one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads_for(1e4):
            assert torch.get_num_threads() == 1
        with threads_for(1e12):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
