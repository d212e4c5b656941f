"""What a page is made of: sections of words, tables, pictures, checks and commands."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from sgpmil.report.pages.images import DataImage

__all__ = [
    "Block",
    "Check",
    "CheckList",
    "Commands",
    "KeyFigure",
    "Mark",
    "Pictures",
    "Prose",
    "Section",
    "SlideCard",
    "Table",
]

Mark = Literal["pass", "note", "warning"]
"""`pass`: as it should be. `note`: to know. `warning`: to look into before the numbers are used."""


@dataclass(frozen=True, slots=True)
class Prose:
    """A paragraph.

    Args:
        text: Its words.
        tone: Whether it is set apart, as what is missing is, or is a heading within a section.
    """

    kind: ClassVar[str] = "prose"
    text: str
    tone: Literal["plain", "note", "warning", "heading"] = "plain"


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts.

    Args:
        header: Name of each column.
        rows: Cells of each row.
        caption: What it shows.
        num_words: Number of columns, from the left, that hold words; the others hold numbers.
        is_long: Whether it is folded away and can be sorted, as the list of all slides.
    """

    kind: ClassVar[str] = "table"
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    num_words: int = 1
    is_long: bool = False


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures side by side where there is room.

    Args:
        images: The pictures.
        captions: What each shows.
    """

    kind: ClassVar[str] = "pictures"
    images: tuple[DataImage, ...]
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Check:
    """Something that was looked at before the numbers are trusted.

    Args:
        mark: How it turned out.
        title: What was looked at.
        text: What was found, and what to do about it.
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
    """Commands to be copied.

    Args:
        lines: One each.
    """

    kind: ClassVar[str] = "commands"
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlideCard:
    """A slide with what the model saw in it.

    Args:
        slide_id: Name of the slide.
        headline: What is said of it.
        facts: Further numbers, in words.
        image: Its maps.
        missing: Why there are none, in a sentence.
        case_link: Address of its case report, relative to the page; empty where there is none.
    """

    kind: ClassVar[str] = "slide"
    slide_id: str
    headline: str
    facts: str
    image: DataImage | None = None
    missing: str = ""
    case_link: str = ""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number that is read first.

    Args:
        name: What it is.
        value: The number.
        detail: How sure it is, and of what.
    """

    name: str
    value: str
    detail: str


Block = Prose | Table | Pictures | CheckList | Commands | SlideCard


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page under a heading.

    Args:
        anchor: Its name in links.
        title: Its heading.
        blocks: What it holds.
    """

    anchor: str
    title: str
    blocks: tuple[Block, ...]
