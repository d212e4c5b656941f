"""Case pages as PDF: the blocks of a page on sheets of A4."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from sgpmil.bags.files import atomic_path
from sgpmil.report.pages.blocks import (
    Block,
    ClassBar,
    ClassBars,
    DataImage,
    Pictures,
    Prose,
    Section,
    Tile,
    Tiles,
    Tone,
)
from sgpmil.report.pages.rendering import refuse_existing

if TYPE_CHECKING:
    from fpdf import FPDF

_WIDTH, _HEIGHT = 595.28, 841.89
"""A4 in points, the unit of all lengths here."""
_MARGIN, _TOP, _BOTTOM = 34.0, 26.0, 24.0
_BODY = _WIDTH - 2 * _MARGIN
_SMALL, _LEADING = 6.9, 1.32
_INK, _QUIET, _ACCENT, _STAMP = "#1b2430", "#5a6472", "#0b5d8f", "#8a4300"
_ROLES = {"for": "#b35806", "against": "#542788", "unsure": "#0072b2"}
_TILE = (38.0, 70.0)
"""Least and most side of a patch's picture."""
_NO_PICTURE = 24.0
"""Height of a patch without a picture."""
_ROW = 7
"""Patches in a row."""
_LEAST_MAP = 110.0
"""Least height of the maps; with less room, they go to a second sheet."""


@dataclass(frozen=True, slots=True)
class _Type:
    """Letters of a paragraph, and the space below it."""

    size: float
    bold: bool = False
    colour: str = _INK
    space: float = 1.5


_TYPES: dict[Tone, _Type] = {
    "plain": _Type(8.4),
    "note": _Type(8.4, colour=_QUIET),
    "warning": _Type(_SMALL, colour=_STAMP),
    "heading": _Type(7.5, bold=True),
    "meta": _Type(_SMALL, colour=_QUIET),
    "strong": _Type(8.4, bold=True, space=0.0),
    "predicted": _Type(13.0, bold=True, space=3.0),
    "sure": _Type(10.0, bold=True, colour="#00654a", space=2.0),
    "leaning": _Type(10.0, bold=True, colour="#0b5d8f", space=2.0),
    "undecided": _Type(10.0, bold=True, colour="#8a4300", space=2.0),
}
_SECTION = _Type(7.2, bold=True, colour=_ACCENT, space=1.0)


@dataclass(frozen=True, slots=True)
class CasePage:
    """A page about one slide, of which both the HTML and the PDF are made.

    Args:
        title: Its title: the name of the slide.
        kind: Kind of the page, above the title.
        stamp: Restriction of its use, beside the kind.
        origin: Run, model and dates, below the title.
        columns: Sections side by side.
        sections: Sections below.
        caveats: Sentences at the foot of the page.
    """

    title: str
    kind: str
    stamp: str
    origin: str
    columns: tuple[Section, ...]
    sections: tuple[Section, ...]
    caveats: tuple[str, ...]


def write_pdf(path: Path, page: CasePage, *, overwrite: bool = False) -> None:
    """Write a page as PDF, whole or not at all: one sheet of A4, or more where that is too small.

    Maps and patches shrink to what the words leave of the sheet.

    Raises:
        RunFolderError: There is a file already.
    """
    refuse_existing(path, overwrite=overwrite)
    content = bytes(_Layout(page).pdf.output())
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


class _Layout:
    """A page laid out on paper."""

    def __init__(self, page: CasePage) -> None:
        self.pdf = _new_pdf(f"{page.kind}: {page.title}")
        y = self._head(page)
        width = 0.49 * _BODY
        step = (_BODY - width) / max(1, len(page.columns) - 1)
        ends = [
            self._section(section, _MARGIN + number * step, y, width, self._fixed)
            for number, section in enumerate(page.columns)
        ]
        y = max(ends, default=y) + 4
        foot = self._words(_MARGIN, 0.0, " ".join(page.caveats), _Type(_SMALL), _BODY, draw=False)
        bottom = _HEIGHT - _BOTTOM - foot - 10
        for section in page.sections:
            y = self._pictured_section(section, y, bottom)
        self._rule(bottom + 4)
        self._words(_MARGIN, bottom + 8, " ".join(page.caveats), _Type(_SMALL), _BODY)

    def _head(self, page: CasePage) -> float:
        small = _Type(7.5, bold=True, colour=_QUIET)
        self._words(_MARGIN, _TOP, page.kind.upper(), small, _BODY)
        stamp = _Type(7.5, bold=True, colour=_STAMP)
        width = self._measure(page.stamp.upper(), stamp) + 12
        left = _MARGIN + _BODY - width
        self.pdf.set_draw_color(_STAMP)
        self.pdf.set_line_width(0.9)
        self.pdf.rect(left, _TOP - 3, width, 14)
        self._words(left, _TOP, page.stamp.upper(), stamp, width, align="C")
        y = self._words(_MARGIN, 43.0, page.title, _Type(14.0, bold=True), _BODY)
        y = self._words(_MARGIN, y, page.origin, _Type(7.3, colour=_QUIET), _BODY)
        self._rule(y + 1)
        return y + 7

    def _section(
        self,
        section: Section,
        x: float,
        y: float,
        width: float,
        draw: Callable[[Block, float, float, float], float],
    ) -> float:
        y = self._words(x, y, section.title.upper(), _SECTION, width)
        for block in section.blocks:
            y = draw(block, x, y, width)
        return y

    def _pictured_section(self, section: Section, y: float, bottom: float) -> float:
        """Draw a section over the width of the sheet; pictures share the height that is left."""
        rows = [block for block in section.blocks if isinstance(block, Tiles) and block.tiles]
        pictures = [
            image
            for block in section.blocks
            if isinstance(block, Pictures)
            for image in block.images
        ]
        has_images = any(tile.image for block in rows for tile in block.tiles)
        least = (_TILE[0] if has_images else _NO_PICTURE) * len(rows)
        wanted = sum(_BODY * image.height / image.width for image in pictures)
        words = _LEADING * _SECTION.size + _SECTION.space
        for block in section.blocks:
            words += self._flexible(block, 0.0, 0.0, _BODY, sizes=None)
        room = bottom - y - 6 - words
        if room < least + min(wanted, _LEAST_MAP * len(pictures)) and y > 2 * _TOP:
            self.pdf.add_page()
            return self._pictured_section(section, _TOP, bottom)
        shrink = min(1.0, max(0.1, (room - least) / wanted)) if pictures else 1.0
        side = (room - shrink * wanted) / max(1, len(rows))
        side = min(_TILE[1], max(_TILE[0], side)) if has_images else _NO_PICTURE
        self._rule(y)
        draw = partial(self._flexible, sizes=(shrink, side))
        return self._section(section, _MARGIN, y + 5, _BODY, draw)

    def _flexible(
        self, block: Block, x: float, y: float, width: float, sizes: tuple[float, float] | None
    ) -> float:
        """Draw a block of a section with pictures; without sizes, measure the words alone."""
        draw = sizes is not None
        shrink, side = sizes or (0.0, 0.0)
        if isinstance(block, Pictures):
            for image, caption in zip(block.images, block.captions, strict=True):
                wide = shrink * width
                tall = wide * image.height / image.width
                if draw:
                    left = x + (width - wide) / 2
                    self._image(image, left, y, wide, tall)
                y = self._words(x, y + tall + 1, caption, _TYPES["meta"], width, draw=draw) + 3
            return y
        if not isinstance(block, Tiles):
            return self._fixed(block, x, y, width, draw=draw)
        kind = _Type(7.5, bold=True, colour=_ROLES[block.role], space=0.0)
        y = self._words(x, y, block.title, kind, width, draw=draw)
        if not block.tiles:
            return self._words(x, y, block.missing, _TYPES["note"], width, draw=draw) + 4
        step = width / _ROW
        side = min(side, step - 4)
        for number, tile in enumerate(block.tiles[:_ROW] if draw else ()):
            self._tile(tile, x + number * step, y, side, kind.colour)
        return y + side + 14

    def _fixed(self, block: Block, x: float, y: float, width: float, *, draw: bool = True) -> float:
        if isinstance(block, Prose):
            return self._words(x, y, block.text, _TYPES[block.tone], width, draw=draw)
        if isinstance(block, ClassBars):
            for bar in block.bars:
                y = self._class_bar(bar, x, y, width)
            return y + 3
        raise NotImplementedError(f"a block of kind '{block.kind}' on paper")

    def _class_bar(self, bar: ClassBar, x: float, y: float, width: float) -> float:
        names, numbers = 0.36 * width, 0.25 * width
        kind = _Type(8.4, bold=bool(bar.is_in_set), space=0.0)
        below = self._words(x, y, bar.name, kind, names - 4)
        left, room = x + names, width - names - numbers
        low = max(0.0, bar.probability - (bar.std or 0.0))
        high = min(1.0, bar.probability + (bar.std or 0.0))
        for start, end, top, tall, colour in (
            (0.0, 1.0, 1.8, 6.4, "#e6e9ed"),
            (0.0, bar.probability, 1.8, 6.4, _ACCENT),
            (low, high, 4.4, 1.2, "#000000"),
        ):
            if end > start:
                self.pdf.set_fill_color(colour)
                self.pdf.rect(left + start * room, y + top, (end - start) * room, tall, style="F")
        self._words(x + width - numbers, y, bar.text, _Type(8.4), numbers, align="R")
        return max(below, y + 11.1) + 1.4

    def _tile(self, tile: Tile, x: float, y: float, side: float, colour: str) -> None:
        if tile.image is None:
            below = y + 2
            for words in tile.words:
                below = self._words(x, below, words, _Type(6.1, space=0.0), _BODY / _ROW - 4)
        else:
            self._image(tile.image, x, y, side, side)
            self.pdf.set_draw_color(colour)
            self.pdf.set_line_width(1.3)
            self.pdf.rect(x, y, side, side)
        mark = _Type(6.3, bold=True, colour=colour)
        self._words(x, y + side + 2, tile.mark, mark, 14.0)
        self._words(x + 12, y + side + 2, tile.score, _Type(6.3), _BODY / _ROW - 14)

    def _image(self, image: DataImage, x: float, y: float, width: float, height: float) -> None:
        # A PDF holds JPEG as it is; decoded WebP would make the file several times larger.
        content = BytesIO()
        pixels = Image.open(BytesIO(image.content)).convert("RGB")
        pixels.save(content, format="jpeg", quality=92, subsampling=0)
        self.pdf.image(content, x, y, width, height, alt_text=image.alt)

    def _words(
        self,
        x: float,
        y: float,
        text: str,
        kind: _Type,
        width: float,
        *,
        align: str = "L",
        draw: bool = True,
    ) -> float:
        """Set a paragraph, and give the y below it; `draw` false only measures."""
        if not text:
            return y
        self._font(kind)
        self.pdf.set_xy(x, y)
        tall: Any = self.pdf.multi_cell(
            width,
            _LEADING * kind.size,
            text,
            align=align,
            padding=0,
            dry_run=not draw,
            output="HEIGHT",
        )
        return y + float(tall) + kind.space

    def _measure(self, text: str, kind: _Type) -> float:
        self._font(kind)
        return float(self.pdf.get_string_width(text))

    def _font(self, kind: _Type) -> None:
        self.pdf.set_font("DejaVu", style="B" if kind.bold else "", size=kind.size)
        self.pdf.set_text_color(kind.colour)

    def _rule(self, y: float) -> None:
        self.pdf.set_draw_color("#bbbbbb")
        self.pdf.set_line_width(0.7)
        self.pdf.line(_MARGIN, y, _MARGIN + _BODY, y)


def _new_pdf(title: str) -> "FPDF":
    from fpdf import FPDF
    from matplotlib import get_data_path

    pdf = FPDF(unit="pt", format="A4")
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    pdf.add_font("DejaVu", fname=fonts / "DejaVuSans.ttf")
    pdf.add_font("DejaVu", style="B", fname=fonts / "DejaVuSans-Bold.ttf")
    pdf.set_auto_page_break(False)
    pdf.set_margin(0)
    pdf.c_margin = 0
    pdf.set_title(title)
    pdf.set_creator("sgpmil")
    pdf.set_lang("en")
    pdf.add_page()
    return pdf
