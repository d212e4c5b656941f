"""Answers of the viewer as JSON values."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.evaluation.prediction import SCORES
from sgpmil.explanation.colour_scales import COLOUR_SCALES
from sgpmil.explanation.key_patches import key_patches
from sgpmil.explanation.map_layers import num_without_score
from sgpmil.explanation.prototypes import (
    NEUTRAL,
    PatchReference,
    PrototypeExplanation,
    PrototypeSummary,
)
from sgpmil.notebook import counted
from sgpmil.viewer.cohort import Case, Cohort, ViewedRun
from sgpmil.viewer.reviews import Review
from sgpmil.viewer.scored_slide import ScoredSlide
from sgpmil.viewer.similar_patches import SimilarPatch
from sgpmil.viewer.viewing import PROTOTYPE_LAYER, Viewing

_KEY_PATCHES = 8


def number(value: float | None) -> float | None:
    """Return a number for JSON, which has no NaN."""
    return None if value is None or not math.isfinite(value) else float(value)


def run_answer(viewing: Viewing, *, read_only: bool, has_openseadragon: bool) -> dict[str, Any]:
    """Describe the run and those beside it."""
    cohort = viewing.cohort
    run = cohort.run
    cases = run.cases
    predictions = [case.prediction for case in cases]
    sizes = Counter(
        0 if case.prediction_set.names is None else len(case.prediction_set.names) for case in cases
    )
    several = any(one.run is run for case in cases for one in cohort.counterparts(case))
    return {
        "name": run.name,
        "model": run.material.model,
        "classes": list(run.class_names),
        "num_slides": len(cases),
        "num_wrong": sum(case.is_wrong for case in cases),
        "num_unsure": sum(case.confidence.level != "sure" for case in cases),
        "num_novel": sum(case.is_novel for case in cases),
        "has_labels": any(p.label is not None for p in predictions),
        "has_novelty": any(not math.isnan(p.novelty_p) for p in predictions),
        "has_posterior": run.has_posterior,
        "set_sizes": sorted(sizes),
        "folds": [fold.name for fold in run.material.folds],
        "unfinished": list(run.material.unfinished),
        "has_slides": bool(run.material.sources.files),
        "comparisons": [
            *({"id": one.number, "name": one.name} for one in cohort.runs[1:]),
            *([{"id": 0, "name": "other folds of this run"}] if several else []),
        ],
        "read_only": read_only,
        "has_openseadragon": has_openseadragon,
    }


def row_answer(case: Case, verdicts: Sequence[str]) -> dict[str, Any]:
    """Describe a case in a row of the worklist."""
    prediction, names = case.prediction, case.run.class_names
    predicted = prediction.predicted_class
    return {
        "number": case.number,
        "name": case.name,
        "slide_id": case.slide_id,
        "case_id": prediction.case_id,
        "fold": case.fold,
        "title": case.title,
        "label": None if prediction.label is None else names[prediction.label],
        "predicted": names[predicted],
        "probability": prediction.probability_text(predicted),
        "level": case.confidence.level,
        "headline": case.confidence.headline,
        "entropy": number(prediction.entropy),
        "model_share": number(prediction.mutual_information),
        "novelty_p": number(prediction.novelty_p),
        "novel_share": number(prediction.novel_share),
        "set": None if case.prediction_set.names is None else list(case.prediction_set.names),
        "wrong": case.is_wrong,
        "novel": case.is_novel,
        "seen": prediction.seen,
        "verdicts": list(verdicts),
    }


def slide_answer(viewing: Viewing, case: Case, class_index: int) -> dict[str, Any]:
    """Describe a case with everything that its page shows, except the patches."""
    prediction, names = case.prediction, case.run.class_names
    frame = viewing.frame(case)
    notes = [frame.problem] if frame.problem else []
    if not frame.has_image and not frame.problem:
        notes.append("There is no image of this slide: its patches lie on an empty canvas.")
    try:
        scored = viewing.scored(case)
    except SgpmilError as error:
        scored = None
        notes.append(str(error))
    if scored is None:
        notes.append("There are no scores of this slide's patches.")
    elif not scored.is_placed:
        notes.append(
            "The patches have no coordinates: they are laid out in rows, in the order of the bag."
        )
    lacking = 0 if scored is None else num_without_score(scored.scores)
    if scored is not None and lacking:
        notes.append(
            f"{lacking:,} of {counted(scored.num_patches, 'patch', 'patches')} have no finite "
            "score: maps leave them out."
        )
    limits = viewing.knowledge[case.run.number].limits() if scored is not None else None
    if limits is not None and limits.note:
        notes.append(limits.note)
    rings, what, problem = viewing.outlines(case)
    if problem:
        notes.append(problem)
    if prediction.seen:
        notes.append("The model saw this slide in training: its prediction is too good.")
    return {
        **row_answer(case, [one.verdict for one in viewing.reviews.of(case.name)]),
        "run": case.run.name,
        "probabilities": [
            {
                "name": name,
                "text": prediction.probability_text(c),
                "probability": number(float(prediction.probs[c])),
                "std": number(float(prediction.std[c])) if case.run.has_posterior else None,
            }
            for c, name in enumerate(names)
        ],
        "reasons": list(case.confidence.reasons),
        "doubt": case.confidence.doubt,
        "set_sentence": case.prediction_set.sentence,
        "frame": {
            "width": frame.width,
            "height": frame.height,
            "mpp": frame.mpp,
            "has_image": frame.has_image,
        },
        "class_index": class_index,
        "layers": [] if scored is None else layers_answer(viewing, case, scored, class_index),
        "num_patches": 0 if scored is None else scored.num_patches,
        "side": None if scored is None else scored.side,
        "is_placed": scored is not None and scored.is_placed,
        "bounds": None if scored is None else list(scored.bounds),
        "annotations": {"rings": rings, "name": what} if rings else None,
        "key_patches": {} if scored is None else _key_patches(scored, prediction.predicted_class),
        "counterparts": [
            {
                "number": one.number,
                "run": one.run.number,
                "title": one.title,
                "predicted": one.run.class_names[one.prediction.predicted_class],
                "probability": one.prediction.probability_text(one.prediction.predicted_class),
            }
            for one in viewing.cohort.counterparts(case)
        ],
        "notes": notes,
    }


def layers_answer(
    viewing: Viewing, case: Case, scored: ScoredSlide, class_index: int
) -> list[dict[str, Any]]:
    """Describe the layers of a case's maps, with the ends and colours of their legends."""
    found = []
    for kind, layer in scored.layers(class_index).items():
        low, high = viewing.ends(case, layer)
        known = layer.values[np.isfinite(layer.values)]
        score = SCORES[kind.removesuffix("_std")]  # type: ignore[index]
        found.append(
            {
                "kind": kind,
                "title": layer.title,
                "unit": layer.unit,
                "of_class": score.is_of_class,
                "low": low,
                "high": high,
                "least": number(float(known.min())) if len(known) else None,
                "most": number(float(known.max())) if len(known) else None,
                "colours": list(COLOUR_SCALES[layer.kind].anchors),
            }
        )
    if viewing.knowledge[case.run.number].may_have_prototypes(case.fold) and scored.num_patches:
        found.append(
            {"kind": PROTOTYPE_LAYER, "title": "Most similar prototype", "of_class": False}
        )
    return found


def _key_patches(scored: ScoredSlide, class_index: int) -> dict[str, list[dict[str, Any]]]:
    if not scored.num_patches:
        return {}
    found = key_patches(scored.scores, class_index, _KEY_PATCHES)
    return {
        kind: [{"patch": one.patch, **_place(scored, one.patch)} for one in patches]
        for kind, patches in found.items()
    }


def patch_answer(
    viewing: Viewing, case: Case, scored: ScoredSlide, patch: int, class_index: int
) -> dict[str, Any]:
    """Describe a patch: its place, its scores with intervals, and its prototype."""
    scores, names = scored.scores, case.run.class_names
    labels = scores.instance_labels
    answer: dict[str, Any] = {
        "patch": patch,
        **_place(scored, patch),
        "class": names[class_index],
        "values": [
            {
                "kind": value.kind,
                "title": value.title,
                "unit": value.unit,
                "value": number(value.value),
                "low": number(value.low),
                "high": number(value.high),
            }
            for value in scored.values(patch, class_index)
        ],
        "single_probability": None,
        "label": None if labels is None or labels[patch] < 0 else int(labels[patch]),
        "has_picture": scored.is_placed and viewing.frame(case).has_image,
        "prototype": None,
    }
    if "single" in scores.kinds:
        answer["single_probability"] = number(float(scores.single_probability(class_index)[patch]))
    fold = viewing.prototypes(case)
    own = None if fold.found is None else fold.found.slides.get(case.slide_id)
    if own is not None and own.num_instances == scored.num_patches and fold.found is not None:
        index = int(own.assigned[patch])
        answer["prototype"] = {
            "index": index,
            "similarity": number(float(own.similarity[patch])),
            "colour": fold.found.colours_on(case.slide_id).get(index),
        }
    return answer


def similar_answer(viewing: Viewing, case: Case, patch: int) -> dict[str, Any]:
    """List the patches that resemble one most, or say why there are none."""
    try:
        found = viewing.similar(case, patch)
    except ExplanationError as error:
        return {"here": [], "elsewhere": [], "note": str(error)}
    return {
        "here": [_patch_link(viewing, case, one) for one in found.here],
        "elsewhere": [
            _patch_link(viewing, other, one)
            for one in found.elsewhere
            if (other := _main_case(viewing.cohort, one.slide_id)) is not None
        ],
        "note": found.note,
    }


def prototypes_answer(viewing: Viewing, case: Case) -> dict[str, Any]:
    """List the prototypes of a case's fold: use here, share per class, examples over the cohort."""
    fold = viewing.prototypes(case)
    if fold.found is None:
        return {"is_working": fold.is_working, "reason": fold.reason, "prototypes": []}
    found = fold.found
    own = found.slides.get(case.slide_id)
    counts = (
        np.zeros(len(found.prototypes), dtype=int)
        if own is None
        else np.bincount(own.assigned, minlength=max(p.index for p in found.prototypes) + 1)
    )
    shares = _class_shares(found, case.run)
    colours = found.colours_on(case.slide_id)
    return {
        "is_working": False,
        "reason": "",
        "measure": found.measure,
        "num_unused": found.unused,
        "num_slides": len(found.slides),
        "notes": list(found.missing),
        "other_colour": NEUTRAL,
        "prototypes": [
            {
                "index": one.index,
                "colour": colours[one.index],
                "here": int(counts[one.index]),
                "patches": one.num_patches,
                "slides": one.num_slides,
                "share": number(found.share(one)),
                "relative_attention": number(one.relative_attention),
                "positive_share": number(one.positive_share()),
                "class_shares": shares[one.index],
                "single": [number(value) for value in one.single],
                "origin": _origin(viewing, case.run, one),
                "examples": [
                    link
                    for reference in one.examples
                    if (link := _reference_link(viewing, reference)) is not None
                ],
            }
            for one in found.used
        ],
    }


def _class_shares(found: PrototypeExplanation, run: ViewedRun) -> dict[int, list[dict[str, Any]]]:
    """Compute each prototype's share of the patches of the slides of each class."""
    num = max(one.index for one in found.prototypes) + 1
    labels = {case.slide_id: case.prediction.label for case in run.cases}
    totals = np.zeros((len(run.class_names), num), dtype=np.int64)
    for slide_id, slide in found.slides.items():
        label = labels.get(slide_id)
        if label is not None:
            totals[label] += np.bincount(slide.assigned, minlength=num)
    sums = totals.sum(axis=1)
    return {
        index: [
            {
                "name": name,
                "share": number(float(totals[c, index] / sums[c])) if sums[c] else None,
                "patches": int(totals[c, index]),
            }
            for c, name in enumerate(run.class_names)
        ]
        for index in range(num)
    }


def _origin(viewing: Viewing, run: ViewedRun, one: PrototypeSummary) -> dict[str, Any] | None:
    origin = one.origin
    if origin is None:
        return None
    case = _main_case(viewing.cohort, origin.slide_id)
    return {
        "slide_id": origin.slide_id,
        "patch": origin.instance,
        "number": None if case is None else case.number,
        "name": None if case is None else case.name,
        "has_picture": origin.corner is not None
        and origin.side is not None
        and viewing.slides.is_readable(origin.slide_id),
        "run": run.number,
    }


def _reference_link(viewing: Viewing, reference: PatchReference) -> dict[str, Any] | None:
    case = _main_case(viewing.cohort, reference.slide_id)
    if case is None:
        return None
    similar = SimilarPatch(reference.slide_id, reference.instance, reference.similarity)
    return _patch_link(viewing, case, similar)


def _patch_link(viewing: Viewing, case: Case, one: SimilarPatch) -> dict[str, Any]:
    return {
        "number": case.number,
        "name": case.name,
        "patch": one.patch,
        "similarity": number(one.similarity),
        "has_picture": viewing.slides.is_readable(case.slide_id),
    }


def _main_case(cohort: Cohort, slide_id: str) -> Case | None:
    return next((case for case in cohort.of_slide(slide_id) if case.run is cohort.run), None)


def _place(scored: ScoredSlide, patch: int) -> dict[str, Any]:
    x, y = scored.coords[patch].tolist()
    return {"x": x, "y": y, "side": scored.side}


def differences_answer(cohort: Cohort, other: ViewedRun | None) -> dict[str, Any]:
    """List the slides on which two models differ most."""
    pairs = cohort.differences(other, most=len(cohort.run.cases))
    same = sum(a.prediction.predicted_class == b.prediction.predicted_class for a, b, _ in pairs)
    return {
        "num_slides": len(pairs),
        "num_same": same,
        "mean_difference": number(float(np.mean([gap for *_, gap in pairs]))) if pairs else None,
        "slides": [
            {"one": row_answer(a, ()), "other": row_answer(b, ()), "difference": number(gap)}
            for a, b, gap in pairs[:5]
        ],
    }


def agreement_answer(cohort: Cohort, reviews: Iterable[Review]) -> dict[str, Any]:
    """Summarise how far people agree with the model, by person and by the model's confidence.

    A verdict on an earlier prediction of another class says nothing about this one, and is only
    counted as such.
    """
    found = [(one, case) for one in reviews if (case := cohort.named(one.slide)) is not None]
    known = [
        (one, case)
        for one, case in found
        if one.predicted == case.run.class_names[case.prediction.predicted_class]
    ]

    def counts(chosen: Iterable[Review]) -> dict[str, Any]:
        verdicts = Counter(one.verdict for one in chosen)
        decided = verdicts["agree"] + verdicts["disagree"]
        low, high = _wilson(verdicts["agree"], decided)
        return {
            **{verdict: verdicts[verdict] for verdict in ("agree", "disagree", "unsure")},
            "share": number(verdicts["agree"] / decided) if decided else None,
            "low": low,
            "high": high,
        }

    people = sorted({one.reviewer for one, _ in known})
    return {
        "num_reviewed": len({one.slide for one, _ in known}),
        "num_outdated": len(found) - len(known),
        "num_slides": len(cohort.run.cases),
        "all": counts(one for one, _ in known),
        "people": [
            {"name": name, **counts(one for one, _ in known if one.reviewer == name)}
            for name in people
        ],
        "levels": [
            {
                "name": level,
                **counts(one for one, case in known if case.confidence.level == level),
            }
            for level in ("sure", "leaning", "undecided")
        ],
    }


def _wilson(hits: int, count: int) -> tuple[float | None, float | None]:
    """Compute the 95 % interval of a share."""
    if not count:
        return None, None
    from scipy.stats import binomtest

    found = binomtest(hits, count).proportion_ci(method="wilson")
    return float(found.low), float(found.high)
