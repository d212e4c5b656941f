import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import shapely
from PIL import Image
from shapely import box

from sgpmil.slides.tissue import Tissue, write_preview

from .drawn_slides import DrawnSlide

TISSUE = Tissue(shapely.difference(box(200, 200, 1000, 700), box(500, 400, 700, 500)))
GREEN, BLUE = (0, 150, 60), (30, 80, 255)


def picture(tmp_path, size=(1200, 900), name="a.png", **options):
    slide = DrawnSlide(np.full((size[1], size[0], 3), 255), mpp=options.pop("file_mpp", None))
    write_preview(tmp_path / name, slide, options.pop("tissue", TISSUE), **options)
    with Image.open(tmp_path / name) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def has(image, x, y, colour, tolerance=90):
    """Say whether the colour is within two pixels of a point."""
    part = image[max(0, y - 2) : y + 3, max(0, x - 2) : x + 3].reshape(-1, 3)
    return bool((np.abs(part - colour).sum(axis=1) < tolerance).any())


def test_contours_are_where_the_tissue_is(tmp_path):
    image = picture(tmp_path)
    assert image.shape == (900, 1200, 3)
    for x, y in [(200, 450), (1000, 300), (600, 200), (600, 700)]:
        assert has(image, x, y, GREEN)
    for x, y in [(500, 450), (700, 450), (600, 400), (600, 500)]:
        assert has(image, x, y, BLUE)
    for x, y in [(100, 100), (350, 300), (600, 450), (1100, 800)]:
        assert (image[y, x] == 255).all()


def test_a_large_slide_is_made_smaller(tmp_path):
    large = Tissue(shapely.transform(TISSUE.area, lambda points: 4 * points))
    image = picture(tmp_path, size=(4800, 3600), tissue=large)
    assert image.shape == (1200, 1600, 3)
    assert has(image, 800 // 3, 1800 // 3, GREEN)
    assert has(image, 2000 // 3, 1800 // 3, BLUE)


def test_patches_are_thin_squares(tmp_path):
    image = picture(tmp_path, coords=np.array([[300, 250], [400, 250]]), side=100)
    grey = np.full(3, 130)
    for x, y in [(300, 300), (400, 300), (500, 300), (350, 250), (350, 350), (450, 350)]:
        assert has(image, x, y, grey, tolerance=150)
    assert (image[300, 350] == 255).all()
    assert (image[300, 550] == 255).all()


@pytest.mark.parametrize(
    ("mpp", "length"), [(1.0, 200), (0.25, 200), (0.7, round(100 / 0.7)), (3.0, round(500 / 3))]
)
def test_the_bar_has_the_length_it_says(tmp_path, mpp, length):
    image = picture(tmp_path, mpp=mpp)
    black = (image[880:] == 0).all(axis=2)
    longest = max(np.ptp(np.flatnonzero(row)) + 1 for row in black if row.any())
    assert longest == length


def test_the_bar_follows_the_file_or_is_left_out(tmp_path):
    def has_bar(**options):
        return bool((picture(tmp_path, **options)[800:, :400] < 60).all(axis=2).any())

    assert has_bar(file_mpp=1.0)
    assert not has_bar()


def test_no_tissue_and_no_patches(tmp_path):
    nothing = Tissue(shapely.MultiPolygon())
    image = picture(tmp_path, tissue=nothing, coords=np.zeros((0, 2), dtype=np.int64), side=64)
    assert (image == 255).all()


def test_a_tiny_slide(tmp_path):
    image = picture(tmp_path, size=(5, 3), tissue=Tissue(box(0, 0, 5, 3)), mpp=0.5)
    assert image.shape == (3, 5, 3)


@pytest.mark.parametrize(
    ("name", "kind"), [("ä b.1.png", "PNG"), ("a.jpg", "JPEG"), ("a.JPEG", "JPEG")]
)
def test_the_format_follows_the_name(tmp_path, name, kind):
    picture(tmp_path, name=name)
    with Image.open(tmp_path / name) as image:
        assert image.format == kind
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_the_same_slide_gives_the_same_bytes(tmp_path):
    picture(tmp_path, name="a.png", mpp=1.0)
    picture(tmp_path, name="b.png", mpp=1.0)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
