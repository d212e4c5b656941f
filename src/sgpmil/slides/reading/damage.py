"""What is said of files that cannot be read."""

from pathlib import Path

from sgpmil.errors import SlideError

__all__ = ["CutShortError", "cut_short", "reason", "unreadable_pixels"]

_SPEAKING = (OSError, ValueError, RuntimeError, MemoryError, SyntaxError)


class CutShortError(SlideError):
    """A file ends before what it says it holds."""


def cut_short(needed: int, found: int, where: str) -> CutShortError:
    """Say that a file is cut short.

    Args:
        needed: Bytes that it should have at least.
        found: Bytes that it has.
        where: Name of the file.
    """
    return CutShortError(
        f"Expected at least {needed:,} bytes in {where}, but got {found:,}: the file is cut short. "
        "Copy it again from its source."
    )


def reason(error: Exception) -> str:
    """Say in a few words why a library could not read a file.

    Args:
        error: What the library raised.

    Example:
        >>> reason(OSError("truncated file.")), reason(ZeroDivisionError("division by zero"))
        ('truncated file', 'its structure is damaged')
    """
    # Other errors speak of the library's inner workings, which a damaged file has confused.
    by_openslide = type(error).__module__.startswith("openslide")
    text = str(error) if isinstance(error, _SPEAKING) or by_openslide else ""
    return text.split("\n")[0].rstrip(". ") or "its structure is damaged"


def unreadable_pixels(path: Path, x: int, y: int, level: int, error: Exception) -> SlideError:
    """Say that part of a slide cannot be read.

    Args:
        path: The file.
        x: Left edge of the window in level-0 pixels.
        y: Top edge of the window in level-0 pixels.
        level: Number of the level.
        error: What the library raised.
    """
    return SlideError(
        f"Expected pixels at x = {x}, y = {y} of level {level} in '{path}', but they cannot be "
        f"read ({reason(error)}). The file is damaged: copy it again from its source."
    )
