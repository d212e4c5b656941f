import numpy as np
import pytest

pytest.importorskip("cv2", reason="pip install 'sgpmil[slides]'")

from sgpmil.slides.tissue.staining import FAINT, FAINTEST, staining, staining_threshold

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
