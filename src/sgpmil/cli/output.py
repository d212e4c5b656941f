"""Printed tables, facts and summaries."""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction import CLASS_SCORES, SCORES
from sgpmil.evaluation.summary import MetricSummary
from sgpmil.models import BUILT_IN
from sgpmil.options import as_flags
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.results import Results
from sgpmil.terminal import HarmlessConsole

MODEL_NAMES = f"{', '.join(BUILT_IN)}, or a plug-in's"
"""Names of the models of this package."""


class _ShellConsole(HarmlessConsole):
    """A console that names options as flags."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(as_flags(one) if isinstance(one, str) else one for one in objects), **how)


console = _ShellConsole(soft_wrap=True, markup=False, highlight=False)


def metric_name(name: str) -> str:
    """Return the name of a metric in words."""
    return METRICS[name].name


def print_summary(summary: Sequence[MetricSummary], title: str) -> None:
    """Print every metric with its mean, spread and folds."""
    means = {metric.name: metric.mean for metric in summary}
    if not math.isnan(means.get("auc", math.nan)):
        # Of several classes none is the positive one, and few have an order: a metric of these is
        # not missing, it has no sense.
        summary = [m for m in summary if METRICS[m.name].is_for_all or not math.isnan(m.mean)]
    num_folds = len(summary[0].values)
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("mean ± sd" if num_folds > 1 else "value", justify="right")
    if num_folds > 1:
        # Up to five folds fit into 80 columns where the names of metrics are folded.
        table.add_column("folds", justify="right", no_wrap=num_folds <= 5)
    for metric in summary:
        value = _number(metric.mean)
        if num_folds > 1:
            value += f" ± {_number(metric.sd)}"
        row = [metric_name(metric.name), value]
        if num_folds > 1:
            row.append(" ".join(_number(v) for v in metric.values))
        table.add_row(*row)
    console.print(table)
    undefined = [metric for metric in summary if metric.num_undefined]
    if not math.isnan(means.get("attention_auc", math.nan)):
        missing = [k for k in CLASS_SCORES if math.isnan(means.get(f"{k}_auc", 0.0))]
        for kind in missing:
            console.print(f"There is no score '{kind}'. {SCORES[kind].when_missing}")
        undefined = [m for m in undefined if m.name.rpartition("_")[0] not in missing]
    for metric in undefined:
        console.print(
            f"{metric_name(metric.name)} is undefined in {metric.num_undefined} of {num_folds} "
            f"test sets (it needs {METRICS[metric.name].needs})."
        )


def print_unfinished(found: Results | RunMaterial, name: str = "") -> None:
    """Print how many folds of a run are not done."""
    if found.unfinished:
        total = len(found.folds) + len(found.unfinished)
        console.print(f"{name}{len(found.unfinished)} of {total} folds are not done.")


def facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values as a table."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, as_flags(value))
    console.print(table)


def listed(names: Sequence[str]) -> str:
    """Return the first five names."""
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def grid(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header."""
    table = Table(title=title, title_justify="left")
    for number, name in enumerate(header):
        # In a narrow terminal nothing is cut off: long cells are folded, names stay whole.
        table.add_column(name, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*map(as_flags, row))
    console.print(table)


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}"
