"""A case report as one page of A4, for print."""

import warnings
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sgpmil.bags.files import atomic_path
from sgpmil.report.pages.case_maps import MARK_COLOURS, draw_case_maps, map_height, why_no_maps
from sgpmil.report.pages.case_patches import CasePatch, PatchGroup
from sgpmil.report.pages.case_report import CaseReport, ClassLine
from sgpmil.report.pages.number_texts import counted
from sgpmil.report.pages.rendering import refuse_existing
from sgpmil.report.pages.typesetting import A4, Sheet, break_lines
from sgpmil.report.pages.wording import ConfidenceLevel

__all__ = ["case_figure", "write_case_pdf"]

_MARGIN = 34.0
_WIDTH = A4[0] - 2 * _MARGIN
_BODY, _SMALL = 8.4, 6.9
_INK, _QUIET, _ACCENT, _STAMP = "#1b2430", "#5a6472", "#0b5d8f", "#8a4300"
_LEVELS: dict[ConfidenceLevel, str] = {
    "sure": "#00654a",
    "leaning": "#0b5d8f",
    "undecided": "#8a4300",
}
_MOST_CLASSES = 5
_MOST_TILES = 7
_TILE = (38.0, 70.0)
"""Least and most side of a patch."""
_NO_IMAGE = 24.0
"""Height of a patch that has no picture."""


def write_case_pdf(path: Path, case: CaseReport, *, overwrite: bool = False) -> None:
    """Write a case report as a PDF of one page, whole or not at all.

    Args:
        path: File to write.
        case: What it says.
        overwrite: Replace a file that is there.

    Raises:
        RunFolderError: There is a file already.
    """
    refuse_existing(path, overwrite=overwrite)
    # TrueType letters can be selected, searched and read aloud.
    with (
        matplotlib.rc_context({"pdf.fonttype": 42}),
        warnings.catch_warnings(),
        atomic_path(path) as temporary,
    ):
        # Letters that the font lacks are shown as boxes; the HTML report has them.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        case_figure(case).savefig(
            temporary,
            format="pdf",
            dpi=160,
            metadata={"Title": f"Slide report: {case.slide_id}", "Creator": "sgpmil"},
        )


def case_figure(case: CaseReport) -> Figure:
    """Lay out a case report on a sheet of A4.

    Args:
        case: What it says.
    """
    figure = Figure(figsize=(A4[0] / 72, A4[1] / 72), facecolor="white")
    FigureCanvasPdf(figure)
    sheet = Sheet(figure)
    y = _draw_head(sheet, case)
    half = 0.49 * _WIDTH
    right = _MARGIN + _WIDTH - half
    below_left = _draw_prediction(sheet, case, y, half)
    below_right = _draw_confidence(sheet, case, y, right, half)
    y = max(below_left, below_right) + 4
    bottom = _draw_foot(sheet, case)
    _draw_body(sheet, case, y, bottom - 4)
    return figure


def _draw_head(sheet: Sheet, case: CaseReport) -> float:
    right = _MARGIN + _WIDTH
    sheet.words(_MARGIN, 26.0, "SLIDE REPORT", 7.5, colour=_QUIET, bold=True)
    sheet.words(right - 5, 26.0, "RESEARCH USE ONLY", 7.5, colour=_STAMP, bold=True, align="right")
    sheet.figure.add_artist(
        Rectangle(
            ((right - 97) / sheet.width, 1 - 37 / sheet.height),
            97 / sheet.width,
            14 / sheet.height,
            fill=False,
            ec=_STAMP,
            lw=0.9,
        )
    )
    y = sheet.words(
        _MARGIN, 42.0, case.slide_id, 14.0, width=_WIDTH, most_lines=2, bold=True, colour=_INK
    )
    patient = f"patient {case.case_id}, " if case.case_id not in ("", case.slide_id) else ""
    y = sheet.words(
        _MARGIN, y + 1, f"{patient}{case.origin}", _SMALL + 0.4, width=_WIDTH, most_lines=2,
        colour=_QUIET,
    )  # fmt: skip
    sheet.rule(y + 3, _MARGIN, right)
    return y + 9


def _draw_prediction(sheet: Sheet, case: CaseReport, y: float, width: float) -> float:
    y = _heading(sheet, _MARGIN, y, "Prediction")
    y = sheet.words(
        _MARGIN, y, case.predicted, 13.0, width=width, most_lines=2, bold=True, colour=_INK
    )
    y += 3
    for line in case.classes[:_MOST_CLASSES]:
        y = _draw_class(sheet, line, y, width)
    hidden = case.classes[_MOST_CLASSES:]
    if hidden:
        rest = sum(line.probability for line in hidden)
        share = f"{rest:.2f}" if rest >= 0.005 else "<0.01"
        more = counted(len(hidden), "more class", "more classes")
        y = sheet.words(_MARGIN, y, f"{more}: {share} together", _SMALL)
    y += 3
    names = case.prediction_set.names
    told = "none" if names is None else "{" + ", ".join(names) + "}"
    y = sheet.words(
        _MARGIN, y, f"Prediction set: {told}", _BODY, width=width, most_lines=2, bold=True
    )
    return sheet.words(
        _MARGIN, y, case.prediction_set.sentence, _SMALL, width=width, most_lines=6, colour=_QUIET
    )


def _draw_class(sheet: Sheet, line: ClassLine, y: float, width: float) -> float:
    names, numbers = 0.34 * width, 0.24 * width
    (name,) = break_lines(line.name, _BODY, names - 4, 1)
    sheet.words(_MARGIN, y, name, _BODY, bold=bool(line.is_in_set))
    left, room = _MARGIN + names, width - names - numbers
    for share, colour in ((1.0, "#e6e9ed"), (line.probability, _ACCENT)):
        sheet.figure.add_artist(
            Rectangle(
                (left / sheet.width, 1 - (y + 8.2) / sheet.height),
                share * room / sheet.width,
                6.4 / sheet.height,
                fc=colour,
                lw=0,
            )
        )
    if line.std is not None:
        low = max(0.0, line.probability - line.std)
        high = min(1.0, line.probability + line.std)
        sheet.figure.add_artist(
            Rectangle(
                ((left + low * room) / sheet.width, 1 - (y + 5.6) / sheet.height),
                (high - low) * room / sheet.width,
                1.2 / sheet.height,
                fc="black",
                lw=0,
            )
        )
    sheet.words(_MARGIN + width, y, line.told, _BODY, align="right")
    return y + 12.5


def _draw_confidence(sheet: Sheet, case: CaseReport, y: float, x: float, width: float) -> float:
    words = case.confidence
    y = _heading(sheet, x, y, "How sure is the model?")
    y = sheet.words(
        x, y, words.headline, 10.0, width=width, most_lines=3, bold=True,
        colour=_LEVELS[words.level],
    )  # fmt: skip
    y += 2
    for text in (*words.reasons, words.doubt):
        y = sheet.words(x, y, text, _BODY, width=width, most_lines=4) + 1.5
    if case.label:
        y = sheet.words(x, y, case.label, _BODY, width=width, most_lines=3) + 1.5
    if case.other_folds:
        y = sheet.words(x, y, case.other_folds, _SMALL, width=width, most_lines=3, colour=_QUIET)
    for problem in case.problems:
        y = sheet.words(x, y + 1, problem, _SMALL, width=width, most_lines=4, colour=_STAMP)
    return y


def _draw_foot(sheet: Sheet, case: CaseReport) -> float:
    """Draw the caveats at the bottom; give the y above them."""
    text = " ".join(case.caveats)
    tall = sheet.lines_height(text, _SMALL, _WIDTH)
    y = sheet.height - 24 - tall
    sheet.rule(y - 4, _MARGIN, _MARGIN + _WIDTH)
    sheet.words(_MARGIN, y, text, _SMALL, width=_WIDTH, colour=_INK)
    return y - 6


def _draw_body(sheet: Sheet, case: CaseReport, top: float, bottom: float) -> None:
    """Share what is left of the sheet between maps and patches."""
    sheet.rule(top, _MARGIN, _MARGIN + _WIDTH)
    y = _heading(sheet, _MARGIN, top + 5, "What the model saw")
    missing = why_no_maps(case)
    groups = case.patches
    has_images = bool(case.images)
    least = len(groups) * (_TILE[0] if has_images else _NO_IMAGE) + 26 * len(groups)
    if missing:
        y = sheet.words(_MARGIN, y, missing, _BODY, width=_WIDTH, colour=_QUIET) + 6
    else:
        wanted = 72 * map_height(case, _WIDTH / 72)
        tall = min(wanted, bottom - y - least)
        draw_case_maps(sheet.figure, case, _MARGIN / 72, y / 72, _WIDTH / 72, tall / 72)
        y += tall + 2
    if not groups:
        return
    room = (bottom - y) / len(groups) - 25
    side = min(_TILE[1], max(room, _NO_IMAGE)) if has_images else _NO_IMAGE
    for group in groups:
        y = _draw_group(sheet, case, group, y, side)


def _draw_group(sheet: Sheet, case: CaseReport, group: PatchGroup, y: float, side: float) -> float:
    colour = MARK_COLOURS[group.kind]
    y = sheet.words(
        _MARGIN, y, group.title, _SMALL + 0.6, width=_WIDTH, most_lines=1, bold=True, colour=colour
    )
    if not group.patches:
        return sheet.words(_MARGIN, y, group.none, _BODY, colour=_QUIET) + 5
    step = _WIDTH / _MOST_TILES
    for number, patch in enumerate(group.patches[:_MOST_TILES]):
        _draw_tile(sheet, case, patch, _MARGIN + number * step, y, min(side, step - 4), colour)
    return y + min(side, step - 4) + 13


def _draw_tile(
    sheet: Sheet, case: CaseReport, patch: CasePatch, x: float, y: float, side: float, colour: str
) -> None:
    image = case.images.get(patch.index)
    if image is None:
        place = "" if patch.corner is None else f"x {patch.corner[0]:,}  y {patch.corner[1]:,}"
        sheet.words(x, y + 2, f"patch {patch.index}", _SMALL)
        sheet.words(x, y + 12, place, _SMALL - 0.8, colour=_QUIET)
    else:
        box = (x / sheet.width, 1 - (y + side) / sheet.height, side / sheet.width)
        axes = sheet.figure.add_axes((*box, side / sheet.height))
        axes.imshow(image, interpolation="antialiased", aspect="auto")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=colour, linewidth=1.3)
    sheet.words(x, y + side + 2, patch.mark, _SMALL - 0.6, bold=True, colour=colour)
    sheet.words(x + 12, y + side + 2, patch.score, _SMALL - 0.6, colour=_INK)


def _heading(sheet: Sheet, x: float, y: float, text: str) -> float:
    return sheet.words(x, y, text.upper(), 7.2, bold=True, colour=_ACCENT) + 1
