r"""What the study found: a row a model and data set, from the files of the jobs alone.

A row is *at chance* when its mean area under the ROC curve is within two standard errors of .5.
The standard error is the larger of two: that of the mean over the runs, and that of the area of
scores which have nothing to do with the labels of the $n_1 + n_0$ distinct test bags,

$$ \sqrt{\frac{n_1 + n_0 + 1}{12\, n_1 n_0}}, $$

since runs that share folds or test bags are not independent of one another.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.experiments.job_files import StudyPlan, is_done, read_result
from sgpmil.experiments.model_study import MODEL_SETS

__all__ = ["METRICS", "TIMING_FILE", "Spread", "TableRow", "at_chance", "read_rows", "spread_of"]

TIMING_FILE = "timing.json"
METRICS = ("auc", "balanced_accuracy", "ace", "nll", "attention_auc", "evidence_auc")


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
        at_chance: Whether the bags are told apart no better than by chance.
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
    """Read the results of every job that a folder was asked for.

    Args:
        out: Folder of the results.
    """
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
    """Say whether an area under the ROC curve is within two standard errors of .5.

    Args:
        auc: The area over runs.
        labels: Classes of the distinct test bags, 0 or 1.

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
        content = json.loads((out / TIMING_FILE).read_text(encoding="utf-8"))
        return {
            data_set: {model: found["seconds_per_epoch"] for model, found in models.items()}
            for data_set, models in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
