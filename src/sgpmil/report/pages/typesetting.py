"""Words on a sheet of paper: measured, broken into lines, and set at their places."""

import warnings
from dataclasses import dataclass
from functools import lru_cache

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

__all__ = ["A4", "Sheet", "break_lines"]

A4 = (595.28, 841.89)
"""Width and height of A4 in points."""

_LEADING = 1.32
"""Distance of lines in font sizes."""
_ELLIPSIS = "…"


@dataclass(slots=True)
class Sheet:
    """A sheet on which words are set from the top down; lengths are points.

    Args:
        figure: A figure of the sheet's size, without a layout of its own.
        width: Width of the sheet.
        height: Height of the sheet.
    """

    figure: Figure
    width: float = A4[0]
    height: float = A4[1]

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: float,
        *,
        width: float | None = None,
        most_lines: int = 50,
        bold: bool = False,
        colour: str = "black",
        align: str = "left",
    ) -> float:
        """Set a paragraph.

        Args:
            x: Its left end (its right end, where it is aligned right).
            y: Top of its first line, from the top of the sheet.
            text: The words, none of which is taken for a formula.
            size: Size of the letters.
            width: Width to break lines at; None for one line.
            most_lines: Most lines; what does not fit is cut with an ellipsis.
            bold: Whether the letters are bold.
            colour: Their colour.
            align: To the left, the right or the centre.

        Returns:
            The y below the paragraph.
        """
        lines = [text] if width is None else break_lines(text, size, width, most_lines, bold=bold)
        for line in lines:
            self.figure.text(
                x / self.width,
                1 - (y + 0.8 * size) / self.height,
                line,
                fontsize=size,
                weight="bold" if bold else "normal",
                color=colour,
                ha=align,
                va="baseline",
                parse_math=False,
            )
            y += _LEADING * size
        return y

    def lines_height(self, text: str, size: float, width: float, *, bold: bool = False) -> float:
        """Give the height of a paragraph without setting it."""
        return _LEADING * size * len(break_lines(text, size, width, 50, bold=bold))

    def rule(self, y: float, left: float, right: float, colour: str = "#bbbbbb") -> None:
        """Draw a thin line across the sheet."""
        from matplotlib.lines import Line2D

        self.figure.add_artist(
            Line2D(
                [left / self.width, right / self.width],
                [1 - y / self.height] * 2,
                color=colour,
                lw=0.7,
            )
        )


def break_lines(
    text: str, size: float, width: float, most_lines: int = 50, *, bold: bool = False
) -> list[str]:
    """Break words into lines that are no wider than asked.

    A word that is wider than a line is broken wherever it must be.

    Args:
        text: The words.
        size: Size of the letters in points.
        width: Width of a line in points.
        most_lines: Most lines; what does not fit is cut with an ellipsis.
        bold: Whether the letters are bold.

    Example:
        >>> break_lines("one two three", 10.0, 45.0)
        ['one two', 'three']
    """
    lines: list[str] = []
    line = ""
    for word in text.split():
        longer = f"{line} {word}" if line else word
        if text_width(longer, size, bold=bold) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while text_width(word, size, bold=bold) > width and len(word) > 1:
            fits = _fitting(word, size, width, bold)
            lines.append(word[:fits])
            word = word[fits:]
        line = word
    if line or not lines:
        lines.append(line)
    if len(lines) <= most_lines:
        return lines
    last = lines[most_lines - 1]
    while last and text_width(last + _ELLIPSIS, size, bold=bold) > width:
        last = last[:-1]
    return [*lines[: most_lines - 1], last.rstrip() + _ELLIPSIS]


def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Give the width of words in points."""
    return sum(_advance(sign, bold) for sign in text) * size


@lru_cache(maxsize=4096)
def _advance(sign: str, bold: bool) -> float:
    font = FontProperties(size=100, weight="bold" if bold else "normal")
    with warnings.catch_warnings():
        # A letter that the font lacks is a box, which has a width as well.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        # Beside a letter, since the width of a space alone is not measured.
        wide, _, _ = text_to_path.get_text_width_height_descent(f"n{sign}n", font, ismath=False)
        alone, _, _ = text_to_path.get_text_width_height_descent("nn", font, ismath=False)
    return float(wide - alone) / 100


def _fitting(word: str, size: float, width: float, bold: bool) -> int:
    """Give how many of a word's letters fit, at least one."""
    total = 0.0
    for number, sign in enumerate(word):
        total += _advance(sign, bold) * size
        if total > width:
            return max(1, number)
    return len(word)
