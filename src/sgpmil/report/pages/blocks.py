"""Blocks that pages are made of: words, tables, pictures, patches, checks, commands.

Templates render them as HTML, and `pdf` on paper.
"""

from base64 import b64encode
from dataclasses import dataclass
from io import BytesIO
from typing import ClassVar, Literal

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from sgpmil.options import as_flags
from sgpmil.shapes import UInt8

Mark = Literal["pass", "note", "warning"]
"""`pass`: in order. `note`: good to know. `warning`: look into it before you use the numbers."""

Tone = Literal[
    "plain",
    "note",
    "warning",
    "heading",
    "meta",
    "strong",
    "predicted",
    "sure",
    "leaning",
    "undecided",
]
"""Role of a paragraph. `meta`: small and grey. `predicted`: the prediction of a case report. The
last three: its headline, coloured by the confidence of the model."""

_QUALITY = 88


@dataclass(frozen=True, slots=True)
class DataImage:
    """A picture that a page carries within itself.

    Args:
        kind: Its media type, such as ``image/webp``.
        content: The file.
        width: Width at which it is shown, in CSS pixels.
        height: Height at which it is shown, in CSS pixels.
        alt: Description for readers who do not see it.
    """

    kind: str
    content: bytes
    width: int
    height: int
    alt: str

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return f"data:{self.kind};base64,{b64encode(self.content).decode('ascii')}"


def plot_image(figure: Figure, alt: str) -> DataImage:
    """Save a figure of lines and letters as SVG, sharp at every size."""
    content = BytesIO()
    # Letters become outlines, so that the figure looks the same without our fonts; the salt makes
    # the same figure the same text every time.
    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "sgpmil"}):
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    return _image(figure, "image/svg+xml", content.getvalue(), alt)


def photo_image(figure: Figure, alt: str, dpi: int = 130) -> DataImage:
    """Save a figure with slides or maps as WebP, which is small."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    content = BytesIO()
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    Image.fromarray(pixels).save(content, format="webp", quality=_QUALITY)
    return _image(figure, "image/webp", content.getvalue(), alt)


def pixels_image(pixels: UInt8[np.ndarray, "h w 3"], alt: str) -> DataImage:
    """Save pixels as WebP."""
    content = BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(content, format="webp", quality=_QUALITY)
    height, width = pixels.shape[:2]
    return DataImage("image/webp", content.getvalue(), width, height, alt)


def _image(figure: Figure, kind: str, content: bytes, alt: str) -> DataImage:
    width, height = (round(96 * float(side)) for side in figure.get_size_inches())
    return DataImage(kind, content, width, height, alt)


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph.

    Args:
        text: Its words.
        tone: Its role.
    """

    kind: ClassVar[str] = "prose"
    text: str
    tone: Tone = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", as_flags(self.text))  # a page is made by a command


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Args:
        header: Name of each column.
        rows: Cells of each row.
        caption: Its caption.
        num_words: Number of columns, from the left, that hold words; the others hold numbers.
        is_long: Whether it is folded and can be sorted, such as the list of all slides.
        cases: Address of a case report of each row, which its first cell links to where that file
            exists; none for a table of other things.
    """

    kind: ClassVar[str] = "table"
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    num_words: int = 1
    is_long: bool = False
    cases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures side by side where there is room.

    Args:
        images: The pictures.
        captions: Caption of each; empty for none.
    """

    kind: ClassVar[str] = "pictures"
    images: tuple[DataImage, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """A check of the data or the results.

    Args:
        mark: Its result.
        title: Its subject.
        text: The finding, and what to do about it.
    """

    mark: Mark
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class CheckList:
    """Checks, the warnings first.

    Args:
        checks: The checks.
    """

    kind: ClassVar[str] = "checks"
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """Commands to copy.

    Args:
        lines: One command each.
    """

    kind: ClassVar[str] = "commands"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlideCard:
    """A slide with its maps.

    Args:
        slide_id: Name of the slide.
        headline: Its prediction.
        facts: Further numbers, in words.
        image: Its maps.
        missing: The reason why there are none, in a sentence.
        case: Address of its case report, which its name links to where that file exists.
    """

    kind: ClassVar[str] = "slide"
    slide_id: str
    headline: str
    facts: str
    case: str
    image: DataImage | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number at the top of the page.

    Args:
        name: Its name.
        value: The number.
        detail: Its spread or interval.
    """

    name: str
    value: str
    detail: str


@dataclass(frozen=True, slots=True)
class ClassBar:
    """Probability of one class.

    Args:
        name: Name of the class.
        probability: Its probability.
        std: Posterior standard deviation of the probability; None where the model gives none.
        text: Both, as text.
        is_in_set: Whether it is in the prediction set; None where there is no set.
    """

    name: str
    probability: float
    std: float | None
    text: str
    is_in_set: bool | None


@dataclass(frozen=True, slots=True)
class ClassBars:
    """Probabilities of all classes, as a table with bars.

    Args:
        bars: The classes, the most probable first.
    """

    kind: ClassVar[str] = "classes"
    bars: tuple[ClassBar, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """A patch of the slide.

    Args:
        mark: Its sign on the map, such as F1.
        score: The score that it was chosen for.
        image: Its picture; None where there is no slide.
        words: Number and place, which stand in for a missing picture.
    """

    mark: str
    score: str
    image: DataImage | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Patches that were chosen for one reason, in a row.

    Args:
        role: Their role for the prediction, which decides the colour.
        title: The reason.
        tiles: The patches.
        missing: Sentence that stands in for them where there are none.
    """

    kind: ClassVar[str] = "tiles"
    role: Literal["for", "against", "unsure"]
    title: str
    tiles: tuple[Tile, ...]
    missing: str = ""


Block = Prose | Table | Pictures | CheckList | Commands | SlideCard | ClassBars | Tiles


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading.

    Args:
        anchor: Its name in links.
        title: Its heading.
        blocks: Its content.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]
