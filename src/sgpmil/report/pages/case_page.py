"""Case reports as files: one page, written as HTML and as PDF."""

from math import floor, log10
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from sgpmil.bags.files import file_name
from sgpmil.explanation.key_patches import KeyPatch, KeyPatchKind
from sgpmil.explanation.map_layers import LayerKind, attention_values
from sgpmil.explanation.maps import patch_side
from sgpmil.report.figures.map_drawing import PatchMark
from sgpmil.report.figures.map_figures import MapLook, attention_map_figure
from sgpmil.report.pages.blocks import (
    Block,
    ClassBars,
    Pictures,
    Prose,
    Section,
    Tile,
    Tiles,
    photo_image,
    pixels_image,
)
from sgpmil.report.pages.case_report import CaseReport
from sgpmil.report.pages.pdf import CasePage, write_pdf
from sgpmil.report.pages.rendering import refuse_existing, write_page
from sgpmil.report.pages.texts import format_number

Role = Literal["for", "against", "unsure"]

MARK_COLOURS: dict[Role, str] = {"for": "#b35806", "against": "#542788", "unsure": "#0072B2"}
"""Colours of the patches' frames: those of the evidence map's ends, and blue."""
_ROLES: dict[KeyPatchKind, Role] = {
    "attention": "for",
    "evidence": "for",
    "single": "for",
    "against": "against",
    "unsure": "unsure",
}
_TITLES: dict[LayerKind, str] = {
    "attention": "Where it looked (attention)",
    "attention_std": "Uncertainty of that (sd)",
    "evidence": "For (+) and against (−)",
    "evidence_std": "Uncertainty of that (sd)",
    "single": "The patch alone (log-odds)",
    "single_std": "Uncertainty of that (sd)",
    "novelty": "Unlike the training patches",
}
CASE_LOOK = MapLook(width=7.6, height=4.6, text=0.66, titles=_TITLES, has_words=False)
"""Look of the maps in a case report."""


def case_paths(folder: Path, slide_id: str) -> tuple[Path, Path]:
    """Return the files of a slide's case report: HTML and PDF."""
    name = file_name(slide_id)
    return folder / f"{name}.html", folder / f"{name}.pdf"


def write_case(folder: Path, case: CaseReport, *, overwrite: bool = False) -> tuple[Path, Path]:
    """Write a case report as HTML and PDF, each whole or not at all.

    Args:
        folder: Folder to write to; made where it is missing.
        case: The report.
        overwrite: Replace existing files.

    Returns:
        The files.

    Raises:
        RunFolderError: There is a file already, or it cannot be written.
    """
    html, pdf = case_paths(folder, case.slide_id)
    for path in (html, pdf):
        refuse_existing(path, overwrite=overwrite)
    page = case_page(case)
    write_page(html, "case_report.html.j2", {"page": page}, overwrite=overwrite)
    write_pdf(pdf, page, overwrite=overwrite)
    return html, pdf


def case_page(case: CaseReport) -> CasePage:
    """Lay out a case report as blocks, for HTML and PDF alike."""
    names = case.prediction_set.names
    members = "none" if names is None else "{" + ", ".join(names) + "}"
    prediction = (
        Prose(case.predicted, "predicted"),
        ClassBars(case.classes),
        Prose(f"Prediction set: {members}", "strong"),
        Prose(case.prediction_set.sentence, "meta"),
    )
    confidence = (
        Prose(case.confidence.headline, case.confidence.level),
        *(Prose(text) for text in (*case.confidence.reasons, case.confidence.doubt)),
        *((Prose(case.confidence.disagreement),) if case.confidence.disagreement else ()),
        *((Prose(case.label),) if case.label else ()),
        *((Prose(case.other_folds, "meta"),) if case.other_folds else ()),
        *(Prose(problem, "warning") for problem in case.problems),
    )
    if case.no_maps:
        maps: Block = Prose(case.no_maps, "note")
    else:
        alt = f"Maps of {case.slide_id}: scores of the patches with their deviations."
        image = photo_image(case_map_figure(case), alt, dpi=190)
        maps = Pictures((image,), (_legend(case),))
    tiles = (_tiles(case, kind, patches) for kind, patches in case.patches.items())
    return CasePage(
        title=case.slide_id,
        kind="Slide report",
        stamp="Research use only",
        origin=case.origin,
        columns=(
            Section("prediction", "Prediction", prediction),
            Section("confidence", "How sure is the model?", confidence),
        ),
        sections=(Section("maps", "What the model saw", (maps, *tiles)),),
        caveats=case.caveats,
    )


def case_map_figure(case: CaseReport) -> Figure:
    """Draw the maps of a case, with its patches marked on the slide."""
    scores = case.slide.scores
    side = patch_side(scores)
    marks = [
        PatchMark(patch.corner, side, _mark(patch), MARK_COLOURS[_ROLES[patch.kind]])
        for patches in case.patches.values()
        for patch in patches
        if patch.corner is not None
    ]
    return attention_map_figure(
        scores,
        "",
        case.slide.class_index,
        case.predicted,
        case.picture,
        marks=marks,
        look=CASE_LOOK,
    )


def _mark(patch: KeyPatch) -> str:
    return f"{_ROLES[patch.kind][0].upper()}{patch.rank}"


def _legend(case: CaseReport) -> str:
    """Explain frames, outlines and colours of the maps."""
    words = {"for": "F for the prediction", "against": "A against it", "unsure": "U uncertain"}
    shown = [words[_ROLES[kind]] for kind, patches in case.patches.items() if patches]
    text = f"Frames: {', '.join(shown)}. " if shown else ""
    if case.picture.outlines:
        text += f"Black outline: {case.picture.outlined}, drawn by experts. "
    if attention_values(case.slide.scores)[1]:
        text += "Attention: 1 is the average patch. "
    kinds = case.slide.scores.kinds
    if "evidence" in kinds or "single" in kinds:
        text += f"Orange speaks for “{case.predicted}”, purple against it. "
    if "single" in kinds:
        text += "The patch alone: a slide with this patch only; 0 is 50 %, 2.2 is 90 %. "
    if "novelty" in kinds:
        text += "Novelty above 1: fewer than 1 % of the training patches are as unusual. "
    return text + "Colours are scaled to this slide."


def _tiles(case: CaseReport, kind: KeyPatchKind, patches: tuple[KeyPatch, ...]) -> Tiles:
    has_evidence = "evidence" in case.slide.scores.kinds
    title, missing = {
        "attention": ("Highest attention (as on the map)", ""),
        "evidence": (
            f"Most evidence for “{case.predicted}” (as on the map)",
            f"No patch speaks for “{case.predicted}”.",
        ),
        "single": (
            f"Most like “{case.predicted}” when seen alone (as on the map)",
            f"No patch alone speaks for “{case.predicted}”.",
        ),
        "against": (
            f"{'Most evidence' if has_evidence else 'Alone, most'} against “{case.predicted}”",
            f"No patch speaks against “{case.predicted}”.",
        ),
        "unsure": (
            "High attention, but its weight is uncertain (sd ÷ mean of the attention)",
            "No patch of high attention is uncertain.",
        ),
    }[kind]
    return Tiles(_ROLES[kind], title, tuple(_tile(case, patch) for patch in patches), missing)


def _tile(case: CaseReport, patch: KeyPatch) -> Tile:
    pixels = case.images.get(patch.patch)
    image = None if pixels is None else pixels_image(pixels, f"Patch {_mark(patch)}")
    place = () if patch.corner is None else (f"x {patch.corner[0]}", f"y {patch.corner[1]}")
    return Tile(_mark(patch), _score(case, patch), image, (f"patch {patch.patch}", *place))


def _score(case: CaseReport, patch: KeyPatch) -> str:
    """Write the score that a patch was chosen for, in the units of the maps."""
    scores = case.slide.scores
    if patch.kind == "unsure":
        return _with_spread(patch.variation, 0.0)
    if patch.evidence is None and patch.single is not None:
        text = _with_spread(patch.single, patch.single_std or 0.0)
        return f"+{text}" if patch.single > 0 else text
    if patch.evidence is None:
        factor = scores.num_instances if attention_values(scores)[1] else 1
        return _with_spread(factor * patch.attention, factor * patch.attention_std)
    number = scores.num_instances
    text = _with_spread(number * patch.evidence, number * (patch.evidence_std or 0.0))
    return f"+{text}" if patch.evidence > 0 else text


def _with_spread(value: float, std: float) -> str:
    digits = max(0, 2 - floor(log10(abs(value)))) if value else 0
    digits = min(digits, 2 if abs(value) >= 0.1 else 4)
    text = format_number(value, digits)
    return f"{text} ± {format_number(std, digits)}" if std > 0 else text
