from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import cv2
import shapely

from sgpmil.errors import SettingsError
from sgpmil.slides.reading import Resolution
from sgpmil.slides.tissue import TissueSettings, segment_tissue
from sgpmil.slides.tissue.segmentation import (
    FAINT,
    FAINTEST,
    MOST_PIXELS,
    find_ink,
    staining,
    staining_threshold,
)

from .drawn_slides import EOSIN, HAEMATOXYLIN, MPP, RESOLUTION, Drawing, DrawnSlide, blob, dice

SLIDES = Path(__file__).resolve().parents[4] / "shared" / "data" / "slides"
COLON = Path(__file__).resolve().parents[4] / "shared" / "data" / "colon" / "images"

EVERYWHERE = np.ones((1000, 1400), dtype=bool)
COLUMNS = np.arange(1400)[None].repeat(1000, axis=0)
BORDER = ~np.pad(np.ones((860, 1260), dtype=bool), 70)
LINE = [(70, 140), (500, 80), (820, 460), (1330, 880)]
RING = [
    (int(1050 + 270 * np.cos(a)), int(500 + 430 * np.sin(a))) for a in np.linspace(0, 2 * np.pi, 60)
]
INKS = {
    "blue": (40, 60, 180),
    "royal blue": (50, 45, 150),
    "navy": (30, 40, 110),
    "green": (40, 150, 70),
    "teal": (20, 130, 130),
    "red": (215, 30, 40),
    "bright red": (240, 50, 60),
    "crimson": (190, 20, 50),
    "black": (40, 40, 45),
}


def found(drawing, **scan):
    return segment_tissue(drawing.finished(**scan), RESOLUTION).area


@pytest.mark.parametrize(
    "glass",
    [
        (243, 243, 244),
        (255, 255, 255),
        (205, 206, 208),
        (175, 175, 176),
        (245, 241, 226),
        (228, 234, 240),
        (244, 240, 245),
    ],
)
def test_glass_of_any_shade(glass):
    drawing = Drawing(glass=glass).pieces()
    assert dice(found(drawing), drawing.mask) > 0.97


@pytest.mark.parametrize("strength", [0.2, 0.3, 2.0])
@pytest.mark.parametrize("glass", [(243, 243, 244), (215, 216, 220)])
def test_pale_and_dark_tissue(strength, glass):
    drawing = Drawing(glass=glass, seed=1).pieces(strength)
    assert dice(found(drawing), drawing.mask) > 0.97


def test_pale_tissue_beside_dark():
    drawing = Drawing(seed=2).pieces()
    pale = blob(drawing.shape, (700, 500), (120, 300), drawing.rng) & ~drawing.mask
    drawing.tissue(pale, 0.2)
    assert dice(found(drawing), drawing.mask) > 0.97


@pytest.mark.parametrize(("sensor_noise", "jpeg"), [(0.0, None), (2.0, 80), (6.0, 40)])
def test_noise_and_compression(sensor_noise, jpeg):
    drawing = Drawing(seed=3).pieces()
    assert dice(found(drawing, sensor_noise=sensor_noise, jpeg=jpeg), drawing.mask) > 0.97


def test_uneven_light():
    drawing = Drawing(seed=4).pieces()
    light = np.linspace(0.75, 1, 1400)[None, :, None] * np.linspace(0.85, 1, 1000)[:, None, None]
    drawing.image = (drawing.image * light).astype(np.float32)
    assert dice(found(drawing), drawing.mask) > 0.97


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255)])
@pytest.mark.parametrize("glass", [(243, 243, 244), (235, 232, 224)])
def test_what_was_not_scanned_is_filled(colour, glass):
    drawing = Drawing(glass=glass, seed=5).pieces().fill(BORDER, colour)
    assert dice(found(drawing), drawing.mask) > 0.97
    assert found(Drawing(glass=glass).fill(BORDER | (COLUMNS < 900), colour)).is_empty


def test_black_beside_tissue_without_any_glass():
    drawing = Drawing(seed=6).tissue(EVERYWHERE).fill(COLUMNS < 300, (0, 0, 0))
    assert dice(found(drawing), drawing.mask) > 0.99


@pytest.mark.parametrize("strength", [0.25, 1.0, 2.0])
def test_nothing_but_tissue(strength):
    drawing = Drawing(seed=7).tissue(EVERYWHERE, strength)
    # Otsu would split it: half of the tissue is paler than the other half.
    assert dice(found(drawing), drawing.mask) > 0.995


def test_tissue_with_a_little_glass():
    drawing = Drawing(seed=19).tissue(COLUMNS < 700, 0.3).tissue(COLUMNS >= 700, 2.0)
    corner = (COLUMNS < 200) & (np.arange(1000)[:, None] < 150)
    drawing.paint(corner, drawing.glass)
    # There is glass, so there is a threshold: it must not fall between pale and dark tissue.
    assert dice(found(drawing), drawing.mask) > 0.99


def test_glass_whose_tint_changes():
    drawing = Drawing(glass=(243, 243, 243))
    drawing.image[..., 1] -= 6 * np.linspace(-0.5, 1, 1400)[None] ** 2
    assert found(drawing).is_empty


@pytest.mark.parametrize("glass", [(243, 243, 244), (190, 190, 195), (245, 238, 220), (255,) * 3])
@pytest.mark.parametrize(("sensor_noise", "jpeg"), [(0.0, None), (2.0, 80), (8.0, 30)])
def test_nothing_but_glass(glass, sensor_noise, jpeg):
    assert found(Drawing(glass=glass), sensor_noise=sensor_noise, jpeg=jpeg).is_empty


def test_dust_is_not_tissue():
    drawing = Drawing(seed=8)
    for number in range(60):
        centre = drawing.rng.uniform(0, 1, 2) * (1400, 1000)
        colour = [(60, 60, 60), (150, 110, 90), (200, 120, 160)][number % 3]
        radius = int(drawing.rng.uniform(2, 20))
        cv2.circle(drawing.image, centre.astype(int).tolist(), radius, colour, -1)
    assert found(drawing).is_empty


@pytest.mark.parametrize("ink", INKS)
def test_pen_marks_are_not_tissue(ink):
    drawing = Drawing(seed=9).pieces().stroke(LINE, INKS[ink], 70).stroke(RING, INKS[ink], 40)
    assert dice(found(drawing), drawing.mask) > 0.96
    assert found(Drawing().stroke(LINE, INKS[ink], 70).stroke(RING, INKS[ink], 40)).is_empty


@pytest.mark.parametrize(
    ("eosin", "haematoxylin"), [(0.7, 0.02), (0.35, 0.0), (0.2, 0.9), (0.05, 0.5)]
)
def test_strong_stains_are_not_ink(eosin, haematoxylin):
    drawing = Drawing(seed=10)
    drawing.tissue(
        blob(drawing.shape, (700, 500), (400, 350), drawing.rng), 1.0, eosin, haematoxylin
    )
    assert dice(found(drawing), drawing.mask) > 0.97


def test_red_ink_does_not_take_blood_with_it():
    drawing = Drawing(seed=11).pieces()
    blood = blob(drawing.shape, (420, 500), (110, 110), drawing.rng)
    drawing.paint(blood, (200, 62, 60))
    drawing.mask |= blood
    drawing.stroke([(60, 60), (60, 900)], INKS["red"], 60)
    assert dice(found(drawing), drawing.mask) > 0.97


@pytest.mark.parametrize("cell", [40.0, 80.0])
def test_fat_is_tissue(cell):
    drawing = Drawing(seed=12).pieces()
    where = blob(drawing.shape, (700, 760), (240, 200), drawing.rng) & ~drawing.mask
    drawing.fat(where, cell)
    assert dice(found(drawing), drawing.mask) > 0.96


def circles(*radii):
    drawing = Drawing(seed=13)
    y, x = np.mgrid[:1000, :1400]
    for number, radius in enumerate(radii):
        drawing.tissue((x - 250 * number - 150) ** 2 + (y - 500) ** 2 < (radius / MPP) ** 2)
    return drawing


def test_small_pieces_go_by_their_area_in_mm2():
    # Radii in µm: 0.008, 0.031 and 0.126 mm².
    area = found(circles(50, 100, 200))
    np.testing.assert_allclose(
        sorted(g.area * MPP**2 / 1e6 for g in area.geoms), [0.0314, 0.1257], rtol=0.05
    )
    large = segment_tissue(
        circles(50, 100, 200).finished(), RESOLUTION, TissueSettings(min_area=0.1)
    ).area
    assert len(large.geoms) == 1


def test_holes_go_by_their_area_in_mm2():
    drawing = Drawing(seed=14).tissue(np.pad(np.ones((900, 1300), dtype=bool), 50))
    y, x = np.mgrid[:1000, :1400]
    for number, radius in enumerate((50, 120)):  # 0.008 and 0.045 mm²
        drawing.paint(
            (x - 400 - 500 * number) ** 2 + (y - 500) ** 2 < (radius / MPP) ** 2, drawing.glass
        )
    slide = drawing.finished()
    (piece,) = segment_tissue(slide, RESOLUTION).area.geoms
    (hole,) = piece.interiors
    assert shapely.Polygon(hole).area * MPP**2 / 1e6 == pytest.approx(0.045, rel=0.2)
    filled = segment_tissue(slide, RESOLUTION, TissueSettings(min_hole=0.1)).area
    assert sum(len(piece.interiors) for piece in filled.geoms) == 0


def test_the_same_picture_at_another_resolution_gives_the_same_tissue():
    slide = Drawing(seed=15).pieces().finished()
    small = slide.images[0].reshape(500, 2, 700, 2, 3).mean(axis=(1, 3)).round().astype(np.uint8)
    fine = segment_tissue(slide, RESOLUTION).area
    coarse = segment_tissue(
        DrawnSlide(small), Resolution(mpp=2 * MPP, magnification=2.5, source="given")
    ).area
    coarse = shapely.transform(coarse, lambda points: 2 * points)
    assert fine.symmetric_difference(coarse).area < 0.01 * fine.area


def test_the_outline_lies_on_whole_pixels_within_the_slide():
    drawing = Drawing(shape=(997, 1403), seed=16).tissue(np.ones((997, 1403), dtype=bool))
    area = found(drawing)
    assert area.bounds == (0, 0, 1403, 997)
    drawing = Drawing(shape=(997, 1403), seed=16).pieces()
    corners = shapely.get_coordinates(found(drawing))
    assert len(corners) > 100
    np.testing.assert_array_equal(corners, np.rint(corners))


def test_a_huge_slide_is_segmented_with_larger_pixels(monkeypatch):
    slide = Drawing(seed=17).pieces().finished()
    asked = []
    plain = slide.thumbnail
    monkeypatch.setattr(slide, "thumbnail", lambda longest: asked.append(longest) or plain(longest))
    monkeypatch.setattr("sgpmil.slides.tissue.segmentation.MOST_PIXELS", 10_000)
    coarse = segment_tissue(slide, RESOLUTION).area
    assert asked == [119]  # 119 × 85 pixels
    monkeypatch.setattr("sgpmil.slides.tissue.segmentation.MOST_PIXELS", MOST_PIXELS)
    fine = segment_tissue(slide, RESOLUTION).area
    assert asked[1] == 350
    assert coarse.symmetric_difference(fine).area < 0.1 * fine.area


def test_a_tiny_picture_of_tissue():
    drawing = Drawing(shape=(40, 40), seed=18).tissue(np.ones((40, 40), dtype=bool))
    assert found(drawing).area == 1600


@pytest.mark.parametrize(
    "wrong",
    [{"pixel": 0.0}, {"pixel": float("nan")}, {"min_area": -1.0}, {"smoothing": float("inf")}],
)
def test_impossible_settings(wrong):
    with pytest.raises(SettingsError, match=r"Expected .* but got"):
        TissueSettings(**wrong)


def inside(area, *points):
    return [bool(shapely.contains_xy(area, *point)) for point in points]


@pytest.mark.skipif(not SLIDES.is_dir(), reason="needs the slides beside the clone")
def test_real_slides():
    pytest.importorskip("openslide", reason="pip install '.[slides]'")
    from sgpmil.slides.reading import open_slide, slide_resolution

    # Points were chosen by eye on the pictures.
    with open_slide(SLIDES / "cmu-1-small-region.svs") as slide:
        area = segment_tissue(slide, slide_resolution(slide)).area
        tissue = [(900, 2700), (1100, 1200), (1250, 1650), (1550, 2400)]
        glass = [(300, 300), (2000, 1700), (300, 2000), (2050, 2800), (2090, 610)]
        assert inside(area, *tissue) == [True] * 4
        assert inside(area, *glass) == [False] * 5
    with open_slide(SLIDES / "tcga-cr-7395-01a-01-ts1.svs") as slide:
        area = segment_tissue(slide, slide_resolution(slide, given_mpp=2.0)).area
        tissue = [(1100, 1400), (3700, 2500), (3300, 500), (1500, 2900)]
        # White filling, the glass of two tiles, and the tear in the middle.
        outside = [(500, 200), (600, 650), (200, 3000), (1300, 3300), (2822, 2038)]
        assert inside(area, *tissue) == [True] * 4
        assert inside(area, *outside) == [False] * 5


@pytest.mark.skipif(not COLON.is_dir(), reason="needs the colon images beside the clone")
def test_real_pictures_full_of_tissue():
    from PIL import Image

    from sgpmil.slides.reading import open_slide

    shares, white = [], []
    for path in sorted(COLON.glob("*.png")):
        with open_slide(path) as slide:
            area = segment_tissue(slide, Resolution(0.5, 20.0, "given")).area
        shares.append(area.area / 250_000)
        with Image.open(path) as image:
            white.append((np.asarray(image.convert("RGB")).min(axis=2) > 215).mean())
    shares, white = np.array(shares), np.array(white)
    assert (white < 0.1).sum() >= 8
    assert shares[white < 0.1].min() > 0.97
    # What is white there is the inside of glands.
    assert (shares + white)[white < 0.2].min() > 0.97


GLASS = (240.0, 236.0, 225.0)


def picture(*colours, share=None):
    """Stripes of colours."""
    rows = [
        np.tile(np.array(c, dtype=np.float32), (n, 30, 1))
        for c, n in zip(colours, share or [10] * len(colours), strict=True)
    ]
    return np.concatenate(rows)


def everything(image):
    return np.ones(image.shape[:2], dtype=bool)


def test_saturation_is_counted_from_the_glass():
    image = picture(GLASS, (216.0, 118.0, 180.0))
    stain, glass = staining(image, everything(image))
    assert glass[:10].all()
    assert not glass[10:].any()
    np.testing.assert_allclose(stain[:10], 0, atol=1e-6)
    # Relative to the glass: 0.9, 0.5 and 0.8; as it is: 1 - 118 / 216.
    np.testing.assert_allclose(stain[10:], min(1 - 0.5 / 0.9, 1 - 118 / 216), rtol=1e-5)


def test_shadows_and_uneven_light_change_nothing():
    image = picture(GLASS, (216.0, 118.0, 180.0))
    shaded = image * np.linspace(0.9, 1, 30, dtype=np.float32)[None, :, None]
    np.testing.assert_allclose(
        staining(shaded, everything(image))[0], staining(image, everything(image))[0], atol=1e-5
    )


def test_without_glass_white_takes_its_place():
    image = picture((200.0, 120.0, 160.0), (230.0, 190.0, 215.0))
    stain, glass = staining(image, everything(image))
    assert not glass.any()
    np.testing.assert_allclose(stain[:10], 1 - 120 / 200, rtol=1e-5)
    assert staining_threshold(stain, everything(image), glass) == FAINTEST


def test_the_threshold_never_falls_between_pale_and_dark_tissue():
    # A tenth is glass; Otsu alone would part the two kinds of tissue.
    stain = np.repeat(np.float32([0.002, 0.1, 0.5]), [3, 14, 13])[:, None].repeat(30, axis=1)
    glass = stain < 0.01
    assert staining_threshold(stain, np.ones_like(glass), glass) == pytest.approx(FAINT)


def test_the_threshold_is_above_the_noise_of_the_glass():
    rng = np.random.default_rng(0)
    stain = np.abs(rng.normal(0, 0.02, (200, 200))).astype(np.float32)
    everything_is_glass = np.ones((200, 200), dtype=bool)
    found = staining_threshold(stain, everything_is_glass, everything_is_glass)
    # Median and median deviation of |N(0, 1)|: 0.6745 and 0.3990.
    assert found == pytest.approx(0.02 * (0.6745 + 6 * 1.4826 * 0.3990), rel=0.03)
    assert (stain > found).mean() < 1e-4


def test_between_the_limits_it_is_halfway_on_the_scale_of_logarithms():
    stain = np.repeat(np.float32([0.002, 0.2]), [15, 15])[:, None].repeat(30, axis=1)
    glass = stain < 0.01
    found = staining_threshold(stain, np.ones_like(glass), glass)
    assert FAINTEST <= found <= FAINT


PIXEL = 8.0


def spot(colour, side=20):
    """Paint a square in the middle of glass; say which of its pixels are ink."""
    image = np.full((60, 60, 3), 243, dtype=np.float32)
    first, last = 30 - side // 2, 30 + side // 2
    image[first:last, first:last] = colour
    return find_ink(image, PIXEL)[first:last, first:last]


BLUE = [(40, 60, 180), (50, 45, 150), (89, 104, 190), (30, 40, 110), (36, 28, 107)]
GREEN = [(40, 150, 70), (20, 130, 130), (120, 200, 140)]
RED = [(215, 30, 40), (240, 50, 60), (190, 20, 50)]
BLACK = [(0, 0, 0), (12, 0, 8), (40, 40, 45), (90, 90, 95), (121, 121, 126)]


@pytest.mark.parametrize("colour", [*BLUE, *GREEN, *RED, *BLACK])
def test_inks(colour):
    assert spot(colour).all()


@pytest.mark.parametrize("eosin", [0.0, 0.05, 0.3, 0.8, 1.2])
@pytest.mark.parametrize("haematoxylin", [0.0, 0.1, 0.4, 0.8])
@pytest.mark.parametrize("glass", [243, 200])
def test_stains_are_no_ink(eosin, haematoxylin, glass):
    assert not spot(glass * np.exp(-eosin * EOSIN - haematoxylin * HAEMATOXYLIN)).any()


@pytest.mark.parametrize(
    "colour",
    # Blood, DAB, folds, the pale blue counterstain of immunohistochemistry, grey glass.
    [
        (200, 62, 60),
        (190, 80, 90),
        (120, 80, 50),
        (80, 30, 90),
        (135, 15, 45),
        (170, 180, 210),
        (160, 160, 160),
    ],
)
def test_what_else_is_no_ink(colour):
    assert not spot(colour).any()


def test_specks_are_no_strokes():
    assert not spot((40, 60, 180), side=4).any()
    assert not spot((0, 0, 0), side=4).any()


def test_the_blurred_edge_of_a_stroke_belongs_to_it():
    image = np.full((60, 60, 3), 243, dtype=np.float32)
    image[20:40, 20:40] = (215, 30, 40)
    image[20:40, 40:43] = (236, 190, 192)  # its edge
    image[20:40, 43:50] = (236, 180, 205)  # tissue beside it
    ink = find_ink(image, PIXEL)
    assert ink[20:40, 20:43].all()
    assert not ink[:, 43:].any()
