"""Textures that repeat themselves over the plane: fibres, grain and the noise of a sensor."""

from functools import lru_cache

import numpy as np

from sgpmil.phantoms.windows import Window
from sgpmil.shapes import Float, UInt8

__all__ = ["PERIOD", "SPREAD", "fibres", "grain", "grain_in", "noise_in"]

PERIOD = 1024
"""Side of a texture in pixels, and of the largest window."""
SPREAD = 42.0
"""Standard deviation of a texture around its mean of 128."""


@lru_cache(maxsize=4)
def fibres(mpp: float) -> UInt8[np.ndarray, "P P"]:
    """Draw collagen: fibres along x, a few microns thick, in bundles.

    Args:
        mpp: Microns per pixel.
    """
    thin = _filtered(1, 14.0 / mpp, 0.7 / mpp)
    thick = _filtered(2, 30.0 / mpp, 2.2 / mpp)
    cloudy = _filtered(6, 18.0 / mpp, 12.0 / mpp)
    return _bytes(thin + 0.9 * thick + 0.5 * cloudy)


@lru_cache(maxsize=4)
def grain(mpp: float) -> UInt8[np.ndarray, "P P"]:
    """Draw cytoplasm: cloudy, with fine grain.

    Args:
        mpp: Microns per pixel.
    """
    return _bytes(_filtered(3, 0.8 / mpp, 0.8 / mpp) + 0.9 * _filtered(4, 3.5 / mpp, 3.5 / mpp))


def grain_in(window: Window, mpp: float, shift: tuple[int, int]) -> Float[np.ndarray, "h w"]:
    """Cut a window out of the grain, in standard deviations.

    Args:
        window: The window; not larger than the period.
        mpp: Microns per pixel.
        shift: Where the slide's corner lies in the texture.
    """
    return (_cut(_tiled_grain(mpp), window, shift).astype(np.float32) - 128) * (1 / SPREAD)


def noise_in(window: Window, shift: tuple[int, int]) -> np.ndarray:
    """Cut a window out of the noise of a sensor, a grey level or two strong (int8, three colours).

    Args:
        window: The window; not larger than the period.
        shift: Where the slide's corner lies in the texture.
    """
    return _cut(_tiled_noise(), window, shift)


@lru_cache(maxsize=4)
def _tiled_grain(mpp: float) -> UInt8[np.ndarray, "Q Q"]:
    return np.tile(grain(mpp), (2, 2))


@lru_cache(maxsize=1)
def _tiled_noise() -> np.ndarray:
    noise = np.random.default_rng(5).normal(0, 1.6, size=(PERIOD, PERIOD, 3))
    return np.tile(np.rint(noise).astype(np.int8), (2, 2, 1))


def _cut(tiled: np.ndarray, window: Window, shift: tuple[int, int]) -> np.ndarray:
    # The texture is held four times over, so that any window is a plain slice of it.
    left, top = (window.x + shift[0]) % PERIOD, (window.y + shift[1]) % PERIOD
    return tiled[top : top + window.height, left : left + window.width]


def _filtered(seed: int, along: float, across: float) -> Float[np.ndarray, "P P"]:
    """Blur noise by a Gaussian, around the edges, to standard deviation 1."""
    noise = np.random.default_rng(seed).normal(size=(PERIOD, PERIOD))
    row, column = np.fft.fftfreq(PERIOD)[:, None], np.fft.rfftfreq(PERIOD)[None, :]
    keep = np.exp(-2 * np.pi**2 * ((across * row) ** 2 + (along * column) ** 2))
    keep[0, 0] = 0.0
    blurred = np.fft.irfft2(np.fft.rfft2(noise) * keep, s=(PERIOD, PERIOD))
    return blurred / blurred.std()


def _bytes(texture: Float[np.ndarray, "P P"]) -> UInt8[np.ndarray, "P P"]:
    return np.rint(128 + SPREAD * texture / texture.std()).clip(0, 255).astype(np.uint8)
