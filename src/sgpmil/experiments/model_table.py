r"""Table of the model study: one row for each model and data set, from the files of the jobs.

A row is *at chance* when its mean area under the ROC curve is within two standard errors of .5.
The standard error is the larger of two: that of the mean over the runs, and that of the area of
scores which have nothing to do with the labels of the $n_1 + n_0$ distinct test bags,

$$ \sqrt{\frac{n_1 + n_0 + 1}{12\, n_1 n_0}}, $$

since runs that share folds or test bags are not independent of one another.
"""

import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.files import read_json, write_text
from sgpmil.bags.tables import SheetWriter
from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.experiments.jobs import StudyPlan, is_done, read_result
from sgpmil.experiments.model_study import ADJUSTMENTS, MODEL_SETS, TIMING_FILE, Adjustment

METRICS = (
    *("auc", "balanced_accuracy", "ace", "nll"),
    *(f"{kind}_auc" for kind in CLASS_SCORES),
)


@dataclass(frozen=True)
class Spread:
    """A metric over runs; NaN where it is not defined.

    Args:
        mean: Mean over the runs in which it is defined.
        sd: Sample standard deviation (dividing by n - 1) over them.
        worst: The smallest.
        count: Their number n.
    """

    mean: float
    sd: float
    worst: float
    count: int


@dataclass(frozen=True)
class TableRow:
    """A model on a data set.

    Args:
        data_set: Name of the data set.
        model: Name of the model.
        runs: Number of finished runs.
        planned: Number of runs asked for.
        failed: Number of runs that ended in an error.
        metrics: Each metric of `METRICS` over the runs' test bags.
        seconds_per_epoch: Median over the runs, or as timed alone.
        timed_alone: Whether no other process ran at the time.
        parameters: Number of trainable parameters.
        at_chance: Whether the bag AUC does not differ from chance.
    """

    data_set: str
    model: str
    runs: int
    planned: int
    failed: int
    metrics: Mapping[str, Spread]
    seconds_per_epoch: float
    timed_alone: bool
    parameters: int | None
    at_chance: bool


def read_rows(out: Path) -> list[TableRow]:
    """Read the results of every job that is planned for a folder."""
    groups: dict[tuple[str, str], list[str]] = {}
    for key in StudyPlan.read(out).jobs:
        data_set, model, _ = key.split("/")
        groups.setdefault((data_set, model), []).append(key)
    timing = _read_timing(out)
    order = [*MODEL_SETS, *sorted({data_set for data_set, _ in groups} - MODEL_SETS.keys())]
    return [
        _row(data_set, model, groups[data_set, model], out, timing.get(data_set, {}).get(model))
        for data_set, model in sorted(groups, key=lambda group: (order.index(group[0]), group[1]))
    ]


def spread_of(values: Iterable[float | None]) -> Spread:
    """Summarise a metric over runs, None where it is not defined.

    Example:
        >>> spread_of([0.5, None, 0.7]).count
        2
    """
    defined = [value for value in values if value is not None and not math.isnan(value)]
    return Spread(
        mean=statistics.fmean(defined) if defined else math.nan,
        sd=statistics.stdev(defined) if len(defined) > 1 else math.nan,
        worst=min(defined, default=math.nan),
        count=len(defined),
    )


def at_chance(auc: Spread, labels: Sequence[int]) -> bool:
    """Return whether an area under the ROC curve is within two standard errors of .5.

    Example:
        >>> at_chance(Spread(mean=0.55, sd=0.01, worst=0.54, count=3), [0, 1] * 50)
        True
    """
    if not auc.count:
        return False
    of_mean = auc.sd / math.sqrt(auc.count) if auc.count > 1 else 0.0
    positive = sum(label == 1 for label in labels)
    negative = sum(label == 0 for label in labels)
    of_chance = 0.0
    if positive and negative:
        of_chance = math.sqrt((positive + negative + 1) / (12 * positive * negative))
    return abs(auc.mean - 0.5) <= 2 * max(of_mean, of_chance)


def _row(
    data_set: str, model: str, keys: Sequence[str], out: Path, timed: float | None
) -> TableRow:
    found = [read_result(out / f"{key}.json") for key in keys]
    results = [result for result in found if result is not None]
    done = [result for result in results if is_done(result)]
    tests = [result["test"] for result in done]
    metrics = {name: spread_of(t["metrics"].get(name) for t in tests) for name in METRICS}
    labels = {s: y for t in tests for s, y in zip(t["slide_ids"], t["labels"], strict=True)}
    seconds = [r["seconds_per_epoch"] for r in done if r["seconds_per_epoch"] is not None]
    measured = statistics.median(seconds) if seconds else math.nan
    return TableRow(
        data_set=data_set,
        model=model,
        runs=len(done),
        planned=len(keys),
        failed=len(results) - len(done),
        metrics=metrics,
        seconds_per_epoch=measured if timed is None else timed,
        timed_alone=timed is not None,
        parameters=done[0]["parameters"] if done else None,
        at_chance=at_chance(metrics["auc"], list(labels.values())),
    )


def _read_timing(out: Path) -> dict[str, dict[str, float | None]]:
    try:
        content = read_json(out / TIMING_FILE)
        return {
            data_set: {model: found["seconds_per_epoch"] for model, found in models.items()}
            for data_set, models in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


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
        "training" + (f" but for the epochs, which are {epochs}." if epochs is not None else "."),
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
    """Describe the planned jobs of a data set: ``5 folds × 3 seeds.``."""
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
    writer = SheetWriter(text)
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
