"""Page of a run: its options, summary, data and sections."""

import shlex
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from sgpmil.errors import SettingsError
from sgpmil.evaluation.assessment import Assessment, AssessmentOptions, assess
from sgpmil.evaluation.localisation.instance_evaluation import InstanceOptions
from sgpmil.evaluation.localisation.lesion_detection import LesionSettings
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.evaluation.uncertainty.error_detection import error_detection
from sgpmil.explanation.attention_posterior import attention_posteriors
from sgpmil.explanation.confidence import has_posterior, run_sets
from sgpmil.explanation.run_explanation import ExplainOptions, explain
from sgpmil.notebook import counted
from sgpmil.report.pages.blocks import Block, Check, CheckList, KeyFigure, Prose, Section, Table
from sgpmil.report.pages.checks import run_checks
from sgpmil.report.pages.performance import (
    calibration_section,
    error_section,
    fold_section,
    localisation_section,
    uncertainty_section,
)
from sgpmil.report.pages.provenance import (
    environment_section,
    prevalence_sentences,
    reproduction_section,
    settings_section,
)
from sgpmil.report.pages.rendering import write_page
from sgpmil.report.pages.slides import prototype_section, slide_list_section, slides_section
from sgpmil.report.pages.texts import format_number, format_range, metric_name
from sgpmil.runs.material import MaterialOptions, RunFacts, RunMaterial, run_facts


@dataclass(frozen=True, kw_only=True)
class ReportOptions(MaterialOptions):
    """Options of `write_report`.

    Args:
        out: Page to write; RUN/report.html by default.
        case: Slide to write a case report of (HTML and PDF); may be repeated.
        cases: Case reports of no slide or of all slides.
        bootstrap: Rounds of the confidence intervals, by patient; 0 for none.
        coverage: Share of slides whose prediction sets should contain the label.
        temperature_bias: Fit a bias of each class beside the temperature.
        seed: Seed of the bootstrap and of random attention.
        keep_seen: Measure slides that the model was trained on, too; they are left out else.
        overwrite: Replace an existing page and its case reports. A case report is added to a page
            without it.
    """

    out: Path | None = None
    case: tuple[str, ...] = ()
    cases: Literal["none", "all"] = "none"
    bootstrap: int = 1000
    coverage: float = 0.9
    temperature_bias: bool = False
    seed: int = 0
    keep_seen: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        MaterialOptions.__post_init__(self)
        if not 0 < self.coverage < 1:
            raise SettingsError(f"Expected `coverage` between 0 and 1, but got {self.coverage:g}.")
        if self.bootstrap < 0:
            raise SettingsError(f"Expected `bootstrap` of at least 0, but got {self.bootstrap}.")

    @property
    def shows_seen(self) -> bool:
        """Return whether slides that the model was trained on are measured, too."""
        return self.keep_seen

    @property
    def page(self) -> Path:
        """The page to write."""
        if self.out is not None:
            return self.out
        is_folder = self.run.is_dir()
        name = "report.html" if is_folder else f"{self.run.stem}-report.html"
        return (self.run if is_folder else self.run.parent) / name

    @property
    def command(self) -> str:
        """The command that writes the same page again."""
        words = ["sgpmil", "report", str(self.run)]
        defaults = {field.name: field.default for field in fields(self)}
        for name in _REPEATED:
            value = getattr(self, name)
            if value != defaults[name]:
                text = ",".join(value) if isinstance(value, tuple) else str(value)
                words += [f"--{name.replace('_', '-')}", *([] if value is True else [text])]
        return shlex.join([*words, "--overwrite"])


_REPEATED = (
    *("out", "slides", "annotations", "regions", "min_coverage", "mask_downsample"),
    *("features", "nuclei", "mpp", "bootstrap", "coverage", "temperature_bias", "seed"),
)
"""Options that decide the content of the page."""


@dataclass(frozen=True, slots=True)
class RunReport:
    """Content of the page of a run.

    Args:
        name: Name of the run.
        model: Name of the model; empty where unknown.
        trained: Date of the training; empty where unknown.
        written: Date of the page.
        summary: The run in a paragraph.
        figures: Numbers at the top.
        sections: Everything else.
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


def run_report(
    options: ReportOptions,
    material: RunMaterial | None = None,
    *,
    num_slides: int = 3,
) -> RunReport:
    """Gather the content of a run's page.

    Prototypes and limits of colours are read from the run's explanation folder, where
    ``sgpmil explain`` wrote them from the same predictions and settings.

    Args:
        options: The run, its slides, and the measurements.
        material: The run, where it is read already.
        num_slides: Most slides of each kind to show with maps.

    Raises:
        SgpmilError: The run cannot be measured: its classes differ between folds, or an option
            is impossible. The page itself names what single slides lack.
    """
    material = material or options.read_material()
    facts = run_facts(material)
    labelled = [fold for fold in material.folds if len(fold.test.labelled())]
    tests = [fold.test.labelled() for fold in labelled]
    assessment = _assessment(material, options) if labelled else None
    posteriors = attention_posteriors(material)
    checks = run_checks(material, facts, assessment, posteriors)
    posterior = has_posterior(material)
    sets = run_sets(material, options.coverage)
    shared = {field.name: getattr(options, field.name) for field in fields(MaterialOptions)}
    explanation = explain(ExplainOptions(**shared), material)
    sections = (
        Section("checks", "Checks", (checks,)),
        data_section(material, facts),
        *_measured(assessment, tests, prevalence_sentences(material)),
        localisation_section(assessment),
        prototype_section(explanation, posteriors.get(material.folds[0].name)),
        slides_section(explanation, num_slides),
        slide_list_section(material, sets, posterior),
        settings_section(material),
        environment_section(material),
        reproduction_section(material, options.command),
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
            rounds=options.bootstrap,
            coverage=options.coverage,
            temperature_bias=options.temperature_bias,
            seed=options.seed,
            instances=InstanceOptions(
                min_coverage=options.min_coverage,
                lesions=LesionSettings() if mpp is None else LesionSettings.camelyon16(mpp),
                seed=options.seed,
            ),
        ),
    )


def _measured(
    assessment: Assessment | None, tests: list[PredictionTable], prevalence: tuple[str, ...]
) -> tuple[Section, ...]:
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
        calibration_section(assessment, tests, prevalence),
        uncertainty_section(assessment, tests),
    )


_KEY = ("auc", "balanced_accuracy", "ece")


def run_summary(
    material: RunMaterial,
    facts: RunFacts,
    assessment: Assessment | None,
    checks: tuple[Check, ...],
) -> str:
    """Summarise the run in a paragraph, with its main numbers.

    Args:
        material: The run.
        facts: Counts and names of its data.
        assessment: The measurements; None where no slide has a label.
        checks: Checks of data and results.
    """
    model = material.model or ("The ensemble" if material.is_ensemble else "The model")
    slides = f"{counted(facts.num_slides, 'slide')} of {counted(facts.num_patients, 'patient')}"
    sentences = []
    if assessment is None:
        sentences.append(
            f"{model} predicted {slides}. None has a label, so nothing could be measured: shown "
            "are the predictions, how sure the model is of them, and where it looked."
        )
    else:
        num_folds = len(assessment.folds)
        how = f"in {num_folds} folds" if num_folds > 1 else "on one test set"
        sentences.append(f"{model} was tested {how} on {slides} ({_class_list(material, facts)}).")
        sentences.append(_main_numbers(assessment))
        pooled = pooled_table([fold.test for fold in material.folds])
        sentences.append(error_detection(pooled, "entropy").sentence)
        sentences += _set_sentences(assessment)
    if material.is_ensemble:
        sentences.append(
            "Several models, such as the folds of a run, predicted each slide together: "
            "probabilities are their means, and disagreement says how far they differ."
        )
    warnings = sum(check.mark == "warning" for check in checks)
    if warnings:
        ask = "asks" if warnings == 1 else "ask"
        sentences.append(f"{counted(warnings, 'check')} below {ask} to be looked into first.")
    else:
        sentences.append(
            f"None of {counted(len(checks), 'check')} below is a warning; each names what it "
            "looked at."
        )
    return " ".join(sentences)


def key_figures(assessment: Assessment) -> tuple[KeyFigure, ...]:
    """Return the numbers that are read first."""
    from scipy.stats import binomtest

    figures = []
    for metric in assessment.summary:
        if metric.name in _KEY:
            figures.append(
                KeyFigure(
                    metric_name(metric.name),
                    format_number(metric.mean),
                    _spread(assessment, metric.name),
                )
            )
    wrong = sum(fold.num_wrong for fold in assessment.uncertainty.folds)
    total = sum(fold.num_slides for fold in assessment.uncertainty.folds)
    ends = binomtest(total - wrong, total).proportion_ci()
    where = "all folds; " if len(assessment.folds) > 1 else ""
    detail = f"{where}95 % interval {ends.low:.0%}–{ends.high:.0%} of slides"
    figures.append(KeyFigure("Right predictions", f"{total - wrong} of {total}", detail))
    return tuple(figures)


def data_section(material: RunMaterial, facts: RunFacts) -> Section:
    """Summarise slides, patients, classes, bags and folds."""
    rows = [
        ("Test slides", f"{facts.num_slides:,}"),
        ("Patients", f"{facts.num_patients:,}"),
        *(
            (f"Class {name}", f"{count:,}")
            for name, count in zip(material.target.names, facts.class_counts, strict=True)
        ),
    ]
    if facts.num_unlabelled:
        rows.append(("Without a label", f"{facts.num_unlabelled:,}"))
    if facts.bag_sizes:
        sizes = sorted(facts.bag_sizes)
        middle = (
            sizes[len(sizes) // 2]
            if len(sizes) % 2
            else ((sizes[len(sizes) // 2 - 1] + sizes[len(sizes) // 2]) / 2)
        )
        rows.append(("Patches a slide", f"{sizes[0]:,} to {sizes[-1]:,}, median {middle:,.0f}"))
        rows.append(("Patches in all", f"{sum(sizes):,}"))
    if facts.encoders:
        rows.append(("Patch encoder", ", ".join(facts.encoders)))
    if material.bags is not None:
        rows.append(("Features a patch", f"{material.bags.feature_dim:,}"))
    rows.append(("Slide images given", f"{len(material.sources.files):,}"))
    blocks: list[Block] = [Table(("", ""), tuple(rows), "What was tested.", num_words=2)]
    if facts.splits:
        blocks.append(_fold_sizes(material, facts))
    return Section("data", "Data", tuple(blocks))


def _fold_sizes(material: RunMaterial, facts: RunFacts) -> Table:
    done = {fold.name for fold in material.folds}
    rows = tuple(
        (
            fold.name,
            "done" if fold.name in done else "NOT DONE",
            f"{len(fold.train):,}",
            f"{len(fold.val):,}",
            f"{len(fold.test):,}",
        )
        for fold in facts.splits
    )
    header = ("Fold", "State", "Training", "Validation", "Test")
    return Table(header, rows, "Slides of each fold.", num_words=2)


def _class_list(material: RunMaterial, facts: RunFacts) -> str:
    pairs = zip(material.target.names, facts.class_counts, strict=True)
    return ", ".join(f"{count:,} {name}" for name, count in pairs)


def _main_numbers(assessment: Assessment) -> str:
    means = {metric.name: metric for metric in assessment.summary}
    parts = [
        f"{METRICS[key].name} is {format_number(means[key].mean)} ({_spread(assessment, key)})"
        for key in ("auc", "balanced_accuracy")
    ]
    return f"The {parts[0]}, {parts[1]}."


def _spread(assessment: Assessment, name: str) -> str:
    metric = next(metric for metric in assessment.summary if metric.name == name)
    interval = "no interval"
    if assessment.overall is not None:
        found = assessment.overall.of(name)
        interval = f"{assessment.overall.level:.0%} interval {format_range(found.low, found.high)}"
    if len(assessment.folds) == 1:
        return interval
    num_folds = len(metric.values) - metric.num_undefined
    return f"mean of {num_folds} folds, SD {format_number(metric.sd)}; {interval}"


def _set_sentences(assessment: Assessment) -> tuple[str, ...]:
    from scipy.stats import binomtest

    if not assessment.uncertainty.pooled_sets:
        return ()
    first = assessment.uncertainty.pooled_sets[0]
    covered = int(first.class_covered.sum())
    ends = binomtest(covered, first.num_slides).proportion_ci()
    return (
        f"Prediction sets that promise {first.nominal:.0%} hold the label of {covered} of "
        f"{counted(first.num_slides, 'test slide')} ({first.coverage:.0%}, 95 % interval "
        f"{ends.low:.0%}–{ends.high:.0%}), with {first.mean_size:.2f} classes on average.",
    )
