"""Tables and figures of a cohort's study, of what is finished."""

from pathlib import Path

from sgpmil.evaluation.comparison.comparability import FoldPredictions
from sgpmil.evaluation.comparison.compare import compare
from sgpmil.evaluation.comparison.tables import write_comparison_tables
from sgpmil.experiments.cohorts.figures import write_figures
from sgpmil.experiments.cohorts.maps import try_maps
from sgpmil.experiments.cohorts.plan import CohortOptions, CohortPlan, plan_cohort
from sgpmil.experiments.cohorts.study import train_cohort
from sgpmil.experiments.cohorts.tables import StudyResults, fold_key, write_results
from sgpmil.report.figures.comparison_figures import write_comparison_figure
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run


def write_report(plan: CohortPlan, options: CohortOptions) -> list[Path]:
    """Write tables and figures; nothing where no fold is finished.

    Returns:
        The files written, ``results.md`` first.

    Raises:
        SettingsError: A slide that is to be shown is no test slide of the first fold.
    """
    results = StudyResults.read(plan)
    if not results.rows:
        return []
    maps, notes = try_maps(plan, options, results.rows) if options.maps else ([], [])
    files = write_results(plan.out, results, notes)
    return [*files, *write_figures(plan, results), *_write_comparison(plan, results), *maps]


def _write_comparison(plan: CohortPlan, results: StudyResults) -> list[Path]:
    """Write the tests that are corrected and adjusted, over the folds that all rows have."""
    common = set.intersection(*({*folds} for folds in results.measured.values()))
    if len(results.rows) < 2 or not common:
        return []
    runs = {
        row.name: _folds(plan, results, row.name) for row in (results.reference, *results.rows[:-1])
    }
    comparison = compare(runs)
    folder = plan.out / "comparison"
    files = list(write_comparison_tables(folder, comparison))
    if len(comparison.folds) > 1:
        files.append(write_comparison_figure(folder, comparison))
    return files


def _folds(plan: CohortPlan, results: StudyResults, name: str) -> list[FoldPredictions]:
    """Read the predictions of a row without its instances, which are measured already."""
    row = next(row for row in results.rows if row.name == name)
    found = []
    for run in plan.runs:
        path = run.path(plan.out)
        if run.row.name != name or not is_run(path):
            continue
        folds = Run.open(path).folds
        for fold in plan.folds:
            key = fold_key(run, fold, plan)
            measured = results.measured[row].get(key)
            if measured is None or not folds[fold].is_done:
                continue
            tested = folds[fold].load(with_validation=False, with_instances=False)
            metrics = measured.metrics_as(key)
            found.append(FoldPredictions(metrics, tested.test, tested.split))
    return found


def run_cohort(options: CohortOptions, *, show_progress: bool = False) -> dict[str, str]:
    """Train every model of the paper on a cohort, and write tables and figures.

    A stopped study resumes where it left off.

    Args:
        options: The cohort, its files and the models.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each job that failed.

    Raises:
        SgpmilError: The files cannot be used, or another process writes to the folder.
    """
    plan = plan_cohort(options)
    errors = train_cohort(plan, options, show_progress=show_progress)
    write_report(plan, options)
    return errors
