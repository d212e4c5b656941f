"""Checks of the data and the results of a run."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType

import numpy as np

from sgpmil.bags.feature_origin import other_features_sentence
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.splits import unused_slides, unused_text
from sgpmil.bags.tables import listed
from sgpmil.evaluation.assessment import Assessment
from sgpmil.evaluation.calibration import calibrated_ece, expected_calibration_error
from sgpmil.evaluation.novelty_warning import is_unlike, most_unlike, unlike_level
from sgpmil.evaluation.uncertainty.analysis import pooled_table
from sgpmil.evaluation.uncertainty.error_detection import error_detection
from sgpmil.explanation.confidence import has_posterior
from sgpmil.explanation.map_layers import num_without_score
from sgpmil.models.process_use import ProcessUse
from sgpmil.notebook import counted
from sgpmil.options import as_flags
from sgpmil.report.pages.blocks import Check, CheckList
from sgpmil.report.pages.texts import format_number, format_range
from sgpmil.runs.material import RunFacts, RunMaterial

_FEW_OF_A_CLASS = 10
_SMALL_SHARE = 0.1
_FEW_SLIDES = 20
_LARGE_ECE = 0.1
_CHANCE = 0.5
"""Error AUROC of an uncertainty that knows nothing of errors."""
_RARE = 0.05
"""Probability below which so many slides are not unlike by chance."""
_ZERO = 1e-9
"""Differences of equal scores are of rounding size."""
_ORDER = ("warning", "note", "pass")


def run_checks(
    material: RunMaterial,
    facts: RunFacts,
    assessment: Assessment | None,
    posteriors: Mapping[str, ProcessUse] = MappingProxyType({}),
) -> CheckList:
    """Look at what often goes wrong; warnings come first.

    Args:
        material: The run.
        facts: Counts and names of its data.
        assessment: The measurements; None where no slide has a label.
        posteriors: Posterior of the attention against its prior, of the folds where it is known.
    """
    checks = (
        *_finished(material),
        *_unused(material, facts),
        *_patients(material, facts),
        _test_sets(material, facts),
        _names(material),
        _labels(material, facts),
        *(() if assessment is None else _numbers(assessment)),
        *(() if assessment is None else _probabilities(material)),
        _validation(material),
        _posterior(material, posteriors),
        *_ensemble(material),
        *_instances(material),
        _embeddings(material, facts),
        *_encoder(facts),
        *_like_training(material),
        *_slides(material, facts),
    )
    return CheckList(tuple(sorted(checks, key=lambda check: _ORDER.index(check.mark))))


def _finished(material: RunMaterial) -> Iterator[Check]:
    if material.unfinished:
        yield Check(
            "warning",
            "Folds",
            f"{counted(len(material.unfinished), 'fold')} not done ({listed(material.unfinished)}):"
            f" this report covers the other {len(material.folds)}. Finish it with sgpmil train "
            "… --resume.",
        )
    elif material.run:
        yield Check("pass", "Folds", _done(len(material.folds)))


def _done(num_folds: int) -> str:
    return f"All {num_folds} folds are done." if num_folds > 1 else "The only fold is done."


def _unused(material: RunMaterial, facts: RunFacts) -> Iterator[Check]:
    if material.run is None or not (facts.splits and material.run.slides):
        return
    unused = unused_slides(facts.splits, tuple(material.run.slides))
    if unused:
        yield Check("warning", "Unused slides", unused_text(unused, len(facts.splits)))
    else:
        yield Check("pass", "Unused slides", "Every slide of the data is in each fold.")


def _patients(material: RunMaterial, facts: RunFacts) -> Iterator[Check]:
    title = "Patients in training and test"
    seen = sum(p.seen == "train" for _, p in material.predictions())
    if seen:
        yield Check(
            "warning",
            title,
            f"The model was trained on {counted(seen, 'slide')} of {facts.num_slides:,} that are "
            "measured here: the numbers are too good.",
        )
        return
    origin = material.provenance
    if material.run is None and origin is not None and origin.train:
        chosen = sum(p.seen == "validation" for _, p in material.predictions())
        text = (
            f"None of {counted(facts.num_slides, 'slide')} has the features of one of the "
            f"{counted(len(origin.train), 'slide')} that were trained on."
        )
        if chosen:
            text += f" {chosen} of them validated the training."
        yield Check("note" if chosen else "pass", title, text)
        return
    if not facts.splits:
        yield Check(
            "note",
            title,
            "It is not known which slides the model was trained on, so a patient in both training "
            "and test would not be seen here.",
        )
        return
    done = {fold.name for fold in material.folds}
    leaks: dict[str, list[str]] = {}
    unknown: set[str] = set()
    for fold in facts.splits:
        if fold.name not in done:
            continue
        tested = {facts.patients.get(slide, slide) for slide in map(clean_slide_id, fold.test)}
        learned = [clean_slide_id(slide) for slide in (*fold.train, *fold.val)]
        unknown |= {slide for slide in learned if slide not in facts.patients}
        shared = {facts.patients.get(slide, slide) for slide in learned} & tested
        if shared:
            leaks[fold.name] = sorted(shared)
    if leaks:
        names = sorted({patient for shared in leaks.values() for patient in shared})
        yield Check(
            "warning",
            title,
            f"{counted(len(names), 'patient')} with slides in training or validation and in test, "
            f"in {counted(len(leaks), 'fold')}: {listed(names)}. The numbers are too good; split "
            "by patient.",
        )
    elif unknown:
        yield Check(
            "note",
            title,
            f"No patient is known to be in both, but the patients of "
            f"{counted(len(unknown), 'training slide')} are not known.",
        )
    elif facts.num_patients == facts.num_slides > 1:
        yield Check(
            "note",
            title,
            f"No patient has slides in both, but the labels name a different patient for each "
            f"of {counted(facts.num_slides, 'slide')}. Two slides of one patient would not be seen "
            "unless the labels say so (case_id).",
        )
    else:
        yield Check(
            "pass",
            title,
            f"None of {counted(facts.num_patients, 'patient')} has slides in both, as far as the "
            "labels name patients.",
        )


def _test_sets(material: RunMaterial, facts: RunFacts) -> Check:
    title = "Test sets"
    several = [slide for slide, count in facts.tested.items() if count > 1]
    if several:
        return Check(
            "note",
            title,
            f"{counted(len(several), 'slide')} in the test sets of several folds: the spread over "
            "folds understates that over new slides.",
        )
    if len(material.folds) == 1:
        return Check("pass", title, f"One test set of {counted(facts.num_slides, 'slide')}.")
    return Check("pass", title, f"Each of {facts.num_slides:,} slides is in one test set.")


def _names(material: RunMaterial) -> Check:
    names = Counter(clean_slide_id(slide).casefold() for slide in material.slide_ids)
    alike = [name for name, count in names.items() if count > 1]
    if alike:
        return Check(
            "warning",
            "Names of slides",
            f"{counted(len(alike), 'name')} used for slides that differ only in capitals or a "
            f"file suffix: {listed(alike)}. They may be the same slide.",
        )
    return Check(
        "pass",
        "Names of slides",
        f"No two of {counted(len(names), 'name')} differ only in capitals or a file suffix.",
    )


def _labels(material: RunMaterial, facts: RunFacts) -> Check:
    title = "Labels"
    if not sum(facts.class_counts):
        return Check("note", title, "No slide has a label: nothing can be measured.")
    missing = (
        f" {counted(facts.num_unlabelled, 'slide')} without a label left out of all numbers."
        if facts.num_unlabelled
        else ""
    )
    total = sum(facts.class_counts)
    few = [
        f"{name} ({count})"
        for name, count in zip(material.target.names, facts.class_counts, strict=True)
        if count < _FEW_OF_A_CLASS or count < _SMALL_SHARE * total
    ]
    if few:
        return Check(
            "warning",
            title,
            f"Few slides of {listed(few)}, of {total}: numbers of that class are unsure, and "
            f"accuracy says little.{missing}",
        )
    return Check(
        "note" if missing else "pass",
        title,
        f"The rarest class has {min(facts.class_counts)} of {counted(total, 'slide')}; the check "
        f"asks for {_FEW_OF_A_CLASS} slides and {_SMALL_SHARE:.0%}.{missing}",
    )


def _numbers(assessment: Assessment) -> Iterator[Check]:
    areas = [fold.slide.auc for fold in assessment.folds]
    perfect = [area for area in areas if area >= 0.9995]
    if len(perfect) == len(areas):
        yield Check(
            "warning",
            "Perfect ranking",
            f"AUC is 1.000 in {'every fold' if len(areas) > 1 else 'the test set'}. Easy data can "
            "do that; so can a leak: a scanner, a stain or a pen mark that goes with the label.",
        )
    elif perfect:
        yield Check(
            "note", "Perfect ranking", f"AUC is 1.000 in {len(perfect)} of {len(areas)} folds."
        )
    else:
        yield Check(
            "pass",
            "Perfect ranking",
            "The AUC is below 1.000 in "
            f"{f'each of {len(areas)} folds' if len(areas) > 1 else 'the test set'}.",
        )
    undefined = sum(math.isnan(area) for area in areas)
    if undefined:
        yield Check(
            "warning",
            "Classes in the test sets",
            f"AUC is undefined in {counted(undefined, 'fold')}: a class has no slide there.",
        )
    smallest = min(fold.slide.num_slides for fold in assessment.folds)
    if smallest < _FEW_SLIDES:
        yield Check(
            "note",
            "Size of the test sets",
            f"The smallest has {counted(smallest, 'slide')}: single folds have wide intervals.",
        )


def _probabilities(material: RunMaterial) -> Iterator[Check]:
    """Check calibration, and whether errors are less certain, over the slides of all folds."""
    pooled = pooled_table([fold.test for fold in material.folds])
    known = [table for table in (fold.test.labelled() for fold in material.folds) if len(table)]
    # The mean of folds, as everywhere: the ECE of slides of several models together is another.
    ece = fmean(expected_calibration_error(table.probs, table.labels) for table in known)
    low, high = calibrated_ece(*(table.probs for table in known))
    folds = f", mean of {len(known)} folds" if len(known) > 1 else ""
    finding = (
        f"Confidence and accuracy differ by {format_number(ece, 2)} "
        f"(ECE{folds}, {counted(len(pooled), 'slide')}). "
        f"By chance it would be {format_range(low, high, 2)} of a calibrated model with these "
        "probabilities (95 %)"
    )
    if ece > high:
        yield Check(
            "warning", "Calibration", f"{finding}: do not take the probabilities literally."
        )
    else:
        # A range of chance as wide as a large error finds nothing.
        yield Check(
            "pass" if high <= _LARGE_ECE else "note",
            "Calibration",
            f"{finding}, so a miscalibration is not shown.",
        )
    found = error_detection(pooled, "entropy")
    if found.is_known and found.high < _CHANCE:
        yield Check("warning", "Errors", f"{found.sentence} The model is surer of its errors.")
    elif found.is_known and found.low > _CHANCE:
        yield Check("pass", "Errors", found.sentence)
    else:
        doubt = " The interval holds 0.5: this may be chance." if found.is_known else ""
        yield Check("note", "Errors", found.sentence + doubt)


def _validation(material: RunMaterial) -> Check:
    without = [fold.name for fold in material.folds if fold.validation is None]
    if without:
        return Check(
            "warning" if material.run else "note",
            "Validation slides",
            f"{counted(len(without), 'fold')} without validation slides ({listed(without)}): no "
            "temperature and no thresholds are fitted there, and no prediction sets."
            if material.run
            else "These predictions come without those of validation slides: this report fits no "
            "temperature, thresholds or prediction sets.",
        )
    shared = sum(
        len(set(fold.test.slide_ids) & set(fold.validation.slide_ids))
        for fold in material.folds
        if fold.validation is not None
    )
    if shared:
        return Check(
            "warning",
            "Validation slides",
            f"{counted(shared, 'test slide')} used for validation as well, in the same fold.",
        )
    return Check("pass", "Validation slides", "Every fold has its own, apart from test.")


def _posterior(material: RunMaterial, posteriors: Mapping[str, ProcessUse]) -> Check:
    title = "Uncertainty of the model"
    if not has_posterior(material):
        return Check(
            "note",
            title,
            "The standard deviation is zero or missing for every slide: the model is deterministic "
            "and says nothing of its own uncertainty. Entropy and largest probability remain.",
        )
    if not posteriors:
        return Check(
            "note",
            title,
            "Probabilities have a posterior standard deviation. Whether the posterior differs from "
            "its prior was not measured: that needs a model with a Gaussian process, its "
            "checkpoint and the embeddings.",
        )
    idle = {name: use for name, use in posteriors.items() if use.is_idle}
    if idle:
        which = "every fold" if len(idle) == len(posteriors) else f"{listed(tuple(idle))}"
        return Check(
            "warning",
            title,
            f"The Gaussian process is idle in {which}: {_against_prior(idle.values())}. The "
            "posterior is the prior, so standard deviations, mutual information and maps of "
            "uncertainty on this page do not come from the training slides. Train another "
            "design: the default has inducing patches.",
        )
    return Check(
        "pass",
        title,
        f"The posterior of the attention differs from its prior in "
        f"{counted(len(posteriors), 'fold')} of {len(material.folds)}: "
        f"{_against_prior(posteriors.values())}. This says that the process learned something, not "
        "that its uncertainty is right.",
    )


def _against_prior(uses: Iterable[ProcessUse]) -> str:
    """Write how far posteriors are from their priors: a range over folds."""
    found = tuple(uses)
    ratios = [use.variance_ratio for use in found]
    shifts = [use.shift for use in found]
    return (
        f"at {sum(use.num_patches for use in found):,} patches of test slides its variance is "
        f"{_range(ratios, 2)} of the prior's, and its mean moves by {_range(shifts, 3)} "
        "standard deviations of the prior"
    )


def _range(values: Sequence[float], digits: int) -> str:
    low, high = (format_number(end, digits) for end in (min(values), max(values)))
    return low if low == high else f"{low}–{high}"


def _ensemble(material: RunMaterial) -> Iterator[Check]:
    if not material.is_ensemble:
        return
    found = [p for _, p in material.predictions() if not math.isnan(p.disagreement)]
    most = max(found, key=lambda p: p.disagreement)
    middle = float(np.median([p.disagreement for p in found]))
    yield Check(
        "note",
        "Ensemble",
        f"Several models predicted {counted(len(found), 'slide')} together. Their disagreement is "
        f"{format_number(middle)} nats in the median and {format_number(most.disagreement)} at "
        f"most ({most.slide_id}).",
    )


def _instances(material: RunMaterial) -> Iterator[Check]:
    scores = [p.instances for _, p in material.predictions()]
    known = [one for one in scores if one is not None]
    if not known:
        yield Check("note", "Attention", "There are no scores of instances, so there are no maps.")
        return
    broken = sum(num_without_score(one) > 0 for one in known)
    if broken:
        yield Check(
            "warning",
            "Scores of patches",
            f"{counted(broken, 'slide')} with patches whose scores are not finite (NaN or "
            "infinite): maps leave them out. Look for embeddings that are not finite.",
        )
    flat = sum(
        one.num_instances > 1 and float(np.ptp(one.attention_mean)) <= _ZERO for one in known
    )
    unplaced = sum(one.coords is None for one in known) + len(scores) - len(known)
    if flat == len(known):
        yield Check(
            "note", "Attention", "Attention is the same for all patches: the model does not choose."
        )
    elif flat:
        yield Check("note", "Attention", f"Attention is flat in {counted(flat, 'slide')}.")
    elif not broken:
        yield Check(
            "pass",
            "Attention",
            f"In none of {counted(len(known), 'slide')} is the attention the same for all patches.",
        )
    if unplaced:
        yield Check(
            "note",
            "Coordinates",
            f"{counted(unplaced, 'slide')} without coordinates or scores of patches: no maps.",
        )


def _embeddings(material: RunMaterial, facts: RunFacts) -> Check:
    if material.bags is None:
        return Check("note", "Embeddings", as_flags(material.bags_missing))
    missing = facts.num_slides - len(material.bags)
    if missing:
        return Check(
            "warning",
            "Embeddings",
            f"{counted(missing, 'slide')} of {facts.num_slides} no longer have embeddings.",
        )
    return Check(
        "pass", "Embeddings", f"Those of all {counted(facts.num_slides, 'test slide')} are there."
    )


def _encoder(facts: RunFacts) -> Iterator[Check]:
    weak = facts.encoders_not_for_pathology
    if len(facts.encoders) > 1:
        yield Check(
            "warning", "Patch encoder", f"Embeddings of several encoders: {listed(facts.encoders)}."
        )
    elif weak:
        yield Check(
            "note",
            "Patch encoder",
            f"{weak[0]} was trained on everyday photographs, not on pathology.",
        )
    elif facts.encoders:
        yield Check("pass", "Patch encoder", f"All embeddings are of {facts.encoders[0]}.")
    else:
        yield Check(
            "note",
            "Patch encoder",
            "The encoder of the patches is unknown, and so is whether it was trained on pathology.",
        )


def _like_training(material: RunMaterial) -> Iterator[Check]:
    """Look whether slides are like those that the models learned from."""
    from scipy.stats import binom

    origins = [fold.test.provenance for fold in material.folds]
    for found in sorted({one.other_features for one in origins if one is not None} - {""}):
        yield Check("warning", "Embeddings of training", other_features_sentence(found))
    title = "Slides unlike those of training"
    levels = [
        (prediction, fold.novelty_slides)
        for fold, prediction in material.predictions()
        if not math.isnan(prediction.novelty_p)
    ]
    if not levels:
        yield Check("note", title, "Slides were not compared with the training slides.")
        return
    unlike = [prediction for prediction, slides in levels if is_unlike(prediction, slides)]
    chances = [unlike_level(slides) for _, slides in levels]
    text = (
        f"{len(unlike)} of {counted(len(levels), 'slide')} {'is' if len(unlike) == 1 else 'are'} "
        f"unlike the training slides (p ≤ {max(chances):.2g}); by chance it would be about "
        f"{sum(chances):.1f}."
    )
    if binom.sf(len(unlike) - 1, len(levels), max(chances)) > _RARE:
        yield Check("pass", title, text)
    else:
        named = listed([prediction.slide_id for prediction in most_unlike(unlike)])
        yield Check(
            "warning", title, f"{text} Another scanner, stain or encoder? The first: {named}."
        )


def _slides(material: RunMaterial, facts: RunFacts) -> Iterator[Check]:
    if facts.is_synthetic:
        yield Check(
            "warning",
            "Synthetic slides",
            "The slides are drawn by a program (phantoms): nothing here is about patients.",
        )
    found = len(material.sources.files)
    if found and found < facts.num_slides:
        yield Check(
            "note",
            "Slide images",
            f"{counted(facts.num_slides - found, 'slide')} of {facts.num_slides} have none.",
        )
