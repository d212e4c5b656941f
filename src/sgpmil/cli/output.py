"""How commands print."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from sgpmil.evaluation.summary import MetricSummary

__all__ = ["console", "counting", "facts", "grid", "listed", "metric_name", "print_summary"]

console = Console(soft_wrap=True, markup=False, highlight=False)

_NAMES = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "auc": "AUC",
    "kappa": "quadratic kappa",
    "ace": "ACE",
    "ece": "ECE",
    "nll": "NLL",
    "brier": "Brier score",
    "average_precision": "average precision",
    "f1": "F1 score",
    "sensitivity_at_95_specificity": "sensitivity at spec. 0.95",
    "attention_auc": "instance AUC, attention",
    "evidence_auc": "instance AUC, evidence",
    "attention_ap": "instance AP, attention",
    "evidence_ap": "instance AP, evidence",
}


def metric_name(name: str) -> str:
    """Return a metric's name as it is read."""
    return _NAMES.get(name, name)


def print_summary(summary: Sequence[MetricSummary], title: str) -> None:
    """Print every metric with its mean, spread and folds."""
    means = {metric.name: metric.mean for metric in summary}
    if not math.isnan(means.get("auc", math.nan)):
        # Of several classes, none is the positive one: the metric is not missing, it has no sense.
        two_class = "sensitivity_at_95_specificity"
        summary = [m for m in summary if m.name != two_class or not math.isnan(m.mean)]
    num_folds = len(summary[0].values)
    table = Table(title=title, title_justify="left")
    table.add_column("metric")
    table.add_column("mean ± sd" if num_folds > 1 else "value", justify="right")
    if num_folds > 1:
        table.add_column("folds", justify="right")
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
    if math.isnan(means.get("evidence_auc", 0.0)) and not math.isnan(
        means.get("attention_auc", math.nan)
    ):
        console.print("The model gives no evidence, only attention.")
        undefined = [metric for metric in undefined if not metric.name.startswith("evidence")]
    for metric in undefined:
        console.print(
            f"{metric_name(metric.name)} is undefined in {metric.num_undefined} of {num_folds} "
            f"test sets ({_reason(metric.name)})."
        )


def facts(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print names and values as a table."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
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
        table.add_row(*row)
    console.print(table)


@contextmanager
def counting(text: str, total: int | None, unit: str = "slides") -> Iterator[Progress]:
    """Show a bar that counts; advance it with ``bar.advance(bar.task_ids[0])``."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(text, total=total)
        yield bar


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3f}"


def _reason(name: str) -> str:
    if name.startswith(("attention", "evidence")):
        return "no instance labels, or of one kind, there"
    if name == "sensitivity_at_95_specificity":
        return "it needs two classes, both with slides"
    return "a class has no slide there"
