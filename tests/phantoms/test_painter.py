from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import shapely

from sgpmil.phantoms import make_scene, render
from sgpmil.phantoms.filling import Window
from sgpmil.phantoms.painter import Painter
from sgpmil.phantoms.stain import Paint

from .scenes import PARTS, SMALL, tissue_kinds

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def picture(scene):
    return render(scene, 0, 0, *SMALL.size)


def test_windows_agree_bit_by_bit(scene, picture):
    rng = np.random.default_rng(0)
    for _ in range(25):
        x, y = int(rng.integers(0, 1500)), int(rng.integers(0, 1100))
        width, height = int(rng.integers(1, 500)), int(rng.integers(1, 400))
        window = render(scene, x, y, width, height)
        np.testing.assert_array_equal(window, picture[y : y + height, x : x + width])
    left, right = render(scene, 700, 300, 333, 250), render(scene, 1033, 300, 91, 250)
    np.testing.assert_array_equal(np.hstack([left, right]), render(scene, 700, 300, 424, 250))


@pytest.mark.parametrize("mpp", [0.5, 0.25, 0.4])
def test_blocks_have_no_seams(mpp):
    """What lies in a block must not depend on where it begins, or its edges would be seen."""
    scene = make_scene(3, replace(SMALL, size=(int(1000 / mpp), int(750 / mpp)), mpp=mpp))
    painter = Painter(scene)
    left, top, _, _ = (int(edge) for edge in scene.in_pixels(scene.tumour).bounds)
    whole = painter.block(Window(left - 100, top - 100, 900, 700)).astype(int)
    for x, y, width, height in ((0, 0, 450, 350), (131, 77, 300, 411), (449, 350, 451, 350)):
        part = painter.block(Window(left - 100 + x, top - 100 + y, width, height))
        difference = np.abs(part - whole[y : y + height, x : x + width])
        # Smooth fields are interpolated in single precision: a rounding may tip.
        assert difference.max() <= 1
        assert (difference > 0).mean() < 1e-3


def test_same_seed_same_pixels(scene, picture):
    again = make_scene(3, SMALL)
    np.testing.assert_array_equal(render(again, 500, 400, 600, 600), picture[400:1000, 500:1100])
    other = make_scene(4, SMALL)
    assert (render(other, 500, 400, 600, 600) != picture[400:1000, 500:1100]).mean() > 0.5


def centres(window):
    x, y, width, height = window
    return np.meshgrid(x + np.arange(width) + 0.5, y + np.arange(height) + 0.5)


def test_classes_are_the_areas(scene):
    window = (0, 0, *SMALL.size)
    classes = tissue_kinds(scene, *window)
    x, y = centres(window)

    def inside(area):
        pixels = scene.in_pixels(area)
        shapely.prepare(pixels)
        return shapely.contains_xy(pixels, x, y)

    expected = np.where(inside(scene.tissue), Paint.STROMA, Paint.GLASS)
    glands = shapely.multipolygons([gland.outline for gland in scene.glands])
    for kind, area in (
        (Paint.LYMPHOID, scene.lymphocytes),
        (Paint.FAT, scene.fat),
        (Paint.EPITHELIUM, glands),
        (Paint.TUMOUR, scene.tumour),
    ):
        expected[inside(area)] = kind
    np.testing.assert_array_equal(classes, expected)
    assert set(np.unique(classes)) == set(Paint) - set(PARTS)


def test_class_windows_agree(scene):
    whole = tissue_kinds(scene, 0, 0, *SMALL.size)
    np.testing.assert_array_equal(tissue_kinds(scene, 611, 333, 401, 299), whole[333:632, 611:1012])


def test_normal_slides_show_no_tumour(normal_scene):
    classes = tissue_kinds(normal_scene, 0, 0, *SMALL.size)
    assert not (classes == Paint.TUMOUR).any()


def test_colours(scene, picture):
    classes = tissue_kinds(scene, 0, 0, *SMALL.size)
    x, y = centres((0, 0, *SMALL.size))
    over = shapely.union_all([scene.in_pixels(mark.outline) for mark in scene.pen])
    over = shapely.union(over, scene.in_pixels(scene.folds))
    plain = ~shapely.contains_xy(shapely.buffer(over, 12), x, y)
    glass = picture[(classes == Paint.GLASS) & plain].astype(float)
    # Some of it is touched by cells that lie at the tissue's edge, and some by dust.
    assert np.abs(np.median(glass, axis=0) - np.rint(scene.stain.background)).max() <= 1
    assert 0.8 < glass.std(axis=0).min() < 15
    stroma = picture[(classes == Paint.STROMA) & plain].mean(axis=0)
    assert stroma[0] > stroma[2] > stroma[1]
    lymphocytes = picture[(classes == Paint.LYMPHOID) & plain].mean(axis=0)
    assert lymphocytes[0] < stroma[0] - 20
    fat = picture[(classes == Paint.FAT) & plain].mean(axis=0)
    assert fat.sum() > stroma.sum()


def test_beyond_the_slide_is_glass(scene):
    beyond = render(scene, -3000, -3000, 300, 300).astype(float)
    assert np.abs(np.median(beyond, axis=(0, 1)) - np.rint(scene.stain.background)).max() <= 1


def test_folds_are_darker_and_pens_have_their_ink(scene, picture):
    x, y = centres((0, 0, *SMALL.size))
    bare = make_scene(3, replace(SMALL, pen_share=0.0, fold_share=0.0))
    without = render(bare, 0, 0, *SMALL.size)
    pen = shapely.union_all([scene.in_pixels(mark.outline) for mark in scene.pen])
    folds = shapely.difference(scene.in_pixels(scene.folds), shapely.buffer(pen, 8))
    folded = shapely.contains_xy(shapely.buffer(folds, -3), x, y)
    assert picture[folded].mean() < 0.9 * without[folded].mean()
    marked = shapely.contains_xy(shapely.buffer(pen, -6), x, y)
    glass = tissue_kinds(scene, 0, 0, *SMALL.size) == Paint.GLASS
    passed = picture[marked & glass].mean(axis=0) / without[marked & glass].mean(axis=0)
    expected = 1 - 0.86 * (1 - np.array(scene.pen[0].passes))
    np.testing.assert_allclose(passed, expected, atol=0.05)
    elsewhere = ~shapely.contains_xy(
        shapely.buffer(shapely.union(pen, scene.in_pixels(scene.folds)), 12), x, y
    )
    np.testing.assert_array_equal(picture[elsewhere], without[elsewhere])


def test_texture_tells_the_tumour_and_mean_colour_does_not():
    import cv2
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    side = 128
    settings = replace(SMALL, size=(2816, 2048), mpp=1.0, tumour_share=0.1, pen_share=0.0)
    colour, texture, tumour, slide = [], [], [], []
    for seed in range(6):
        scene = make_scene(100 + seed, settings)
        picture = render(scene, 0, 0, *settings.size)
        classes = tissue_kinds(scene, 0, 0, *settings.size)
        for y in range(0, settings.size[1], side):
            for x in range(0, settings.size[0], side):
                here = classes[y : y + side, x : x + side]
                share = (here == Paint.TUMOUR).mean()
                if (here > 0).mean() < 0.5 or 0 < share < 0.5:
                    continue
                patch = picture[y : y + side, x : x + side]
                grey = cv2.cvtColor(patch, cv2.COLOR_RGB2GRAY).astype(np.float32)
                bands = []
                for sigma in (1, 2, 4, 8):
                    blurred = cv2.GaussianBlur(grey, (0, 0), sigma)
                    bands.append(np.log(np.std(grey - blurred)))
                    grey = blurred
                colour.append(patch.mean(axis=(0, 1)))
                texture.append(bands)
                tumour.append(share >= 0.5)
                slide.append(seed)
    tumour, train = np.array(tumour), np.array(slide) % 2 == 0

    def auc(features):
        model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
        model.fit(np.array(features)[train], tumour[train])
        return roc_auc_score(tumour[~train], model.decision_function(np.array(features)[~train]))

    assert tumour.sum() > 50
    assert auc(texture) > 0.93
    assert auc(colour) < 0.87
