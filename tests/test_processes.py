import subprocess
import sys

import pytest

from sgpmil import processes
from sgpmil.processes import FileLock

fcntl = pytest.importorskip("fcntl", reason="This system has no file locks")

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
