"""Slides with their maps, and the list of all, as sections of the page."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from sgpmil.bags.tables import listed
from sgpmil.errors import SgpmilError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.explanation.explanation_settings import ClassChoice
from sgpmil.explanation.map_layers import MapLimits, map_limits
from sgpmil.report.figures.map_figures import attention_map_figure
from sgpmil.report.pages.blocks import Block, Prose, Section, SlideCard, Table
from sgpmil.report.pages.finite_scores import without_infinite
from sgpmil.report.pages.images import DataImage, photo_image
from sgpmil.report.pages.number_texts import told
from sgpmil.report.pages.prediction_sets import SlideSet
from sgpmil.report.pages.slide_choice import TestedSlide, choose_slides
from sgpmil.runs.material import RunMaterial

__all__ = ["case_name", "slide_list_section", "slides_section"]

_LONGEST = 900
"""Longer side of a slide's picture in the page, in pixels."""

_KINDS = {
    "best": (
        "Right and surest",
        "The slide of each class that is rightly predicted with the largest probability.",
    ),
    "worst": (
        "Wrong and surest",
        "The wrong predictions with the largest probability: what the model mistakes, and with "
        "conviction.",
    ),
    "uncertain": (
        "Least certain",
        "The slides of the largest entropy: those a human should look at first.",
    ),
}


def slides_section(material: RunMaterial, most: int, cases: frozenset[str]) -> Section:
    """Show the best, the worst and the least certain slides with their maps.

    Args:
        material: The run.
        most: Most slides that are wrong, and most that are unsure.
        cases: Slides that have a case report beside the page.
    """
    chosen = choose_slides(material, most)
    choice = ClassChoice(material.class_names)
    limits = map_limits(
        (without_infinite(prediction.instances), choice.of(prediction))
        for _, prediction in material.predictions()
        if prediction.instances is not None
    )
    blocks: list[Block] = []
    if len(material.class_names) == 2:
        # One class for all, so that a colour means the same on every map.
        name = material.class_names[1]
        blocks.append(Prose(f"Evidence is for “{name}” on every map, whatever was predicted."))
    above: dict[str, str] = {}
    for kind, (title, text) in _KINDS.items():
        slides: Sequence[TestedSlide] = getattr(chosen, kind)
        if kind == "best" and not any(one.prediction.label is not None for one in slides):
            title, text = "Surest", "The surest slide of each predicted class; labels are unknown."
        blocks.append(Prose(title, "heading"))
        if not slides:
            blocks.append(Prose("There is none.", "note"))
            continue
        blocks.append(Prose(text + (_missing(slides, material) if kind == "best" else "")))
        for one in slides:
            slide_id = one.prediction.slide_id
            if slide_id in above:
                blocks.append(_again(one, above[slide_id], material, cases))
            else:
                blocks.append(_card(one, material, limits, cases))
            above.setdefault(slide_id, title)
    return Section("slides", "Slides and what the model saw", tuple(blocks))


def _missing(slides: Sequence[TestedSlide], material: RunMaterial) -> str:
    """Name the classes of which no slide is right, or predicted."""
    shown = {one.prediction.predicted_class for one in slides}
    absent = [name for c, name in enumerate(material.class_names) if c not in shown]
    return f" There is none of {listed(absent)}." if absent else ""


def slide_list_section(
    material: RunMaterial,
    sets: Mapping[str, Sequence[SlideSet]],
    has_posterior: bool,
    cases: frozenset[str],
) -> Section:
    """List every test slide, the least certain first.

    Args:
        material: The run.
        sets: Prediction sets of each fold's test slides.
        has_posterior: Whether the model says how unsure it is of itself.
        cases: Slides that have a case report beside the page.
    """
    names = material.class_names
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
                fold.name,
                label,
                names[predicted],
                verdict,
                "–" if own.names is None else " | ".join(own.names),
                told(float(prediction.probs[predicted])),
                told(float(prediction.std[predicted])) if has_posterior else "–",
                told(prediction.entropy),
                told(prediction.mutual_information) if has_posterior else "–",
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
        ),
        tuple(row for _, row in rows),
        "All test slides, the least certain first. Entropy and mutual information in nats.",
        num_words=6,
        is_long=True,
    )
    return Section("all-slides", "All slides", (table,))


def _draw(
    material: RunMaterial, prediction: Prediction, limits: MapLimits
) -> tuple[DataImage | None, str]:
    """Draw the maps of a slide, and say what is missing of them."""
    scores = prediction.instances
    if scores is None:
        return None, "There are no scores of patches, so there is no map."
    if scores.coords is None:
        return None, "The patches have no coordinates, so there is no map."
    names, predicted = material.class_names, prediction.predicted_class
    label = None if prediction.label is None else names[prediction.label]
    problem = ""
    try:
        picture = material.sources.picture(prediction.slide_id, label, longest=_LONGEST)
    except SgpmilError as error:
        picture, problem = None, f"The slide is not shown: {error}"
    title = f"{prediction.slide_id}: {names[predicted]} {prediction.probability_text(predicted)}"
    shown = ClassChoice(names).of(prediction)
    try:
        figure = attention_map_figure(
            without_infinite(scores), title, shown, names[shown], picture, limits=limits
        )
    except SgpmilError as error:
        return None, f"There is no map: {error}"
    alt = (
        f"Maps of {prediction.slide_id}: attention, its standard deviation and the evidence "
        f"for {names[shown]}, as far as the model gives them."
    )
    return photo_image(figure, alt), problem


def case_name(slide_id: str) -> str:
    """Make a file name of a slide's name."""
    safe = "".join("_" if sign in '/\\\0:*?"<>|' or ord(sign) < 32 else sign for sign in slide_id)
    safe = safe.strip(". ") or "slide"
    while len(safe.encode()) > 180:
        safe = safe[:-1]
    return safe


def _card(
    one: TestedSlide, material: RunMaterial, limits: MapLimits, cases: frozenset[str]
) -> SlideCard:
    image, missing = _draw(material, one.prediction, limits)
    return _described(one, material, cases, image, missing)


def _again(one: TestedSlide, where: str, material: RunMaterial, cases: frozenset[str]) -> SlideCard:
    return _described(one, material, cases, None, f"Its maps are above, under “{where}”.")


def _described(
    one: TestedSlide,
    material: RunMaterial,
    cases: frozenset[str],
    image: DataImage | None,
    missing: str,
) -> SlideCard:
    p, names = one.prediction, material.class_names
    label = "label unknown" if p.label is None else f"label {names[p.label]}"
    link = ""
    if p.slide_id in cases:
        link = quote(str(Path("cases") / f"{case_name(p.slide_id)}.html"))
    return SlideCard(
        slide_id=p.slide_id,
        headline=f"{names[p.predicted_class]} {p.probability_text(p.predicted_class)}, {label}",
        facts=f"fold {one.fold.name}; entropy {told(p.entropy)} nats, of which "
        f"{told(p.mutual_information)} in the model",
        image=image,
        missing=missing,
        case_link=link,
    )
