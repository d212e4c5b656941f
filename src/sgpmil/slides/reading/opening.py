"""Opening of slide files, each by the library that reads it best."""

import math
import os
from pathlib import Path

from sgpmil.errors import SlideError, damage_as
from sgpmil.slides.optional_part import require_package
from sgpmil.slides.reading.finding import IMAGE_SUFFIXES, SUFFIXES, dicom_files
from sgpmil.slides.reading.image_file import ImageSlide
from sgpmil.slides.reading.openslide_file import OpenSlideFile
from sgpmil.slides.reading.slide import CutShortError, Slide
from sgpmil.slides.reading.tiff_file import TiffSlide

_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_PNG_START, _JPEG_START = b"\x89PNG", b"\xff\xd8\xff"
_OTHER_STARTS = {
    b"PK\x03\x04": "a zip archive",
    b"PK\x05\x06": "an empty zip archive",
    b"\x1f\x8b": "a gzip archive",
    b"7z\xbc\xaf": "a 7-Zip archive",
    b"Rar!": "a RAR archive",
    b"\x89HDF": "an HDF5 file",
    b"%PDF": "a PDF",
    b"version https://git-lfs": "a Git LFS pointer instead of the file itself",
    b"<!DOCTYPE": "a web page",
    b"<html": "a web page",
    _PNG_START: "a PNG image",
    _JPEG_START: "a JPEG image",
}
_LONGEST_START = 64
MOST_PIXELS = 2**37
"""Pixels of the largest slide: 137 thousand million."""
_FREE_PIXELS, _PIXELS_A_BYTE = 2**28, 10_000
"""Pixels that any file may have, and that a byte may have beyond: blank tiles have hundreds."""
_WHOLE = (".svs", ".tif", ".tiff", ".ndpi", ".scn", ".bif", ".svslide", ".qptiff")
"""Suffixes of slides that are one file."""


def open_slide(path: str | os.PathLike[str]) -> Slide:
    """Open a slide for reading.

    OpenSlide opens the formats of scanners; tifffile opens plain pyramids, OME-TIFF and the TIFFs
    that OpenSlide refuses; Pillow opens PNG and JPEG. A folder of DICOM files is one slide.

    Args:
        path: The file (or the folder, for DICOM).

    Raises:
        SlideError: There is no such file, or it is empty, damaged or of another format.
    """
    file = Path(path)
    advice = "Copy it again from its source."
    with damage_as(SlideError, "a slide", file, advice):
        slide = _opened(file)
    try:
        _refuse_impossible(slide, file)
    except SlideError:
        slide.close()
        raise
    return slide


def _opened(file: Path) -> Slide:
    if file.is_dir():
        return _open_folder(file)
    start = _start_of(file)
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise SlideError(
            f"Expected a slide file ({', '.join(SUFFIXES)}), but got '{file}'. Rename it if it "
            "is one of these."
        )
    if suffix in IMAGE_SUFFIXES:
        if not start.startswith((_PNG_START, _JPEG_START)):
            raise _foreign(file, start)
        return ImageSlide(file)
    require_package("openslide")
    import openslide

    vendor = openslide.OpenSlide.detect_format(file)
    if vendor is None:
        if start.startswith(_TIFF_STARTS):
            return TiffSlide(file)
        raise _foreign(file, start)
    if vendor == "generic-tiff":
        return _open_plain_tiff(file)
    try:
        return OpenSlideFile(file)
    except SlideError as refusal:
        return _second_try(file, start, refusal)


def _refuse_impossible(slide: Slide, file: Path) -> None:
    """Refuse more pixels than a slide can have, or than its file can hold."""
    width, height = slide.size
    # A folder beside the file may hold the pixels.
    stored = file.stat().st_size if file.is_file() and file.suffix.lower() in _WHOLE else math.inf
    most = min(MOST_PIXELS, max(_FREE_PIXELS, _PIXELS_A_BYTE * stored))
    if min(slide.size) < 1 or width * height > most:
        raise SlideError(
            f"Expected a slide of 1 to {most:.3g} pixels, as its file can hold, but '{file}' "
            f"claims {width} × {height}. It is damaged: copy it again from its source."
        )


def _open_plain_tiff(file: Path) -> Slide:
    """Take tifffile, which sees every level and reads tiles several times faster."""
    try:
        return TiffSlide(file)
    except CutShortError:
        raise
    except SlideError as refusal:
        try:
            return _decodable(file)
        except SlideError:
            raise refusal from None


def _decodable(file: Path) -> Slide:
    """Open with OpenSlide, which says only at the first pixel that it cannot decode a TIFF."""
    slide = OpenSlideFile(file)
    try:
        slide.read(0, 0, 1, 1)
    except SlideError:
        slide.close()
        raise
    return slide


def _second_try(file: Path, start: bytes, refusal: SlideError) -> Slide:
    if not start.startswith(_TIFF_STARTS):
        raise refusal
    try:
        return TiffSlide(file)
    except CutShortError:
        raise
    except SlideError:
        raise refusal from None


def _open_folder(folder: Path) -> Slide:
    files = dicom_files(folder)
    if not files:
        raise SlideError(
            f"Expected a slide file at '{folder}', but got a folder without DICOM files. Name a "
            "file in it."
        )
    return OpenSlideFile(folder, files[0])


def _start_of(file: Path) -> bytes:
    if file.exists() and not file.is_file():
        raise SlideError(
            f"Expected a slide at '{file}', but it is no file but a pipe or a device. Give a file."
        )
    try:
        with file.open("rb") as stream:
            start = stream.read(_LONGEST_START)
    except FileNotFoundError:
        raise SlideError(
            f"Expected a slide at '{file}', but there is no such file. Check the path."
        ) from None
    except OSError as error:
        raise SlideError(
            f"Expected a slide at '{file}', but it cannot be read ({error.strerror or error}). "
            "Check its permissions."
        ) from error
    if not start:
        raise SlideError(
            f"Expected a slide in '{file}', but the file is empty (0 bytes). Copy it again from "
            "its source."
        )
    return start


def _foreign(file: Path, start: bytes) -> SlideError:
    suffix = file.suffix.lower()
    if suffix == ".mrxs":
        companion = file.with_suffix("")
        if not companion.is_dir():
            return SlideError(
                f"Expected the folder '{companion}' of the MIRAX slide '{file}', but there is "
                "none. Copy it too, beside the file."
            )
    if start.startswith(_TIFF_STARTS):
        found = "a TIFF"
    else:
        found = next((kind for sign, kind in _OTHER_STARTS.items() if start.startswith(sign)), "")
    if not found:
        return SlideError(
            f"Expected a slide in '{file}', but its content is of no slide format (it begins "
            f"with {start[:8]!r}). The file is damaged or has a wrong suffix: copy it again from "
            "its source."
        )
    return SlideError(
        f"Expected a slide in '{file}', but its content is {found}. Give the file its right "
        "suffix, or the slide that belongs here."
    )
