"""The table of the study, to read and to go on with."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.evaluation.metrics import get_metric
from sgpmil.experiments.job_files import StudyPlan
from sgpmil.experiments.model_rows import METRICS, Spread, TableRow
from sgpmil.experiments.model_study import ADJUSTMENTS, MODEL_SETS, Adjustment

__all__ = ["COLUMNS", "cells", "write_table"]

COLUMNS = (
    "model",
    "runs",
    "bag AUC",
    "worst AUC",
    *(get_metric(key).name for key in METRICS[1:]),
    "s/epoch",
    "parameters",
    "failed",
)
UNDEFINED = "–"


def write_table(out: Path, rows: Sequence[TableRow]) -> tuple[Path, Path]:
    """Write ``table.md`` and ``table.csv``.

    Args:
        out: Folder of the results.
        rows: The rows.

    Raises:
        OSError: A file cannot be written.
    """
    markdown, table = out / "table.md", out / "table.csv"
    write_text(markdown, _markdown(rows, StudyPlan.read(out)))
    write_text(table, _csv(rows))
    return markdown, table


def cells(row: TableRow) -> tuple[str, ...]:
    """Return a row's cells, under `COLUMNS`."""
    auc = row.metrics["auc"]
    seconds = _number(row.seconds_per_epoch, 3)
    if seconds != UNDEFINED and not row.timed_alone:
        seconds = f"~{seconds}"
    return (
        row.model,
        str(row.runs) if row.runs == row.planned else f"{row.runs} of {row.planned}",
        _mean_sd(auc) + (" (at chance)" if row.at_chance else ""),
        _number(auc.worst),
        *(_mean_sd(row.metrics[name]) for name in METRICS[1:]),
        seconds,
        UNDEFINED if row.parameters is None else f"{row.parameters:,}",
        str(row.failed),
    )


def _markdown(rows: Sequence[TableRow], plan: StudyPlan) -> str:
    epochs = plan.conditions.get("epochs")
    lines = [
        "# Models on real data",
        "",
        "Mean ± standard deviation over the runs' test bags, every model with its own published "
        "training" + (f" but for the epochs (--epochs {epochs})." if epochs is not None else "."),
        "Runs are counted as finished, of those asked for. (at chance): within two standard "
        "errors of .5. Seconds with ~ are of processes that ran side by side.",
    ]
    for data_set in dict.fromkeys(row.data_set for row in rows):
        lines += ["", f"## {data_set}", ""]
        about = MODEL_SETS[data_set].about if data_set in MODEL_SETS else ""
        lines += [f"{about} {_asked(plan, data_set)}".strip(), ""]
        lines += ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
        lines += ["| " + " | ".join(cells(r)) + " |" for r in rows if r.data_set == data_set]
        changed = [a for a in ADJUSTMENTS if data_set in a.sets]
        if changed:
            lines += ["", "Not the models' own:", "", *(f"- {_described(a)}" for a in changed)]
    return "\n".join(lines) + "\n"


def _asked(plan: StudyPlan, data_set: str) -> str:
    """Say what was asked for of a data set: ``5 folds × 3 seeds.``."""
    names = [key.split("/")[2] for key in plan.jobs if key.startswith(f"{data_set}/")]
    folds, seeds = (len({name.rsplit("-", 1)[part] for name in names}) for part in (0, 1))
    return (
        " × ".join(
            f"{count} {word}{'s' if count != 1 else ''}"
            for count, word in ((folds, "fold"), (seeds, "seed"))
        )
        + "."
    )


def _described(adjustment: Adjustment) -> str:
    values = {**adjustment.settings, **adjustment.training}
    if adjustment.max_epochs is not None:
        values["epochs"] = f"at most {adjustment.max_epochs}"
    what = ", ".join(f"`{name}` {value}" for name, value in values.items())
    who = ", ".join(adjustment.models)
    if adjustment.without:
        who = f"all but {', '.join(adjustment.without)}"
    return f"{what}{f' ({who})' if who else ''}: {adjustment.reason}"


def _csv(rows: Sequence[TableRow]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        (
            *("data_set", "model", "runs", "planned", "failed", "at_chance", "auc_worst"),
            *(f"{name}_{part}" for name in METRICS for part in ("mean", "sd", "runs")),
            *("seconds_per_epoch", "timed_alone", "parameters"),
        )
    )
    for row in rows:
        spreads = [row.metrics[name] for name in METRICS]
        writer.writerow(
            (
                *(row.data_set, row.model, row.runs, row.planned, row.failed),
                *(int(row.at_chance), _plain(row.metrics["auc"].worst)),
                *(value for s in spreads for value in (_plain(s.mean), _plain(s.sd), s.count)),
                *(_plain(row.seconds_per_epoch), int(row.timed_alone)),
                "" if row.parameters is None else row.parameters,
            )
        )
    return text.getvalue()


def _plain(value: float) -> float | str:
    return "" if math.isnan(value) else value


def _number(value: float, digits: int = 3) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.{digits}f}"


def _mean_sd(spread: Spread) -> str:
    if math.isnan(spread.mean):
        return UNDEFINED
    return _number(spread.mean) + ("" if math.isnan(spread.sd) else f" ± {_number(spread.sd)}")
