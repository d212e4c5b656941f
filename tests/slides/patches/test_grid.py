import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from shapely import box

from sgpmil.errors import SettingsError, SlideError
from sgpmil.slides.patches import PatchSettings, place_patches
from sgpmil.slides.reading import Resolution
from sgpmil.slides.tissue import Tissue, read_contours, segment_tissue, write_contours
from sgpmil.slides.tissue.contours import outline
from tests.slides.tissue.drawn_slides import RESOLUTION, Drawing, DrawnSlide


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 0}, "patch size of at least 1 px, but got 0"),
        ({"overlap": 256}, "less than the patch size of 256 px, but got 256"),
        ({"overlap": -1}, "but got -1"),
        ({"magnification": None}, "but got neither"),
        ({"mpp": 0.5}, "but got 20× and 0.5"),
        ({"magnification": 0.0}, "above 0, but got 0.0"),
        ({"magnification": float("nan")}, "above 0, but got nan"),
        ({"magnification": None, "mpp": -0.5}, "above 0, but got -0.5"),
        ({"min_tissue": 1.5}, "from 0 to 1, but got 1.5"),
        ({"min_tissue": -0.1}, "from 0 to 1, but got -0.1"),
        ({"min_tissue": float("nan")}, "from 0 to 1, but got nan"),
    ],
)
def test_impossible_settings(wrong, words):
    with pytest.raises(SettingsError, match=words):
        PatchSettings(**wrong)


def test_target_magnification():
    assert PatchSettings(magnification=2.5).target_magnification == 2.5
    assert PatchSettings(magnification=None, mpp=0.4).target_magnification == 25.0


AT_40 = Resolution(mpp=0.25, magnification=40.0, source="mpp")
AT_20 = Resolution(mpp=0.5, magnification=20.0, source="mpp")


class Canvas(DrawnSlide):
    """A slide of a size, without pixels."""

    def __init__(self, width, height):
        super().__init__(np.zeros((1, 1, 3)), slide_id="a.slide")
        self._size = width, height

    @property
    def size(self):
        return self._size


def placed(area, width=1000, height=800, resolution=AT_20, **options):
    return place_patches(Tissue(area), Canvas(width, height), resolution, PatchSettings(**options))


def by_hand(mask, side, step, min_tissue):
    """Count the covered level-0 pixels of every patch of the grid, one by one."""
    height, width = mask.shape
    kept = []
    for y in range(0, height - side + 1, step):
        for x in range(0, width - side + 1, step):
            share = mask[y : y + side, x : x + side].mean()
            if share > 0 if min_tissue == 0 else share >= min_tissue - 1e-12:
                kept.append((x, y))
    return np.array(kept, dtype=np.int64).reshape(-1, 2)


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.integers(0, 19),
    st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
    st.sampled_from([(20.0, 1), (10.0, 2), (40.0, 1)]),
)
def test_patches_are_those_that_counting_pixels_gives(seed, size, overlap, min_tissue, scale):
    rng = np.random.default_rng(seed)
    magnification, factor = scale
    overlap = min(overlap, size - 1)
    small = rng.random((rng.integers(1, 9), rng.integers(1, 9))) < 0.5
    mask = np.kron(small, np.ones((11, 13), dtype=bool))
    height, width = mask.shape
    found = place_patches(
        Tissue(outline(mask, np.arange(width + 1.0), np.arange(height + 1.0))),
        Canvas(width, height),
        AT_40 if magnification == 40.0 else AT_20,
        PatchSettings(
            size=size, overlap=overlap, magnification=magnification, min_tissue=min_tissue
        ),
    )
    assert found.side == size * factor
    expected = by_hand(mask, size * factor, (size - overlap) * factor, min_tissue)
    np.testing.assert_array_equal(found.coords, expected)
    assert found.coords.dtype == np.int64


def test_geometry_is_as_trident_has_it():
    found = placed(box(0, 0, 4000, 3000), 4000, 3000, AT_40, size=256, overlap=64)
    assert (found.size, found.side, found.overlap) == (256, 512, 64)
    assert (found.level0_magnification, found.target_magnification) == (40.0, 20.0)
    assert (found.slide_size, found.slide_id) == ((4000, 3000), "a.slide")
    x, y = (np.unique(column) for column in found.coords.T)
    np.testing.assert_array_equal(x, np.arange(0, 4000 - 512 + 1, 384))
    np.testing.assert_array_equal(y, np.arange(0, 3000 - 512 + 1, 384))
    assert len(found.coords) == len(x) * len(y)


def test_a_step_that_is_no_whole_number_is_rounded_as_the_side_is():
    # 224 px at 0.5 µm on pixels of 0.2277 µm: 491.9 level-0 px; 192 px: 421.6.
    resolution = Resolution(mpp=0.2277, magnification=40.0, source="mpp")
    found = placed(
        box(0, 0, 3000, 600),
        3000,
        600,
        resolution,
        size=224,
        overlap=32,
        magnification=None,
        mpp=0.5,
    )
    assert found.side == 492
    np.testing.assert_array_equal(found.coords[:, 0], 422 * np.arange(6))
    assert found.target_magnification == 20.0


def test_patches_lie_wholly_within_the_slide():
    found = placed(box(0, 0, 1000, 800), size=256)
    assert found.coords.max(axis=0).tolist() == [512, 512]
    assert len(placed(box(0, 0, 200, 200), 200, 200, size=256).coords) == 0


def test_one_grid_for_all_pieces():
    # Two pieces that begin off the grid: patches of one grid never overlap.
    pieces = shapely.MultiPolygon([box(37, 11, 300, 300), box(333, 290, 777, 700)])
    coords = placed(pieces, size=64, min_tissue=0.0).coords
    assert len(coords) > 50
    assert (coords % 64 == 0).all()
    assert len(np.unique(coords, axis=0)) == len(coords)


def test_rows_come_one_after_the_other():
    coords = placed(box(0, 0, 600, 600), size=64).coords
    np.testing.assert_array_equal(coords, coords[np.lexsort(coords.T)])


def test_a_share_at_the_limit_is_kept():
    quarter = box(0, 0, 64, 64)
    assert len(placed(quarter, size=128, min_tissue=0.25).coords) == 1
    assert len(placed(quarter, size=128, min_tissue=0.2501).coords) == 0


def test_holes_count_as_no_tissue():
    ring = shapely.difference(box(0, 0, 384, 384), box(128, 128, 256, 256))
    coords = placed(ring, size=128, min_tissue=0.0).coords.tolist()
    assert [128, 128] not in coords
    assert len(coords) == 8


def test_no_tissue():
    found = placed(shapely.MultiPolygon())
    assert found.coords.shape == (0, 2)
    assert found.coords.dtype == np.int64
    assert found.side == 256


def test_many_patches_are_measured_in_parts(monkeypatch):
    area = shapely.Point(500, 400).buffer(350)
    whole = placed(area, size=32, overlap=16)
    monkeypatch.setattr("sgpmil.slides.patches.grid._MOST_AT_ONCE", 100)
    np.testing.assert_array_equal(placed(area, size=32, overlap=16).coords, whole.coords)
    assert len(whole.coords) > 1000


def test_a_target_finer_than_the_slide_is_refused():
    with pytest.raises(SlideError, match="at most the slide's 20×"):
        placed(box(0, 0, 9, 9), magnification=40.0)


def test_contours_read_back_give_the_same_patches(tmp_path):
    slide = Drawing(shape=(997, 1403), seed=3).pieces().finished()
    tissue = segment_tissue(slide, RESOLUTION)
    write_contours(tmp_path / "a.geojson", tissue)
    back = read_contours(tmp_path / "a.geojson")
    options = PatchSettings(size=16, overlap=5, magnification=5.0, min_tissue=0.25)
    first = place_patches(tissue, slide, RESOLUTION, options)
    second = place_patches(back, slide, RESOLUTION, options)
    assert len(first.coords) > 1000
    np.testing.assert_array_equal(first.coords, second.coords)
