"""The chain of pages in a TIFF: a file that was cut short has lost the end of it."""

from io import BufferedIOBase
from typing import Literal

from sgpmil.slides.reading.damage import cut_short

__all__ = ["check_chain"]

_BIG_TIFF = 43


def check_chain(file: BufferedIOBase, where: str) -> None:
    """Refuse a TIFF whose pages lie partly beyond its end.

    Readers take such a file for one of fewer pages, hence of fewer levels.

    Args:
        file: The file.
        where: Name of the file, for messages.

    Raises:
        CutShortError: A page lies beyond the end.
    """
    file.seek(0, 2)
    size = file.tell()
    file.seek(0)
    order: Literal["little", "big"] = "little" if file.read(2) == b"II" else "big"

    def number(position: int, length: int) -> int:
        if position + length > size:
            raise cut_short(position + length, size, where)
        file.seek(position)
        return int.from_bytes(file.read(length), order)

    is_big = number(2, 2) == _BIG_TIFF
    count_bytes, tag_bytes, offset_bytes = (8, 20, 8) if is_big else (2, 12, 4)
    page = number(offset_bytes, offset_bytes)
    seen: set[int] = set()
    while page and page not in seen:
        seen.add(page)
        tags = page + count_bytes
        page = number(tags + tag_bytes * number(page, count_bytes), offset_bytes)
    file.seek(0)
