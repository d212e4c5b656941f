"""A run becomes one page that carries everything within itself."""

import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sgpmil.evaluation.assessment import Assessment, AssessmentOptions, assess
from sgpmil.evaluation.localisation.instance_evaluation import InstanceOptions
from sgpmil.evaluation.localisation.lesion_detection import LesionSettings
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.report.pages.blocks import CheckList, KeyFigure, Prose, Section
from sgpmil.report.pages.checks import has_posterior, run_checks
from sgpmil.report.pages.localisation import localisation_section
from sgpmil.report.pages.performance import calibration_section, error_section, fold_section
from sgpmil.report.pages.prediction_sets import run_sets
from sgpmil.report.pages.prototypes import prototype_section
from sgpmil.report.pages.provenance import (
    environment_section,
    reproduction_section,
    settings_section,
)
from sgpmil.report.pages.rendering import write_page
from sgpmil.report.pages.shown_slides import slide_list_section, slides_section
from sgpmil.report.pages.summary import data_section, key_figures, run_summary
from sgpmil.report.pages.uncertainty import uncertainty_section
from sgpmil.runs.material import RunMaterial, run_facts

__all__ = ["ReportOptions", "RunReport", "run_report", "write_run_report"]


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """How a run is reported.

    Args:
        rounds: Rounds of the bootstrap; 0 leaves the intervals out.
        coverage: Share of slides that prediction sets promise to cover.
        min_coverage: Least share of a patch in annotated regions to be positive.
        seed: Seed of the bootstrap and of random attention.
        num_slides: Most slides of each kind to show with maps.
        cases: Slides that have a case report beside the page.
        command: The command that makes the page.
    """

    rounds: int = 1000
    coverage: float = 0.9
    min_coverage: float = 0.5
    seed: int = 0
    num_slides: int = 3
    cases: frozenset[str] = frozenset()
    command: str = ""


@dataclass(frozen=True, slots=True)
class RunReport:
    """What the page of a run says.

    Args:
        name: Name of the run.
        model: Name of the model; empty where that is not known.
        trained: When it was trained; empty where that is not known.
        written: When the page was made.
        summary: The run in a paragraph.
        figures: Numbers that are read first.
        sections: The rest.
    """

    name: str
    model: str
    trained: str
    written: str
    summary: str
    figures: tuple[KeyFigure, ...]
    sections: tuple[Section, ...]

    @property
    def num_warnings(self) -> int:
        """Number of checks that are warnings."""
        return sum(
            check.mark == "warning"
            for section in self.sections
            for block in section.blocks
            if isinstance(block, CheckList)
            for check in block.checks
        )


def run_report(material: RunMaterial, options: ReportOptions | None = None) -> RunReport:
    """Gather everything that the page of a run says.

    Args:
        material: The run.
        options: How to report it.

    Raises:
        SgpmilError: The run cannot be measured: its classes differ between folds, or an option
            is impossible. What single slides lack is said on the page instead.
    """
    chosen = options or ReportOptions()
    facts = run_facts(material)
    labelled = [fold for fold in material.folds if len(fold.test.labelled())]
    tests = [fold.test.labelled() for fold in labelled]
    assessment = _assessment(material, chosen) if labelled else None
    checks = run_checks(material, facts, assessment)
    posterior = has_posterior(material)
    sets = run_sets(material, chosen.coverage)
    command = chosen.command or f"sgpmil report {shlex.quote(str(material.path))}"
    sections = (
        Section("checks", "Checks", (checks,)),
        data_section(material, facts),
        *_measured(assessment, tests),
        localisation_section(assessment),
        prototype_section(material),
        slides_section(material, chosen.num_slides, chosen.cases),
        slide_list_section(material, sets, posterior, chosen.cases),
        settings_section(material),
        environment_section(material),
        reproduction_section(material, command),
    )
    return RunReport(
        name=material.path.resolve().name,
        model=material.model,
        trained="" if material.run is None else (material.run.provenance.created or "")[:10],
        written=datetime.now(UTC).strftime("%Y-%m-%d"),
        summary=run_summary(material, facts, assessment, checks.checks),
        figures=() if assessment is None else key_figures(assessment),
        sections=sections,
    )


def write_run_report(path: Path, report: RunReport, *, overwrite: bool = False) -> None:
    """Write the page of a run, whole or not at all.

    Args:
        path: File to write.
        report: What it says.
        overwrite: Replace a file that is there.

    Raises:
        RunFolderError: There is a file already.
    """
    write_page(path, "run_report.html.j2", {"report": report}, overwrite=overwrite)


def _assessment(material: RunMaterial, options: ReportOptions) -> Assessment:
    mpp = material.sources.mpp
    return assess(
        [fold for fold in material.folds if len(fold.test.labelled())],
        material.sources.annotations,
        AssessmentOptions(
            rounds=options.rounds,
            coverage=options.coverage,
            seed=options.seed,
            instances=InstanceOptions(
                min_coverage=options.min_coverage,
                lesions=LesionSettings() if mpp is None else LesionSettings.camelyon16(mpp),
                seed=options.seed,
            ),
        ),
    )


def _measured(assessment: Assessment | None, tests: list[PredictionTable]) -> tuple[Section, ...]:
    if assessment is None:
        missing = Prose(
            "No slide has a label, so there are no metrics, curves or confusion matrix. Predict "
            "with labels (sgpmil predict … --labels) to see them.",
            "note",
        )
        return (Section("folds", "Results of the folds", (missing,)),)
    return (
        fold_section(assessment),
        error_section(assessment, tests),
        calibration_section(assessment, tests),
        uncertainty_section(assessment, tests),
    )
