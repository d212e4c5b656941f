import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.viewer.pyramid import Pyramid

openslide = pytest.importorskip("openslide", reason="pip install 'sgpmil[slides]'")


@pytest.mark.parametrize(("tile", "overlap"), [(254, 1), (256, 0), (510, 2)])
@pytest.mark.parametrize("size", [(700, 300), (256, 256), (1, 1), (1025, 3)])
def test_levels_and_tiles_are_those_of_openslide(size, tile, overlap):
    from openslide.deepzoom import DeepZoomGenerator
    from PIL import Image

    image = Image.fromarray(np.zeros((size[1], size[0], 3), np.uint8))
    oracle = DeepZoomGenerator(openslide.ImageSlide(image), tile, overlap)
    pyramid = Pyramid(*size, tile, overlap)
    assert pyramid.last_level == oracle.level_count - 1
    for level in range(oracle.level_count):
        assert pyramid.level_size(level) == oracle.level_dimensions[level]
        columns, rows = oracle.level_tiles[level]
        for column in range(columns):
            for row in range(rows):
                box = pyramid.box(level, column, row)
                assert box[2:] == oracle.get_tile_dimensions(level, (column, row))
        assert pyramid.box(level, columns, 0) is None
        assert pyramid.box(level, 0, rows) is None
    assert pyramid.box(oracle.level_count, 0, 0) is None


def test_the_description_is_that_of_openslide():
    from openslide.deepzoom import DeepZoomGenerator
    from PIL import Image

    image = Image.fromarray(np.zeros((300, 700, 3), np.uint8))
    oracle = ET.fromstring(DeepZoomGenerator(openslide.ImageSlide(image), 254, 1).get_dzi("jpg"))  # noqa: S314
    own = ET.fromstring(Pyramid(700, 300, 254, 1).description("jpg"))  # noqa: S314
    assert own.attrib == oracle.attrib
    assert [(part.tag, part.attrib) for part in own] == [(part.tag, part.attrib) for part in oracle]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 11))
def test_tiles_without_overlap_cover_a_level_once(width, height, level):
    pyramid = Pyramid(width, height, 256)
    if level > pyramid.last_level:
        assert pyramid.box(level, 0, 0) is None
        return
    across, down = pyramid.level_size(level)
    covered = np.zeros((down, across), int)
    column = 0
    while pyramid.box(level, column, 0):
        row = 0
        while box := pyramid.box(level, column, row):
            x, y, w, h = box
            covered[y : y + h, x : x + w] += 1
            row += 1
        column += 1
    assert (covered == 1).all()
