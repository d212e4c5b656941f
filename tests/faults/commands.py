"""Six commands that write, what they read, and what they leave: in forks that may be disturbed."""

import contextlib
import csv
import io
import json
import os
import re
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
_TIMES = re.compile(
    rb"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?([+-]\d\d:\d\d|Z| UTC)?|\d{14}(Z|\+00'00')?"
    rb"|/ID ?\[?\s*<[0-9A-Fa-f]+>\s*<[0-9A-Fa-f]+>"
)
"""What says when a file was written, the only thing that may differ."""


@dataclass(frozen=True)
class Written:
    """A command that writes: what it needs, how it begins, and how it is run again.

    Args:
        name: Name of the command.
        prepare: Writes what it reads into a folder.
        begin: Its arguments, of the folder it reads and the folder it writes.
        again: Its arguments after it was stopped.
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
    if run_command(_train(folder, folder)).code != 0:
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
    Written("train", write_features, _train, lambda a, b: _train(a, b, "--resume")),
    Written("extract", write_slides, _extract, _extract),
    Written(
        "pack",
        write_features,
        lambda a, b: ["pack", a / "features", b / "store", "--labels", a / "labels.csv"],
        lambda a, b: [
            *("pack", a / "features", b / "store", "--labels", a / "labels.csv"),
            "--overwrite",
        ],
    ),
    Written("explain", write_run, _explain, _explain),
    Written("report", write_run, _report, lambda a, b: _report(a, b, "--overwrite")),
    Written("predict", write_run, _predict, lambda a, b: _predict(a, b, "--overwrite")),
)


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Args:
        code: Its exit code, negative where a signal ended it.
        said: What it printed.
        counted: What the process counted at its end.
    """

    code: int
    said: str
    counted: tuple[int, ...] = ()


def run_command(words: Sequence[object]) -> Ended:
    """Run the command line in this process, and take what it prints."""
    from sgpmil.cli.main import run

    said = io.StringIO()
    code = 0
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        try:
            run([str(word) for word in words])
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Ended(code, said.getvalue())


def in_a_fork(
    words: Sequence[object],
    start: Callable[[], None] = lambda: None,
    count: Callable[[], Sequence[int]] = lambda: (),
) -> Ended:
    """Run a command in a fork of this process.

    Args:
        words: Arguments of the command.
        start: Called in the fork before it.
        count: Called in the fork after it; what it returns is handed back.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        code = 70
        try:
            start()
            ended = run_command(words)
            sys.setprofile(None)
            with open(writer, "w") as pipe:
                json.dump([ended.said, *count()], pipe)
            code = ended.code
        except BaseException as error:  # noqa: BLE001 (the parent is told)
            os.write(writer, json.dumps([f"{type(error).__name__}: {error}"]).encode())
        finally:
            os._exit(code)
    os.close(writer)
    with open(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    said, *counted = json.loads(text) if text else ("",)
    return Ended(os.waitstatus_to_exitcode(status), said, tuple(counted))


class Stand:
    """A command with what it reads, and a result that nobody disturbed.

    Args:
        command: The command.
        work: Folder to work in.
    """

    def __init__(self, command: Written, work: Path) -> None:
        self.command = command
        self.place = work / command.name
        command.prepare(self.place)
        self.whole: dict[str, bytes] = {}
        for name in ("warm", "whole"):  # the first run imports what the forks then share
            out = self.out(name)
            ended = run_command(command.begin(self.place, out))
            if ended.code != 0:
                raise RuntimeError(f"{command.name} does not run at all: {ended.said}")
            before, self.whole = self.whole, content_of(out)
        if before != self.whole:
            raise RuntimeError(f"Two runs differ: {differences(before, self.whole)}")

    def out(self, name: str) -> Path:
        """Make a folder to write to."""
        out = self.place / name
        out.mkdir()
        return out

    def fault_after_again(self, out: Path) -> str:
        """Run the command again, and say what is wrong then; empty where nothing is."""
        ended = in_a_fork(self.command.again(self.place, out))
        if ended.code != 0:
            return f"the next run ended with {ended.code}: {ended.said}"
        found = content_of(out)
        fault = "" if found == self.whole else f"differs: {differences(found, self.whole)}"
        left = [str(path.relative_to(out)) for path in out.rglob("*") if is_temporary(path)]
        return f"{fault} left behind: {left}" if left else fault


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
