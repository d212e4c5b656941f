"""The race on the lock of a run: whoever holds it is alone."""

import multiprocessing
from pathlib import Path

import pytest

from sgpmil.errors import RunFolderError
from sgpmil.runs.run import run_lock

pytest.importorskip("fcntl", reason="This system has no file locks")

PROCESSES = 6
ACQUISITIONS = 200
"""Of each process. Locks that removed their file without looking overlapped in most."""


def _take_often(folder: Path, inside, overlaps, held) -> None:
    for _ in range(ACQUISITIONS):
        while True:
            try:
                with run_lock(folder):
                    with inside.get_lock():
                        inside.value += 1
                    # Others would get in here.
                    for _ in range(20):
                        if inside.value != 1:
                            with overlaps.get_lock():
                                overlaps.value += 1
                    with inside.get_lock():
                        inside.value -= 1
                break
            except RunFolderError:
                continue
        with held.get_lock():
            held.value += 1


@pytest.mark.slow
def test_no_two_of_six_processes_hold_a_run_at_once(tmp_path):
    context = multiprocessing.get_context("fork")
    inside, overlaps, held = (context.Value("i", 0) for _ in range(3))
    arguments = (tmp_path / "run", inside, overlaps, held)
    processes = [context.Process(target=_take_often, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    assert held.value == PROCESSES * ACQUISITIONS
    assert overlaps.value == 0
    assert list(tmp_path.iterdir()) == []
