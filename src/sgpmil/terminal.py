"""Printed text: that of files cannot command the terminal."""

import unicodedata
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

_COMMANDS = ("Cc", "Cs")
"""Unicode categories of commands to a terminal, and of bytes that are no text."""


class HarmlessConsole(Console):
    r"""A console that shows control characters of what it prints instead of obeying them.

    Names, classes and attributes come from files, which may hold anything: commands to a terminal,
    and bytes that are no text. Styles of the console's own stay, since they are added later.

    Example:
        >>> HarmlessConsole(markup=False).print("a" + chr(27) + "[31mb" + chr(0xDCFF))
        a\x1b[31mb\udcff
    """

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render what is printed, and what it holds."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(harmless(segment.text), segment.style)


def harmless(text: str) -> str:
    r"""Return text with control characters written out.

    Example:
        >>> harmless("a" + chr(27) + "b")
        'a\\x1bb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        sign if sign == "\n" or unicodedata.category(sign) not in _COMMANDS else repr(sign)[1:-1]
        for sign in text
    )
