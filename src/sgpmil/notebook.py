"""Small HTML tables, as notebooks show objects of this package."""

import math
from collections.abc import Sequence
from html import escape
from typing import Any

MOST_ROWS = 10
"""Rows of a table that a notebook shows."""


def html_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    note: str = "",
    num_rows: int | None = None,
) -> str:
    """Return a table as HTML, with everything in it escaped.

    Args:
        title: Line above the table.
        columns: Name of each column.
        rows: Cells of each row; numbers are rounded to three digits after the point.
        note: Line below the table.
        num_rows: Number of rows that there are, where `rows` are the first of them.

    Example:
        >>> html_table("a < b", ["n"], [[0.25]])[:21]
        '<div><p>a &lt; b</p><'
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell_text(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    left = (num_rows or len(rows)) - len(rows)
    notes = [note] if note else []
    below = "".join(f"<p>{escape(text)}</p>" for text in [*[f"… {left} more"] * (left > 0), *notes])
    return (
        f"<div><p>{escape(title)}</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>{below}</div>"
    )


def cell_text(value: Any) -> str:
    """Return a value as a cell shows it: three digits after the point, and – where unknown."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def shortened(names: Sequence[str], most: int = 5) -> str:
    """List the first of several names.

    Example:
        >>> shortened(["a", "b", "c"], most=2)
        'a, b, … (3)'
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])}, … ({len(names)})"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "slide"), counted(2048, "slide"), counted(2, "class", "classes")
        ('1 slide', '2,048 slides', '2 classes')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"
