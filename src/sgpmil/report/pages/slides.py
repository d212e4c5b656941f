"""Sections of the page about slides: examples with maps, the list of all, prototypes."""

import math
from collections.abc import Mapping, Sequence

from sgpmil.bags.tables import listed
from sgpmil.errors import SgpmilError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.explanation.confidence import SlideSet
from sgpmil.explanation.prototypes import PrototypeExplanation, PrototypeSummary
from sgpmil.explanation.run_explanation import Explanation
from sgpmil.explanation.slide_choice import ChosenSlide, example_slides
from sgpmil.models.process_use import ProcessUse
from sgpmil.notebook import counted
from sgpmil.report.figures.map_figures import attention_map_figure
from sgpmil.report.figures.prototype_map import label_map_figure
from sgpmil.report.figures.prototype_sheet import MOST, prototype_sheet, read_pictures
from sgpmil.report.pages.blocks import (
    Block,
    DataImage,
    Pictures,
    Prose,
    Section,
    SlideCard,
    Table,
    photo_image,
)
from sgpmil.report.pages.case_links import case_address
from sgpmil.report.pages.texts import format_number
from sgpmil.runs.material import RunMaterial

_LONGEST = 900
"""Longer side of a slide's picture in the page, in pixels."""

_IDLE = (
    "The Gaussian process of this fold is idle: its posterior is its prior. The prototypes have no "
    "part in the attention. They group the patches, and no more."
)

_KINDS = {
    "best": (
        "Right and surest",
        "The right prediction with the largest probability, for each class.",
    ),
    "worst": (
        "Wrong and surest",
        "The wrong predictions, those with the largest probability first.",
    ),
    "uncertain": (
        "Least certain",
        "The slides of the largest entropy: a human should look at these first.",
    ),
    "disputed": (
        "Most disputed",
        "The slides on which the models of the ensemble differ most. Entropy is also large where "
        "all models are undecided; disagreement is large where they give different answers.",
    ),
}


def slides_section(explanation: Explanation, most: int) -> Section:
    """Show the best, the worst and the least certain slides with their maps.

    Args:
        explanation: Explanation of the run.
        most: Most slides that are wrong, and most that are uncertain.
    """
    material = explanation.material
    chosen = example_slides(material, most)
    blocks: list[Block] = []
    if len(material.target.ranked) == 1:
        # One class for all, so that a colour means the same on every map.
        name = material.target.names[material.target.ranked[0]]
        blocks.append(Prose(f"Signed maps are for “{name}”, whatever the prediction."))
    above: dict[str, str] = {}
    for kind, (title, text) in _KINDS.items():
        slides: Sequence[ChosenSlide] = getattr(chosen, kind)
        if kind == "disputed" and not material.is_ensemble:
            continue
        if kind == "best" and not any(one.prediction.label is not None for one in slides):
            title, text = "Surest", "The surest slide of each predicted class; labels are unknown."
        blocks.append(Prose(title, "heading"))
        if not slides:
            blocks.append(Prose("There is none.", "note"))
            continue
        blocks.append(Prose(text + (_missing(slides, material) if kind == "best" else "")))
        for one in slides:
            if one.slide_id in above:
                image, missing = None, f"Its maps are above, under “{above[one.slide_id]}”."
            else:
                image, missing = _draw(explanation, one)
            blocks.append(_card(one, material, image, missing))
            above.setdefault(one.slide_id, title)
    return Section("slides", "Slides and what the model saw", tuple(blocks))


def _missing(slides: Sequence[ChosenSlide], material: RunMaterial) -> str:
    """Name the classes of which no slide is right, or predicted."""
    shown = {one.prediction.predicted_class for one in slides}
    absent = [name for c, name in enumerate(material.target.names) if c not in shown]
    return f" There is none of {listed(absent)}." if absent else ""


def slide_list_section(
    material: RunMaterial,
    sets: Mapping[str, Sequence[SlideSet]],
    has_posterior: bool,
) -> Section:
    """List every test slide, the least certain first.

    Args:
        material: The run.
        sets: Prediction sets of each fold's test slides.
        has_posterior: Whether the model estimates its own uncertainty.
    """
    names = material.target.names
    tests = [p for fold in material.folds for p in fold.test.predictions]
    tells_novelty = any(not math.isnan(p.novelty_p) for p in tests)
    rows: list[tuple[float, tuple[str, ...]]] = []
    for fold in material.folds:
        for prediction, own in zip(fold.test.predictions, sets[fold.name], strict=True):
            label = "–" if prediction.label is None else names[prediction.label]
            predicted = prediction.predicted_class
            verdict = (
                "–"
                if prediction.label is None
                else ("right" if predicted == prediction.label else "WRONG")
            )
            row = (
                prediction.slide_id,
                "all together" if material.is_ensemble else fold.name,
                label,
                names[predicted],
                verdict,
                "–" if own.names is None else " | ".join(own.names),
                format_number(float(prediction.probs[predicted])),
                format_number(float(prediction.std[predicted])) if has_posterior else "–",
                format_number(prediction.entropy),
                format_number(prediction.mutual_information) if has_posterior else "–",
                *((format_number(prediction.disagreement),) if material.is_ensemble else ()),
                *(
                    (f"{prediction.novel_share:.1%}", format_number(prediction.novelty_p))
                    if tells_novelty
                    else ()
                ),
            )
            rows.append((prediction.entropy, row))
    rows.sort(key=lambda pair: -pair[0])
    table = Table(
        (
            "Slide",
            "Fold",
            "Label",
            "Predicted",
            "",
            "Prediction set",
            "Probability",
            "SD",
            "Entropy",
            "Mutual information",
            *(("Disagreement",) if material.is_ensemble else ()),
            *(("Novel patches", "p of the slide") if tells_novelty else ()),
        ),
        tuple(row for _, row in rows),
        "All test slides, the least certain first. Entropy and mutual information in nats."
        + (
            " Disagreement is the part of the mutual information that lies between the models of "
            "the ensemble."
            if material.is_ensemble
            else ""
        )
        + (
            " Novel patches are more unlike the training patches than 99 % of these are unlike "
            "those of other patients; a small p says that the slide is unlike the training slides."
            if tells_novelty
            else ""
        ),
        num_words=6,
        is_long=True,
        cases=tuple(case_address(row[0]) for _, row in rows),
    )
    return Section("all-slides", "All slides", (table,))


def _draw(explanation: Explanation, one: ChosenSlide) -> tuple[DataImage | None, str]:
    """Draw the maps of a slide, and name what is missing of them."""
    scores = one.prediction.instances
    if scores is None:
        return None, "There are no scores of patches, so there is no map."
    if scores.coords is None:
        return None, "The patches have no coordinates, so there is no map."
    slide = explanation.slide(one, longest=_LONGEST)
    picture, problem = None, ""
    try:
        picture = slide.picture
    except SgpmilError as error:
        problem = f"The slide is not shown: {error}"
    try:
        figure = attention_map_figure(
            slide.scores,
            slide.title,
            slide.class_index,
            slide.class_name,
            picture,
            limits=slide.limits,
        )
    except SgpmilError as error:
        return None, f"There is no map: {error}"
    alt = (
        f"Maps of {slide.slide_id}: scores of the patches for {slide.class_name} and their "
        "standard deviations, as far as the model gives them."
    )
    return photo_image(figure, alt), problem


def _card(
    one: ChosenSlide, material: RunMaterial, image: DataImage | None, missing: str
) -> SlideCard:
    p, names = one.prediction, material.target.names
    label = "label unknown" if p.label is None else f"label {names[p.label]}"
    return SlideCard(
        slide_id=p.slide_id,
        headline=f"{names[p.predicted_class]} {p.probability_text(p.predicted_class)}, {label}",
        facts=_facts(one, material),
        case=case_address(p.slide_id),
        image=image,
        missing=missing,
    )


def _facts(one: ChosenSlide, material: RunMaterial) -> str:
    """Write who predicted a slide, and how its uncertainty is made up."""
    p = one.prediction
    entropy = f"entropy {format_number(p.entropy)} nats"
    if not math.isnan(p.mutual_information):
        entropy += f", of which {format_number(p.mutual_information)} in the model"
    if material.is_ensemble:
        return f"all models together; {entropy}, {format_number(p.disagreement)} between models"
    return f"fold {one.fold.name}; {entropy}"


def prototype_section(explanation: Explanation, use: ProcessUse | None = None) -> Section:
    """Show the prototypes of the first fold.

    Every fold has its own inducing points, which cannot be matched with another's.

    Args:
        explanation: Explanation of the run.
        use: Posterior of the fold's attention against its prior, where it is known.
    """
    material = explanation.material
    fold = material.folds[0]
    known = len(explanation.notes)
    found = explanation.prototypes(fold.name)
    if found is None:
        reasons = explanation.notes[known:] or ["There are no prototypes to show."]
        return Section("prototypes", "Prototypes", (Prose(reasons[0], "note"),))
    pictures, damaged = read_pictures(found.typical(MOST), material.sources.open)
    sheet = prototype_sheet(found, pictures)
    what = (
        "are patches of its training slides, its prototypes"
        if found.are_patches
        else "can be read as prototypes"
    )
    blocks: list[Block] = [
        Prose(
            "The attention of this model is a Gaussian process whose inducing points "
            f"{what}: every patch belongs to the prototype that it is most similar to "
            f"({found.measure} similarity, in the space of the attention). These are the "
            f"prototypes of fold {fold.name} on its {counted(len(found.slides), 'test slide')}; "
            "other folds have their own. "
            f"{len(found.used)} of {len(found.prototypes)} have patches; {found.unused} have none."
        ),
        *([Prose(_IDLE, "warning")] if use is not None and use.is_idle else []),
        Pictures(
            (photo_image(sheet, "Prototypes with their most similar patches."),),
            ("Prototypes: where each comes from, its most similar patches, and its numbers.",),
        ),
        *(Prose(text, "warning") for text in (*found.missing, *damaged)),
        *_label_map(explanation, fold, found),
        _prototype_table(found),
    ]
    return Section("prototypes", "Prototypes", tuple(blocks))


def _label_map(
    explanation: Explanation, fold: TestedFold, found: PrototypeExplanation
) -> list[Block]:
    """Draw the prototypes on the slide that is surest to be of the last class."""
    placed = [
        p
        for p in fold.test.predictions
        if p.instances is not None and p.instances.coords is not None and p.slide_id in found.slides
    ]
    shown = max(placed, key=lambda p: float(p.probs[-1]), default=None)
    if shown is None:
        return []
    chosen = ChosenSlide(fold, shown, shown.slide_id)
    slide = explanation.slide(chosen, longest=_LONGEST)
    picture, problem = None, ""
    try:
        picture = slide.picture
    except SgpmilError as error:
        problem = str(error)
    try:
        figure = label_map_figure(slide.scores, found.slides[slide.slide_id], found, picture)
    except SgpmilError as error:
        return [Prose(str(error), "note")]
    image = photo_image(figure, f"Prototypes of the patches of {slide.slide_id}.")
    caption = (
        f"Each patch of {slide.slide_id} in the colour of its prototype; the colours are those of "
        "the sheet."
    )
    return [Pictures((image,), (caption,)), *([Prose(problem, "warning")] if problem else [])]


def _prototype_table(explanation: PrototypeExplanation) -> Table:
    has_labels = any(p.num_labelled for p in explanation.prototypes)
    rows = tuple(
        (
            str(p.index),
            *((_origin(p),) if explanation.are_patches else ()),
            f"{p.num_patches:,}",
            f"{explanation.share(p):.1%}",
            f"{p.num_slides:,}",
            *((_share(p.positive_share(10)),) if has_labels else ()),
            format_number(p.relative_attention, 2),
            format_number(p.attention_part),
            format_number(p.logit_at, 2) + " ± " + format_number(p.logit_at_sd, 2),
        )
        for p in explanation.typical(MOST)
    )
    return Table(
        (
            "Prototype",
            *(("Training patch",) if explanation.are_patches else ()),
            "Patches",
            "Share",
            "Slides",
            *((f"Patches of {explanation.positive_name}",) if has_labels else ()),
            "Attention × mean",
            "Part in the attention",
            "Logit at the prototype",
        ),
        rows,
        "The prototypes of the sheet.",
    )


def _origin(prototype: PrototypeSummary) -> str:
    origin = prototype.origin
    if origin is None:
        return "–"
    where = "" if origin.corner is None else " at {:,}, {:,}".format(*origin.corner)
    return f"{origin.slide_id}, patch {origin.instance:,}{where}"


def _share(share: float) -> str:
    return "–" if math.isnan(share) else f"{share:.0%}"
