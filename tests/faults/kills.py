"""Commands that are killed at seeded moments, run again, and compared with a run that was not.

A moment is a number of calls, or of files written, renamed or removed, that the process has made:
it does not depend on how fast the machine is. The process kills itself there with SIGKILL.
"""

import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.faults.commands import Stand, Written, in_a_fork

_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Moments:
    """Counts calls and changes of files in this process, and kills it at one of them.

    Args:
        place: Folder whose changes count.
        kind: ``calls`` or ``files``.
        last: Number at which the process dies; 0 for none.
    """

    def __init__(self, place: Path, kind: str, last: int) -> None:
        self.place = str(place)
        self.last = {"calls": 0, "files": 0, kind: last}
        self.counts = {"calls": 0, "files": 0}

    def start(self) -> None:
        """Begin to count; there is no end."""
        sys.addaudithook(self._on_event)
        sys.setprofile(self._on_call)

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1
        if self.counts[kind] == self.last[kind]:
            os.kill(os.getpid(), signal.SIGKILL)

    def _on_call(self, frame: object, event: str, argument: object) -> None:
        del frame, argument
        if event in ("return", "c_return"):
            self._count("calls")

    def _on_event(self, event: str, arguments: tuple[object, ...]) -> None:
        is_change = event in _CHANGES
        if event == "open":
            is_change = isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
        if is_change and str(arguments[0]).startswith(self.place):
            self._count("files")


@dataclass(frozen=True)
class KillOutcome:
    """What a killed command left.

    Args:
        command: Name of the command.
        seed: Seed of the moment.
        moment: The moment, as "calls 1234 of 5678".
        was_killed: Whether the process died there.
        fault: What is wrong after the next run; empty where nothing is.
    """

    command: str
    seed: int
    moment: str
    was_killed: bool
    fault: str


class KillStand(Stand):
    """A command that is killed."""

    def __init__(self, command: Written, work: Path) -> None:
        super().__init__(command, work)
        out = self.out("counted")
        moments = Moments(out, "calls", 0)
        ended = in_a_fork(
            command.begin(self.place, out), moments.start, lambda: [*moments.counts.values()]
        )
        self.totals = dict(zip(moments.counts, ended.counted, strict=True))

    def kill(self, seed: int) -> KillOutcome:
        """Kill the command at a seeded moment, run it again, and compare."""
        rng = np.random.default_rng(seed)
        kind = ("calls", "files")[int(rng.integers(2))]
        moment = int(rng.integers(1, self.totals[kind] + 1))
        out = self.out(f"killed-{seed}")
        start = Moments(out, kind, moment).start
        ended = in_a_fork(self.command.begin(self.place, out), start)
        fault = self.fault_after_again(out)
        if not fault:
            shutil.rmtree(out)
        text = f"{kind} {moment} of {self.totals[kind]}"
        was_killed = ended.code == -signal.SIGKILL
        return KillOutcome(self.command.name, seed, text, was_killed, fault)
