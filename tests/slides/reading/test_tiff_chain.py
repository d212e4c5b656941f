import io

import pytest

pytest.importorskip("tifffile", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("cv2", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("imagecodecs", reason="pip install 'sgpmil[slides]'")

import tifffile

from sgpmil.slides.reading.damage import CutShortError
from sgpmil.slides.reading.tiff_chain import check_chain

from .slide_files import halves, picture


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("bigtiff", [False, True])
def test_pages_beyond_the_end(byteorder, bigtiff):
    stream = io.BytesIO()
    with tifffile.TiffWriter(stream, bigtiff=bigtiff, byteorder=byteorder) as writer:
        for level in halves(picture(64, 64), 3):
            writer.write(level, photometric="rgb", metadata=None)
    content = stream.getvalue()
    whole = io.BytesIO(content)
    check_chain(whole, "'a'")
    assert whole.tell() == 0
    with tifffile.TiffFile(io.BytesIO(content)) as tiff:
        last = tiff.pages[2].offset
    check_chain(io.BytesIO(content[: last + 400]), "'a'")
    for length in (3, 7, last // 2, last + 1, last + 30):
        with pytest.raises(CutShortError, match=f"'a', but got {length:,}: the file is cut short"):
            check_chain(io.BytesIO(content[:length]), "'a'")


def test_a_chain_that_bites_its_tail_ends():
    page = (8).to_bytes(4, "little")
    check_chain(io.BytesIO(b"II*\0" + page + bytes(2) + page), "'a'")
