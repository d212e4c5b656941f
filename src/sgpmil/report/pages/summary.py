"""The run in a paragraph, and the numbers that are read first."""

import math

from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.metrics import METRICS
from sgpmil.report.pages.blocks import Block, Check, KeyFigure, Section, Table
from sgpmil.report.pages.number_texts import counted, metric_name, told, told_range
from sgpmil.runs.material import RunFacts, RunMaterial

__all__ = ["data_section", "key_figures", "run_summary"]

_KEY = ("auc", "balanced_accuracy", "ece")


def run_summary(
    material: RunMaterial,
    facts: RunFacts,
    assessment: Assessment | None,
    checks: tuple[Check, ...],
) -> str:
    """Tell the run in a paragraph, with its main numbers.

    Args:
        material: The run.
        facts: What is known of its data.
        assessment: What was measured; None where no slide has a label.
        checks: What was looked at.
    """
    model = material.model or "The model"
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
        wrong = sum(fold.num_wrong for fold in assessment.uncertainty.folds)
        total = sum(fold.num_slides for fold in assessment.uncertainty.folds)
        are = "is" if total == 1 else "are"
        sentences.append(f"{total - wrong} of {counted(total, 'prediction')} {are} right.")
        sentences += _uncertainty_sentences(assessment)
    warnings = sum(check.mark == "warning" for check in checks)
    if warnings:
        ask = "asks" if warnings == 1 else "ask"
        sentences.append(f"{counted(warnings, 'check')} below {ask} to be looked into first.")
    else:
        sentences.append("No check below found anything amiss.")
    return " ".join(sentences)


def key_figures(assessment: Assessment) -> tuple[KeyFigure, ...]:
    """Give the numbers that are read first.

    Args:
        assessment: What was measured.
    """
    figures = []
    for metric in assessment.summary:
        if metric.name in _KEY:
            figures.append(
                KeyFigure(
                    metric_name(metric.name), told(metric.mean), _spread(assessment, metric.name)
                )
            )
    wrong = sum(fold.num_wrong for fold in assessment.uncertainty.folds)
    total = sum(fold.num_slides for fold in assessment.uncertainty.folds)
    figures.append(KeyFigure("Right predictions", f"{total - wrong} of {total}", "all folds"))
    return tuple(figures)


def data_section(material: RunMaterial, facts: RunFacts) -> Section:
    """Tell slides, patients, classes, bags and folds.

    Args:
        material: The run.
        facts: What is known of its data.
    """
    rows = [
        ("Test slides", f"{facts.num_slides:,}"),
        ("Patients", f"{facts.num_patients:,}"),
        *(
            (f"Class {name}", f"{count:,}")
            for name, count in zip(material.class_names, facts.class_counts, strict=True)
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
    header = ("Fold", "", "Training", "Validation", "Test")
    return Table(header, rows, "Slides of each fold.", num_words=2)


def _class_list(material: RunMaterial, facts: RunFacts) -> str:
    pairs = zip(material.class_names, facts.class_counts, strict=True)
    return ", ".join(f"{count:,} {name}" for name, count in pairs)


def _main_numbers(assessment: Assessment) -> str:
    means = {metric.name: metric for metric in assessment.summary}
    parts = [
        f"{METRICS[key].name} is {told(means[key].mean)} ({_spread(assessment, key)})"
        for key in ("auc", "balanced_accuracy")
    ]
    return f"The {parts[0]}, {parts[1]}."


def _spread(assessment: Assessment, name: str) -> str:
    metric = next(metric for metric in assessment.summary if metric.name == name)
    known = [one.of(name) for one in assessment.intervals if one is not None]
    ends = [(one.low, one.high) for one in known if not math.isnan(one.low)]
    level = next((one.level for one in assessment.intervals if one is not None), 0.95)
    if len(assessment.folds) == 1:
        return f"{level:.0%} interval {told_range(*ends[0])}" if ends else "no interval"
    text = f"mean of {len(metric.values) - metric.num_undefined} folds, SD {told(metric.sd)}"
    if ends:
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        text += f"; {level:.0%} intervals of the folds within {told_range(low, high)}"
    return text


def _uncertainty_sentences(assessment: Assessment) -> list[str]:
    sentences = []
    areas = {
        one.measure: one.error_auroc
        for one in assessment.uncertainty.pooled
        if not math.isnan(one.error_auroc)
    }
    if "entropy" in areas:
        sentences.append(
            f"Wrong predictions are less certain than right ones {areas['entropy']:.0%} of the "
            "time (entropy)."
        )
    sets = assessment.uncertainty.pooled_sets
    if sets:
        first = sets[0]
        sentences.append(
            f"Prediction sets that promise {first.nominal:.0%} hold the label of "
            f"{first.coverage:.1%} of test slides, with {first.mean_size:.2f} classes on average."
        )
    return sentences
