"""Commands that are killed at seeded moments, run again, and compared with a run that was not.

A moment is a number of calls, or of files written, renamed or removed, that the process has made:
it does not depend on how fast the machine is. The process kills itself there with SIGKILL.
"""

import contextlib
import csv
import io
import os
import re
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

SLIDES = 12
_SMALL = ("hidden_dims=[8]", "gp_dim=4", "num_inducing=5", "num_samples=4")
_SMALL += ("prediction_samples=16", "prediction_error=0")
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_TIMES = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([+-]\d\d:\d\d|Z| UTC)?|\d{14}(Z|\+00'00')?"
    rb"|/ID ?\[?\s*<[0-9A-Fa-f]+>\s*<[0-9A-Fa-f]+>"
)
"""What says when a file was written, the only thing that may differ."""


@dataclass(frozen=True)
class Killed:
    """A command that is killed: what it needs, how it begins, and how it is run again.

    Args:
        name: Name of the command.
        prepare: Writes what it reads into a folder.
        begin: Its arguments, of the folder it reads and the folder it writes.
        again: Its arguments after it was killed.
    """

    name: str
    prepare: Callable[[Path], None]
    begin: Callable[[Path, Path], Sequence[object]]
    again: Callable[[Path, Path], Sequence[object]]


def write_features(folder: Path) -> None:
    """Write bags in TRIDENT's layout and their labels."""
    rng = np.random.default_rng(0)
    (folder / "features").mkdir(parents=True)
    rows = [("case_id", "slide_id", "label")]
    for number in range(SLIDES):
        positive = number % 2
        with h5py.File(folder / "features" / f"s{number}.h5", "w") as file:
            file["features"] = (rng.normal(size=(6, 4)) + 3 * positive).astype(np.float32)
            file["coords"] = 256 * np.stack(np.meshgrid(range(3), range(2)), -1).reshape(-1, 2)
            file["coords"].attrs["patch_size_level0"] = 256
        rows.append((f"c{number}", f"s{number}", "tumour" if positive else "normal"))
    with (folder / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def _train(place: Path, out: Path, *words: object) -> list[object]:
    small = [word for one in _SMALL for word in ("--set", f"model.settings.{one}")]
    data = ["--features", place / "features", "--labels", place / "labels.csv"]
    folds = ["--set", "data.folds=2", "--epochs", 3, "--set", "training.patience=0"]
    return ["train", *data, "--run", out / "run", *folds, *small, *words]


def write_run(folder: Path) -> None:
    """Write bags and a run on them."""
    write_features(folder)
    if run_command(_train(folder, folder)) != 0:
        raise RuntimeError("The run that is to be reported cannot be trained.")


def write_slides(folder: Path) -> None:
    """Write three small slides."""
    from tests.slides.extraction.drawn_files import write_slide

    (folder / "slides").mkdir(parents=True)
    for number in range(3):
        write_slide(folder / "slides" / f"slide {number}.tiff", number)


def _extract(place: Path, out: Path) -> list[object]:
    encoder = "tests.slides.extraction.cheap_encoders:Colours"
    words = ["--encoder", encoder, "--workers", 1, "--patch-size", 128, "--batch-size", 7]
    return ["extract", place / "slides", "--out", out / "extracted", *words]


def _predict(place: Path, out: Path, *words: object) -> list[object]:
    folders = [place / "run", place / "features", "--labels", place / "labels.csv"]
    return ["predict", *folders, "--out", out / "p", *words]


def _explain(place: Path, out: Path) -> list[object]:
    words = ["--score", "attention", "--most", 1, "--fold", 0, "--export", "geojson,csv,tiff"]
    return ["explain", place / "run", "--out", out / "explanation", *words]


def _report(place: Path, out: Path, *words: object) -> list[object]:
    chosen = ["--out", out / "report.html", "--bootstrap", 20, "--case", "s1"]
    return ["report", place / "run", *chosen, *words]


COMMANDS = (
    Killed("train", write_features, _train, lambda a, b: _train(a, b, "--resume")),
    Killed("extract", write_slides, _extract, _extract),
    Killed(
        "pack",
        write_features,
        lambda a, b: ["pack", a / "features", b / "store", "--labels", a / "labels.csv"],
        lambda a, b: [
            *("pack", a / "features", b / "store", "--labels", a / "labels.csv"),
            "--overwrite",
        ],
    ),
    Killed("explain", write_run, _explain, _explain),
    Killed("report", write_run, _report, lambda a, b: _report(a, b, "--overwrite")),
    Killed("predict", write_run, _predict, lambda a, b: _predict(a, b, "--overwrite")),
)


def run_command(words: Sequence[object]) -> int:
    """Run the command line in this process, in silence; return its exit code."""
    from sgpmil.cli.main import run

    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            run([str(word) for word in words])
        except SystemExit as stop:
            if stop.code not in (0, None):
                Path(os.environ.get("KILLS_LOG", os.devnull)).open("a").write(said.getvalue())
            return int(stop.code or 0)
    return 0


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


def in_a_fork(words: Sequence[object], moments: Moments | None = None) -> tuple[int, str]:
    """Run a command in a fork of this process; return its status and what it counted."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 70
        try:
            if moments is not None:
                moments.start()
            code = run_command(words)
            sys.setprofile(None)
            if moments is not None:
                os.write(writer, f"{moments.counts['calls']} {moments.counts['files']}".encode())
        except BaseException as error:  # noqa: BLE001 (the parent is told)
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    os.close(writer)
    counted = b""
    while part := os.read(reader, 100):
        counted += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), counted.decode()


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


class KillRange:
    """A command with what it reads and a result that nobody disturbed.

    Args:
        command: The command.
        work: Folder to work in.
    """

    def __init__(self, command: Killed, work: Path) -> None:
        self.command = command
        self.place = work / command.name
        command.prepare(self.place)
        self._run(self.place / "warm", self.command.begin)  # imports, which forks then share
        _, counted = self._fork(self.place / "whole", self.command.begin, "calls", 0)
        self.totals = dict(zip(("calls", "files"), map(int, counted.split()), strict=True))
        self.whole = content_of(self.place / "whole")
        again = content_of(self.place / "warm")
        if again != self.whole:
            raise RuntimeError(f"Two runs differ: {differences(again, self.whole)}")

    def kill(self, seed: int) -> KillOutcome:
        """Kill the command at a seeded moment, run it again, and compare."""
        rng = np.random.default_rng(seed)
        kind = ("calls", "files")[int(rng.integers(2))]
        moment = int(rng.integers(1, self.totals[kind] + 1))
        out = self.place / f"killed-{seed}"
        code, _ = self._fork(out, self.command.begin, kind, moment)
        text = f"{kind} {moment} of {self.totals[kind]}"
        again, _ = in_a_fork(self.command.again(self.place, out))
        fault = "" if again == 0 else f"the next run ended with {again}"
        if not fault:
            found = content_of(out)
            fault = "" if found == self.whole else f"differs: {differences(found, self.whole)}"
        left = [str(p.relative_to(out)) for p in out.rglob("*") if is_temporary(p)]
        if left:
            fault += f" left behind: {left}"
        if not fault:
            shutil.rmtree(out)
        return KillOutcome(self.command.name, seed, text, code == -signal.SIGKILL, fault)

    def _run(self, out: Path, words: Callable[[Path, Path], Sequence[object]]) -> None:
        out.mkdir()
        if run_command(words(self.place, out)) != 0:
            raise RuntimeError(f"{self.command.name} does not run at all.")

    def _fork(
        self, out: Path, words: Callable[[Path, Path], Sequence[object]], kind: str, last: int
    ) -> tuple[int, str]:
        out.mkdir()
        return in_a_fork(words(self.place, out), Moments(out, kind, last))


def is_temporary(path: Path) -> bool:
    """Return whether nobody but a running process should see a file or folder."""
    return path.name.endswith((".tmp", ".lock"))


def content_of(folder: Path) -> dict[str, bytes]:
    """Read the files below a folder, without times and the name of the folder."""
    import pyarrow.parquet

    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not is_temporary(path):
            content = path.read_bytes()
            if path.suffix == ".parquet":  # times and paths are compressed in it
                table = pyarrow.parquet.read_table(path)
                content = repr((table.schema.metadata, table.to_pydict())).encode()
            content = content.replace(str(folder).encode(), b"OUT")
            found[str(path.relative_to(folder))] = _TIMES.sub(b"TIME", content)
    return found


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> str:
    """Name the files that differ."""
    names = sorted(found.keys() | expected.keys())
    return ", ".join(name for name in names if found.get(name) != expected.get(name))
