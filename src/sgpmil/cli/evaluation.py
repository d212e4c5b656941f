"""`sgpmil evaluate` and `compare`: commands on predictions."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from sgpmil.cli.commands import command
from sgpmil.cli.output import console, grid, metric_name, print_summary, print_unfinished
from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.bootstrap import Intervals
from sgpmil.evaluation.comparison.result import Comparison
from sgpmil.evaluation.comparison.tables import delong_rows, fixed, p_value_rows, table_cell
from sgpmil.evaluation.headline import headline
from sgpmil.evaluation.localisation.lesion_detection import FALSE_POSITIVE_RATES, Froc, LesionRow
from sgpmil.evaluation.localisation.localisation import InstanceUncertaintyRow, LocalisationRow
from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.notebook import counted
from sgpmil.report.compare import CompareOptions, compare_runs
from sgpmil.report.evaluate import EvaluateOptions, Evaluation, evaluate_run

_INTERVALS = ("balanced_accuracy", "auc", "ace", "nll")
_DASH = "–"
_NAME_WIDTH = 19


@command(EvaluateOptions, arguments=["predictions"], lists=["regions", "order"])
def evaluate(options: EvaluateOptions) -> None:
    """Measure predictions.

    The measures are: accuracy, calibration, uncertainty and, with instance labels or annotations,
    localisation.

    Example: sgpmil evaluate runs/latest --out evaluation

    Example: sgpmil evaluate other_system.csv
    """
    found = evaluate_run(options)
    print_unfinished(found.results)
    unit = "patients" if options.patients else "slides"
    _print_headline(found, options, unit)
    if options.full:
        _print_assessment(found.assessment, str(options.predictions), unit)
    if options.out is not None:
        console.print(
            f"Written to {options.out}: {counted(len(found.tables), 'table')}, "
            f"{counted(len(found.figures), 'figure')} in figures/."
        )


@command(CompareOptions, arguments=["runs"])
def compare(options: CompareOptions) -> None:
    """Test whether one run is better than another.

    All runs must have the same test slides.

    Example: sgpmil compare runs/sgpmil runs/abmil --metric auc --metric nll
    """
    found = compare_runs(options)
    for name, results in found.results.items():
        print_unfinished(results, f"{name}: ")
    _print_comparison(found.comparison)
    for name, line in found.provenance.items():
        console.print(f"{name}: predicted by {line}.")
    console.print("Written to " + ", ".join(str(path) for path in found.files))


def _print_headline(found: Evaluation, options: EvaluateOptions, unit: str) -> None:
    """Print one line a fact, none longer than the terminal is wide."""
    assessment, width = found.assessment, console.width
    (_, measured), *lines = headline(assessment, found.tests, found.decisions, unit)
    if found.provenance is not None and found.provenance.line:
        lines.append(("predicted by", _origin(found.provenance, width - _NAME_WIDTH)))
    place = str(options.predictions)
    room = max(width - len(measured) - 2, 20)
    console.print(f"{place if len(place) <= room else '…' + place[1 - room :]}: {measured}")
    for name, text in lines:
        console.print(_clipped(f"{name:<{_NAME_WIDTH}}{text}", width))
    if assessment.overall is not None:
        console.print(
            f"[…]: {assessment.overall.level:.0%} intervals over patients, for the same models."
        )
    if not options.full:
        console.print(
            "Every number: --full."
            if found.results.run is None
            else "Every number: --full. Its slides: sgpmil report."
        )
    details = (
        *assessment.uncertainty.notes,
        *(assessment.instances.notes if assessment.instances else ()),
    )
    for note in dict.fromkeys(assessment.notes):
        if note not in details:
            console.print("\n".join(textwrap.wrap(note, width)))


def _origin(provenance: PredictionProvenance, width: int) -> str:
    """Return the provenance in one line, without the folder where it does not fit."""
    line = provenance.line
    return line if len(line) <= width else replace(provenance, source="").line


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _print_comparison(comparison: Comparison) -> None:
    rows = []
    for metric in comparison.metrics:
        row = [f"{get_metric(metric).name} {get_metric(metric).arrow}".strip()]
        for run in comparison.runs:
            cell = table_cell(comparison, run, metric)
            spread = f" ± {fixed(cell.sd)}" if len(comparison.folds) > 1 else ""
            row.append(f"{fixed(cell.mean)}{spread}{cell.mark}")
        rows.append(row)
    num = len(comparison.folds)
    grid(f"{num} folds" if num > 1 else "One fold", ["metric", *comparison.runs], rows)
    for verdict in comparison.verdicts:
        console.print(verdict)
    if comparison.tests:
        marks = [cell[-1] for row in rows for cell in row if cell[-1] in "★☆"]
        legend = [f"★: {comparison.reference} is better than this run"] * ("★" in marks)
        legend += [f"☆: this run is better than {comparison.reference}"] * ("☆" in marks)
        level = f"p < {comparison.alpha:g} ({comparison.marking}; each direction)."
        console.print(f"{', '.join(legend) or 'Significant'}, at {level}")
        adjusted = "; adjusted (Holm) in parentheses" if len(comparison.runs) > 2 else ""
        title = f"P values that {comparison.reference} is better, across folds{adjusted}"
        grid(title, *p_value_rows(comparison))
    if comparison.auc_tests:
        grid("DeLong's one-sided test of the AUC", *delong_rows(comparison))
    for note in comparison.notes:
        console.print(note)


def _print_assessment(assessment: Assessment, title: str, unit: str) -> None:
    num = sum(fold.slide.num_slides for fold in assessment.folds)
    print_summary(assessment.summary, f"{title}: {num:,} {unit}")
    _print_intervals(assessment)
    grid(
        f"Confusion, {unit} of each label (rows) and prediction (columns)",
        ["", *assessment.target.names],
        [
            [name, *(str(count) for count in row)]
            for name, row in zip(assessment.target.names, assessment.confusion, strict=True)
        ],
    )
    _print_brier(assessment)
    uncertainty = assessment.uncertainty
    grid(_errors(assessment, unit), uncertainty.measure_header, uncertainty.measure_grid)
    if uncertainty.calibration_rows:
        grid(
            "Temperature and prediction sets, fitted on validation slides",
            ["", "mean ± sd", "pooled"] if len(uncertainty.folds) > 1 else ["", ""],
            [
                row.texts[: 3 if len(uncertainty.folds) > 1 else 2]
                for row in uncertainty.calibration_rows
            ],
        )
    _print_instances(assessment)
    for note in dict.fromkeys(assessment.notes):
        console.print(note)


def _print_intervals(assessment: Assessment) -> None:
    known = [one for one in assessment.intervals if one is not None]
    if not known:
        return
    first = known[0]
    grid(
        f"{first.level:.0%} intervals, bootstrap over patients, {first.rounds:,} rounds",
        ["fold", "patients", *(metric_name(name) for name in _INTERVALS)],
        [
            [fold.fold, str(intervals.num_patients), *(_ends(intervals, n) for n in _INTERVALS)]
            for fold, intervals in zip(assessment.folds, assessment.intervals, strict=True)
            if intervals is not None
        ],
    )


def _ends(intervals: Intervals, name: str) -> str:
    found = intervals.of(name)
    if math.isnan(found.low):
        return _DASH
    return f"{found.low:.3f}–{found.high:.3f}"


def _errors(assessment: Assessment, unit: str) -> str:
    folds = assessment.uncertainty.folds
    wrong, num = sum(fold.num_wrong for fold in folds), sum(fold.num_slides for fold in folds)
    where = ""
    if len(folds) > 1:
        where = f", in {sum(fold.num_wrong > 0 for fold in folds)} of {len(folds)} folds"
    return f"Does the uncertainty find the errors? {wrong} of {num:,} {unit} are wrong{where}"


def _print_brier(assessment: Assessment) -> None:
    parts = assessment.brier

    def mean(name: str) -> float:
        return math.fsum(getattr(part, name) for part in parts) / len(parts)

    within = mean("within_bin_variance") - mean("within_bin_covariance")
    console.print(
        f"Brier score {mean('score'):.3f} = reliability {mean('reliability'):.3f} − resolution "
        f"{mean('resolution'):.3f} + uncertainty {mean('uncertainty'):.3f} "
        f"{'+' if within >= 0 else '−'} {abs(within):.3f} within bins"
    )


def _print_instances(assessment: Assessment) -> None:
    from sgpmil.evaluation.localisation.localisation import LOCALISATION_METRICS

    found = assessment.instances
    if found is None:
        return
    groups: dict[tuple[str, str], list[LocalisationRow]] = {}
    for row in found.localisation:
        groups.setdefault((row.score, row.scope), []).append(row)
    grid(
        "Instances (uniform and random attention are baselines)",
        ["score", "scope", *(m.short_name for m in LOCALISATION_METRICS.values()), "n"],
        [
            [
                score,
                scope.replace("_", " "),
                *(_mean([getattr(row, name) for row in rows]) for name in LOCALISATION_METRICS),
                f"{sum(row.num_instances for row in rows):,}",
            ]
            for (score, scope), rows in groups.items()
        ],
    )
    if any(math.isinf(row.threshold) for row in found.localisation if row.score in CLASS_SCORES):
        console.print(
            "For some scores, calling no instance positive was best on the validation slides."
        )
    for note in dict.fromkeys(row.note for row in found.localisation if row.note):
        console.print(note)
    grid(
        "Instances: does the spread of a score find wrong calls?",
        ["score", "scope", "std, AUROC", "nearness to threshold, AUROC"],
        [
            [score, scope.replace("_", " "), _mean(stds), _mean(margins)]
            for score, scope, stds, margins in _grouped(found.uncertainty)
        ],
    )
    if found.lesions:
        grid(
            "Lesions (CAMELYON16's FROC): sensitivity at false positives a slide, and their mean, "
            "over folds",
            ["score", *(f"{rate:g}" for rate in FALSE_POSITIVE_RATES), "mean", "lesions"],
            [
                [score, *(_mean(column) for column in columns), str(num_lesions)]
                for score, columns, num_lesions in _lesions_by_score(found.lesions)
            ],
        )
        for note in dict.fromkeys(row.note for row in found.lesions if row.note):
            console.print(note)
    if found.pixels:
        grid(
            "Pixels as published: the background counts, and the threshold is the best on test",
            ["fold", "score", "AUC", "balanced accuracy", "F1", "AUC among patches"],
            [
                [
                    row.fold,
                    row.score,
                    *(_number(v) for v in (row.auc, row.balanced_accuracy, row.f1, row.tissue_auc)),
                ]
                for row in found.pixels
            ],
        )
        for note in dict.fromkeys(row.note for row in found.pixels if row.note):
            console.print(note)


def _lesions_by_score(rows: Sequence[LesionRow]) -> list[tuple[str, list[list[float]], int]]:
    """Return the sensitivities and their mean by fold, and the number of lesions, of each score."""
    groups: dict[str, list[Froc]] = {}
    for row in rows:
        if row.froc is not None:
            groups.setdefault(row.score, []).append(row.froc)
    return [
        (
            score,
            [
                *map(list, zip(*(froc.sensitivities for froc in frocs), strict=True)),
                [froc.mean for froc in frocs],
            ],
            sum(froc.num_lesions for froc in frocs),
        )
        for score, frocs in groups.items()
    ]


def _grouped(
    rows: Sequence[InstanceUncertaintyRow],
) -> list[tuple[str, str, list[float], list[float]]]:
    groups: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for row in rows:
        stds, margins = groups.setdefault((row.score, row.scope), ([], []))
        stds.append(row.std_auroc)
        margins.append(row.margin_auroc)
    return [(score, scope, *numbers) for (score, scope), numbers in groups.items()]


def _mean(values: Sequence[float]) -> str:
    defined = [value for value in values if not math.isnan(value)]
    return _number(math.fsum(defined) / len(defined)) if defined else _DASH


def _number(value: float) -> str:
    return _DASH if math.isnan(value) else f"{value:.3f}"
