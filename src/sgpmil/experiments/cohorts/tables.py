"""Tables of a cohort's study in the layout of the paper, with the paper's results beside them.

A star marks rows that SGPMIL is better than by the paper's test: a one-sided paired t-test across
folds, not adjusted for their number. ``comparison/`` has the tests that this package stands by,
which are corrected for training sets that overlap and adjusted (`sgpmil.evaluation.compare`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from sgpmil.bags.files import write_text
from sgpmil.bags.tables import sheet_text
from sgpmil.evaluation.comparison.significance import (
    PairedTest,
    better_alternative,
    paired_t_test,
)
from sgpmil.evaluation.comparison.tables import DASH, fixed, p_value
from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.summary import MetricSummary, summarise_values
from sgpmil.experiments.cohorts.cohort import Cohort, Row
from sgpmil.experiments.cohorts.measures import LOCALISED, Cost, MeasuredFold
from sgpmil.experiments.cohorts.plan import CohortPlan, StudyRun
from sgpmil.experiments.cohorts.published import PUBLISHED_INSTANCES, PUBLISHED_SLIDES
from sgpmil.experiments.cohorts.synthetic import SYNTHETIC
from sgpmil.notebook import counted

ALPHA = 0.05
_OTHER_PROTOCOL = (
    " The paper's figures in parentheses are of another measurement: all pixels of a slide, the "
    "background included, and the threshold that is best on the test slides."
)
_GIB = 2**30


def fold_key(run: StudyRun, fold: str, plan: CohortPlan) -> str:
    """Name a fold of a run within its row: by the fold, the seed, or both."""
    if len({one.seed for one in plan.runs}) == 1:
        return fold
    return f"seed{run.seed}" if len(plan.folds) == 1 else f"seed{run.seed}-{fold}"


@dataclass(frozen=True, slots=True, eq=False)
class StudyResults:
    """Measures of every finished fold of a study.

    Args:
        cohort: The cohort.
        measured: Measures by row and by the fold's name within it, rows in the order of the table.
        planned: Number of folds of each row.
        beside_paper: Whether the paper's results stand beside these; not on synthetic embeddings.
    """

    cohort: Cohort
    measured: Mapping[Row, Mapping[str, MeasuredFold]]
    planned: int
    beside_paper: bool = True

    @staticmethod
    def read(plan: CohortPlan) -> "StudyResults":
        """Read the measures of a study; rows without any are left out."""
        found: dict[Row, dict[str, MeasuredFold]] = {}
        names: dict[str, Row] = {}
        for run in plan.runs:
            row = names.setdefault(run.row.name, run.row)
            for fold in plan.folds:
                measured = MeasuredFold.read(run.measured(plan.out, fold))
                if measured is not None:
                    found.setdefault(row, {})[fold_key(run, fold, plan)] = measured
        runs_of_a_row = len(plan.runs) // max(1, len(names))
        is_real = SYNTHETIC not in plan.data.bags.encoders()
        return StudyResults(plan.cohort, found, len(plan.folds) * runs_of_a_row, is_real)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Rows with a finished fold, in the order of the table."""
        return tuple(self.measured)

    @property
    def reference(self) -> Row:
        """The row that others are compared with: the last, which is SGPMIL where it was trained."""
        return self.rows[-1]

    @property
    def has_instances(self) -> bool:
        """Return whether instances were measured in any row."""
        return any(one.localised for folds in self.measured.values() for one in folds.values())

    def values(self, row: Row, metric: str, *, localised: bool = False) -> dict[str, float]:
        """Return a metric of each finished fold of a row."""
        return {
            key: (one.localised if localised else one.slides).get(metric, math.nan)
            for key, one in self.measured[row].items()
        }

    def summary(self, row: Row, metric: str, *, localised: bool = False) -> MetricSummary:
        """Summarise a metric over the finished folds of a row."""
        values = self.values(row, metric, localised=localised)
        return summarise_values(metric, list(values.values()))

    def test(self, row: Row, metric: str, *, localised: bool = False) -> PairedTest | None:
        """Test whether the reference is better than a row, over the folds that both have."""
        if row == self.reference:
            return None
        ours = self.values(self.reference, metric, localised=localised)
        theirs = self.values(row, metric, localised=localised)
        common = [key for key in ours if key in theirs]
        alternative = better_alternative(metric)
        return paired_t_test([ours[k] for k in common], [theirs[k] for k in common], alternative)


def write_results(out: Path, results: StudyResults, notes: Sequence[str] = ()) -> list[Path]:
    """Write ``results.md`` and ``results.csv``.

    Raises:
        OSError: A file cannot be written.
    """
    markdown, table = out / "results.md", out / "results.csv"
    write_text(markdown, results_markdown(results, notes))
    write_text(table, results_csv(results))
    return [markdown, table]


def results_markdown(results: StudyResults, notes: Sequence[str] = ()) -> str:
    """Write the tables of slides, instances, p-values and costs."""
    cohort = results.cohort
    beside = ", and the paper's mean in parentheses" if results.beside_paper else ""
    parts = [
        f"# {cohort.title}"
        + ("" if results.beside_paper else ", rehearsed on synthetic embeddings"),
        f"Mean ± standard deviation over {counted_folds(results)}{beside}. "
        f"★: {results.reference.title} is better, one-sided paired t-test across folds, "
        f"p < {ALPHA:g}, as in the paper; comparison/ has corrected and adjusted tests. ACC is "
        "balanced accuracy.",
        "## Slides",
        _metric_table(results, cohort.metrics, localised=False),
        _p_values(results, cohort.metrics, localised=False),
    ]
    if results.has_instances:
        parts += [
            "## Instances",
            "Attention of each positive slide by itself, scaled to [0, 1]; the threshold of ACC is "
            "chosen on validation slides." + (_OTHER_PROTOCOL if results.beside_paper else ""),
            _metric_table(results, LOCALISED, localised=True),
            _p_values(results, LOCALISED, localised=True),
        ]
    parts += ["## Time and memory", _cost_table(results)]
    if notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def results_csv(results: StudyResults) -> str:
    """Write every number, a row a model and metric."""
    header = ("model", "level", "metric", "folds", "mean", "sd", "p_paired")
    rows = []
    for localised, metrics in ((False, results.cohort.metrics), (True, LOCALISED)):
        if localised and not results.has_instances:
            continue
        for row in results.rows:
            for i, metric in enumerate(metrics):
                found = results.summary(row, metric, localised=localised)
                test = results.test(row, metric, localised=localised)
                mean, sd = _published(results, row, i, localised=localised)
                p = math.nan if test is None else test.p_value
                num = len(found.values) - found.num_undefined
                rows.append(
                    (
                        *(row.name, "instances" if localised else "slides", metric, str(num)),
                        *(_exact(value) for value in (found.mean, found.sd, p, mean, sd)),
                        *_values_text(results, row, metric, localised=localised),
                    )
                )
    return sheet_text((*header, "paper_mean", "paper_sd", "values"), rows)


def metric_title(metric: str) -> str:
    """Return the name of a metric as the paper has it."""
    return "ACC" if metric == "balanced_accuracy" else get_metric(metric).short_name


def _values_text(
    results: StudyResults, row: Row, metric: str, *, localised: bool
) -> tuple[str, ...]:
    values = results.values(row, metric, localised=localised)
    return (" ".join(f"{key}={_exact(value)}" for key, value in values.items()),)


def counted_folds(results: StudyResults) -> str:
    """Return the number of folds, or seeds, of each row in words."""
    if len(results.cohort.seeds) > 1:
        return counted(results.planned, "seed")
    return counted(results.planned, "fold")


def metric_rows(
    results: StudyResults, metrics: Sequence[str], *, localised: bool = False
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return header and rows of the table of slides, or of instances.

    Args:
        results: Measures of the study.
        metrics: Keys of the metrics.
        localised: Whether the metrics are those of instances.
    """
    heads = [f"{metric_title(m)} {get_metric(m).arrow}".strip() for m in metrics]
    best = {m: _best(results, m, localised=localised) for m in metrics}
    rows = []
    for row in results.rows:
        cells = []
        for i, metric in enumerate(metrics):
            found = results.summary(row, metric, localised=localised)
            text = fixed(found.mean)
            if text != DASH and text == best[metric]:
                text = f"**{text}**"
            if not math.isnan(found.sd):
                text += f" ± {fixed(found.sd)}"
            test = results.test(row, metric, localised=localised)
            text += " ★" if test is not None and test.p_value < ALPHA else ""
            mean, _ = _published(results, row, i, localised=localised)
            cells.append(text + ("" if math.isnan(mean) else f" ({fixed(mean)})"))
        done = len(results.measured[row])
        rows.append((row.title, f"{done} of {results.planned}", *cells))
    return ("model", "finished", *heads), rows


def _metric_table(results: StudyResults, metrics: Sequence[str], *, localised: bool) -> str:
    header, rows = metric_rows(results, metrics, localised=localised)
    return "\n".join([_line(header), _line(["---"] * len(header)), *map(_line, rows)])


def _best(results: StudyResults, metric: str, *, localised: bool) -> str:
    means = [results.summary(row, metric, localised=localised).mean for row in results.rows]
    known = [mean for mean in means if not math.isnan(mean)]
    if not known:
        return ""
    return fixed(max(known) if get_metric(metric).better == "higher" else min(known))


def _p_values(results: StudyResults, metrics: Sequence[str], *, localised: bool) -> str:
    others = [row for row in results.rows if row != results.reference]
    if not others:
        return ""
    lines = [
        f"p-values of whether {results.reference.title} is better:",
        "",
        _line(("model", "folds", *(metric_title(m) for m in metrics))),
        _line(["---"] * (2 + len(metrics))),
    ]
    for row in others:
        tests = [results.test(row, metric, localised=localised) for metric in metrics]
        found = [test for test in tests if test is not None]
        num = max((test.num_folds for test in found), default=0)
        lines.append(_line((row.title, str(num), *(p_value(test.p_value) for test in found))))
    return "\n".join(lines)


def _cost_table(results: StudyResults) -> str:
    heads = ("model", "device", "epochs", "s a fold", "s in all", "GiB of GPU", "GiB of process")
    lines = [_line(heads), _line(["---"] * len(heads))]
    for row in results.rows:
        costs = [one.cost for one in results.measured[row].values() if one.cost is not None]
        if costs:
            lines.append(_line((row.title, *_cost_cells(costs))))
    lines += [
        "",
        "Medians over folds, and the largest memory. Processes ran side by side: the seconds of "
        "the rows add up to more than the study took.",
    ]
    return "\n".join(lines)


def _cost_cells(costs: Sequence[Cost]) -> tuple[str, ...]:
    seconds = [cost.seconds for cost in costs]
    return (
        ", ".join(sorted({cost.device for cost in costs})),
        f"{median(cost.epochs for cost in costs):g}",
        f"{median(seconds):.1f}",
        f"{sum(seconds):.0f}",
        f"{max(cost.gpu_bytes for cost in costs) / _GIB:.1f}",
        f"{max(cost.host_bytes for cost in costs) / _GIB:.1f}",
    )


def _published(
    results: StudyResults, row: Row, position: int, *, localised: bool
) -> tuple[float, float]:
    """Return the paper's mean and standard deviation; both rows of SGPMIL stand beside its own."""
    if not results.beside_paper:
        return math.nan, math.nan
    cohort = results.cohort
    name = "sgpmil" if row.model == "sgpmil" else row.name
    if localised:
        instances = PUBLISHED_INSTANCES.get(cohort.name, {}).get(name)
        return (math.nan, math.nan) if instances is None else (instances[position], math.nan)
    slides = PUBLISHED_SLIDES.get(cohort.name, {}).get(name)
    return (math.nan, math.nan) if slides is None else slides[position]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _exact(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))
