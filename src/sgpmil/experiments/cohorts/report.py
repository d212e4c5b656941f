"""Tables and figures of a cohort's study, of what is finished."""

from pathlib import Path

from sgpmil.experiments.cohorts.figures import write_figures
from sgpmil.experiments.cohorts.study import CohortOptions, CohortPlan
from sgpmil.experiments.cohorts.tables import StudyResults, write_results


def write_report(plan: CohortPlan, options: CohortOptions) -> list[Path]:
    """Write tables and figures; nothing where no fold is finished.

    Returns:
        The files written.
    """
    results = StudyResults.read(plan)
    if not results.rows:
        return []
    return [*write_results(plan.out, results), *write_figures(plan, results)]
