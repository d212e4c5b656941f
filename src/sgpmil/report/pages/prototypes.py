"""The inducing points of a fold as prototypes, as a section of the page."""

import math

from matplotlib.figure import Figure

from sgpmil.errors import SgpmilError, SlideError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.explanation.prototypes import PrototypeExplanation
from sgpmil.report.explanations.fold_prototypes import fold_prototypes, model_of
from sgpmil.report.figures.prototype_figures import label_map_figure, prototype_sheet
from sgpmil.report.pages.blocks import Block, Pictures, Prose, Section, Table
from sgpmil.report.pages.images import DataImage, photo_image
from sgpmil.report.pages.number_texts import counted, told
from sgpmil.runs.material import MaterialFold, RunMaterial
from sgpmil.slides.reading import Slide

__all__ = ["prototype_section"]

_LONGEST = 900
_LISTED = 12
"""Prototypes in the table."""


def prototype_section(material: RunMaterial) -> Section:
    """Show what the inducing points of the first fold stand for.

    Every fold has inducing points of its own, which cannot be matched with another's.

    Args:
        material: The run.
    """
    fold = material.folds[0]
    model, why = model_of(fold)
    if model is None:
        return _without(why)
    if material.bags is None:
        return _without(f"Prototypes need the embeddings of the patches. {material.bags_missing}")
    try:
        explanation, failures = fold_prototypes(
            model, fold, material.bags, material.sources, "cosine"
        )
    except SgpmilError as error:
        return _without(f"There are no prototypes to show: {error}")
    sheet, damaged = _sheet(material, explanation)
    blocks: list[Block] = [
        Prose(
            "The attention of this model is a Gaussian process with inducing points, each of which "
            "can be read as a prototype: patches are assigned to the one they are most like "
            f"({explanation.measure}, in the space of the attention). Shown are those of fold "
            f"{fold.name} on its {counted(len(explanation.slides), 'test slide')}; other folds "
            "have their own. "
            f"{len(explanation.used)} of {len(explanation.prototypes)} are the nearest of some "
            f"patch; {explanation.unused} are of none, which is usual."
        ),
        Pictures(
            (photo_image(sheet, "The most used prototypes with the patches most like them."),),
            ("The most used prototypes: patches most like each, and what its patches are.",),
        ),
        *(Prose(text, "warning") for text in (*failures, damaged) if text),
        *_map(material, fold, explanation),
        _table(explanation),
    ]
    return Section("prototypes", "Prototypes", tuple(blocks))


def _without(reason: str) -> Section:
    return Section("prototypes", "Prototypes", (Prose(reason, "note"),))


def _sheet(material: RunMaterial, explanation: PrototypeExplanation) -> tuple[Figure, str]:
    """Draw the sheet; slides that turn out damaged are shown by their names."""
    problems: dict[str, str] = {}
    opened: list[str] = []

    def open_slide(slide_id: str) -> Slide | None:
        if slide_id in problems:
            return None
        opened.append(slide_id)
        return material.sources.open(slide_id)

    while True:
        try:
            figure = prototype_sheet(explanation, open_slide)
        except SlideError as error:
            problems[opened[-1]] = str(error)
        else:
            return figure, " ".join(problems.values())


def _map(
    material: RunMaterial, fold: MaterialFold, explanation: PrototypeExplanation
) -> list[Block]:
    shown = _surest_of_the_last_class(fold, explanation)
    if shown is None or shown.instances is None:
        return []
    problem = ""
    names = material.class_names
    try:
        label = None if shown.label is None else names[shown.label]
        picture = material.sources.picture(shown.slide_id, label, longest=_LONGEST)
    except SgpmilError as error:
        picture, problem = None, str(error)
    try:
        figure = label_map_figure(
            shown.instances, explanation.slides[shown.slide_id], explanation, picture
        )
    except SgpmilError as error:
        return [Prose(str(error), "note")]
    image: DataImage = photo_image(figure, f"Prototypes of the patches of {shown.slide_id}.")
    caption = (
        f"Each patch of {shown.slide_id} in the colour of its prototype; the colours are those of "
        "the sheet."
    )
    return [Pictures((image,), (caption,)), *([Prose(problem, "warning")] if problem else [])]


def _surest_of_the_last_class(
    fold: MaterialFold, explanation: PrototypeExplanation
) -> Prediction | None:
    mapped = [
        p
        for p in fold.test.predictions
        if p.instances is not None
        and p.instances.coords is not None
        and p.slide_id in explanation.slides
    ]
    return max(mapped, key=lambda p: float(p.probs[-1]), default=None)


def _table(explanation: PrototypeExplanation) -> Table:
    total = max(1, explanation.num_patches)
    has_labels = any(p.num_labelled for p in explanation.prototypes)
    rows = tuple(
        (
            str(p.index),
            f"{p.num_patches:,}",
            f"{p.num_patches / total:.1%}",
            f"{p.num_slides:,}",
            *((_share(p.cancer_share(10)),) if has_labels else ()),
            told(p.relative_attention, 2),
            f"{p.own_contribution:+.2g}".replace("-", "−"),
            told(p.logit_at, 2) + " ± " + told(p.logit_at_sd, 2),
        )
        for p in explanation.used[:_LISTED]
    )
    return Table(
        (
            "Prototype",
            "Patches",
            "Share",
            "Slides",
            *(("Positive patches",) if has_labels else ()),
            "Attention × mean",
            "Part in the logit",
            "Logit at the point",
        ),
        rows,
        f"The {len(rows)} most used prototypes.",
    )


def _share(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}"
