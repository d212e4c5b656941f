"""Table of a benchmark in the form of the SGPMIL paper's timing table, beside its figures.

The paper's seconds are of CAMELYON16 with one bag a step on a GPU that it does not name, with the
checks of automatic differentiation on; only their ratios compare. Memory is not in the paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.bags.tables import sheet_text

UNDEFINED = "–"


@dataclass(frozen=True)
class PaperTime:
    """A row of the paper's timing table.

    Args:
        train_seconds: Seconds of an epoch.
        predict_seconds: Seconds for the 129 slides of CAMELYON16's test set.
        millions: Trainable parameters in millions.
    """

    train_seconds: float
    predict_seconds: float
    millions: float


PAPER_TIMES: Mapping[str, PaperTime] = {
    "abmil": PaperTime(5.5, 0.8, 0.66),
    "clam-sb": PaperTime(7.0, 0.9, 0.92),
    "transmil": PaperTime(13.4, 1.2, 2.67),
    "dgrmil": PaperTime(16.7, 1.5, 4.34),
    "bayesmil": PaperTime(9.5, 1.1, 1.32),
    "mixmil": PaperTime(11.0, 1.5, 1.57),
    "agp": PaperTime(31.0, 6.0, 1.21),
    "sgpmil:paper": PaperTime(9.0, 1.0, 1.21),
}
"""The paper's table, by the names of our rows."""


@dataclass(frozen=True)
class BenchRow:
    """A model on the workload.

    Args:
        model: Its name.
        parameters: Number of its trainable parameters.
        train_seconds: Median seconds of an epoch.
        train_spread: Least and most seconds of an epoch.
        predict_seconds: Median seconds of predicting the test bags, without instance scores.
        train_bytes: Peak memory of training, recordings included, the bags themselves left out.
        predict_bytes: Peak memory of prediction, likewise.
        error: Reason that it could not be measured.
    """

    model: str
    parameters: int | None = None
    train_seconds: float | None = None
    train_spread: tuple[float, float] | None = None
    predict_seconds: float | None = None
    train_bytes: int | None = None
    predict_bytes: int | None = None
    error: str | None = None


HEADER = (
    *("model", "train s/epoch", "the paper's", "predict s", "the paper's"),
    *("parameters (M)", "the paper's", "GiB to train", "GiB to predict"),
)


def bench_cells(row: BenchRow) -> tuple[str, ...]:
    """Return the cells of a row, under `HEADER`."""
    if row.error is not None:
        return (row.model, row.error, *("" for _ in HEADER[2:]))
    paper = PAPER_TIMES.get(row.model)
    return (
        row.model,
        _number(row.train_seconds, ".3g"),
        _number(None if paper is None else paper.train_seconds, "g"),
        _number(row.predict_seconds, ".3g"),
        _number(None if paper is None else paper.predict_seconds, "g"),
        _number(None if row.parameters is None else row.parameters / 1e6, ".2f"),
        _number(None if paper is None else paper.millions, ".2f"),
        _number(None if row.train_bytes is None else row.train_bytes / 2**30, ".2f"),
        _number(None if row.predict_bytes is None else row.predict_bytes / 2**30, ".2f"),
    )


def write_bench_table(out: Path, rows: Sequence[BenchRow], about: str) -> tuple[Path, Path]:
    """Write ``bench.md`` and ``bench.csv``.

    Args:
        out: Folder to write to.
        rows: The rows.
        about: Sentence about machine and workload.

    Raises:
        OSError: A file cannot be written.
    """
    cells = [bench_cells(row) for row in rows]
    lines = ["# Time and memory", "", about, "", "| " + " | ".join(HEADER) + " |"]
    lines += ["|---" * len(HEADER) + "|", *("| " + " | ".join(row) + " |" for row in cells)]
    markdown, sheet = out / "bench.md", out / "bench.csv"
    write_text(markdown, "\n".join(lines) + "\n")
    write_text(sheet, sheet_text(_COLUMNS, [_plain(row) for row in rows]))
    return markdown, sheet


_COLUMNS = (
    *("model", "train_seconds", "paper_train_seconds", "predict_seconds", "paper_predict_seconds"),
    *("parameters", "paper_millions", "train_bytes", "predict_bytes", "error"),
)


def _plain(row: BenchRow) -> tuple[object, ...]:
    paper = PAPER_TIMES.get(row.model)
    values = (
        row.model,
        row.train_seconds,
        None if paper is None else paper.train_seconds,
        row.predict_seconds,
        None if paper is None else paper.predict_seconds,
        row.parameters,
        None if paper is None else paper.millions,
        row.train_bytes,
        row.predict_bytes,
        row.error,
    )
    return tuple("" if value is None else value for value in values)


def _number(value: float | None, form: str) -> str:
    return UNDEFINED if value is None else format(value, form)
