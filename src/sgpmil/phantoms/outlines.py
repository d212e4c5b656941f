"""Organic outlines: the shapes that tissue, glands and tumours are made of. Lengths in microns."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sgpmil.shapes import Float

if TYPE_CHECKING:
    from shapely import Geometry
else:
    Geometry = Any  # shapely is of an optional part, and is loaded when it is first needed

__all__ = ["blob", "ribbon", "solid"]


def blob(
    rng: np.random.Generator,
    centre: tuple[float, float],
    radius: float,
    *,
    elongation: float = 1.0,
    roughness: float = 0.25,
    step: float = 5.0,
    decay: float = 1.5,
) -> Geometry:
    r"""Draw a closed outline around a centre.

    The logarithm of the radius is a random Fourier series, with amplitudes that fall as
    $k^{-\text{decay}}$: large lobes and a fine, ragged edge, and never a crossing.

    Args:
        rng: Source of chance.
        centre: Centre.
        radius: Typical radius.
        elongation: Length over width; the direction is drawn.
        roughness: Standard deviation of the logarithm of the radius.
        step: Distance between corners.
        decay: How quickly the fine waves fade.

    Returns:
        A valid Polygon.
    """
    import shapely

    num_points = int(np.clip(2 * np.pi * radius * np.sqrt(elongation) / step, 16, 6000))
    waves = np.arange(2, max(3, num_points // 4))
    spectrum = np.zeros(num_points // 2 + 1, dtype=complex)
    amplitude = waves**-decay
    amplitude *= roughness / np.sqrt((amplitude**2).sum())
    phase = rng.normal(size=len(waves)) + 1j * rng.normal(size=len(waves))
    spectrum[waves] = phase * amplitude * num_points / 2
    stretch = np.exp(np.clip(np.fft.irfft(spectrum, num_points), -1.2, 1.2))
    angle = 2 * np.pi * np.arange(num_points) / num_points
    along = radius * stretch * np.cos(angle) * np.sqrt(elongation)
    across = radius * stretch * np.sin(angle) / np.sqrt(elongation)
    turn = rng.uniform(0, np.pi)
    x = centre[0] + along * np.cos(turn) - across * np.sin(turn)
    y = centre[1] + along * np.sin(turn) + across * np.cos(turn)
    return solid(shapely.Polygon(np.column_stack([x, y])))


def ribbon(
    rng: np.random.Generator,
    start: Float[np.ndarray, "2"],
    end: Float[np.ndarray, "2"],
    width: float,
    *,
    bend: float = 0.2,
    roughness: float = 0.12,
) -> Geometry:
    """Draw a bent band of about the same width from one place to another.

    Args:
        rng: Source of chance.
        start: Middle of one end.
        end: Middle of the other end.
        width: Typical width.
        bend: How far it bends aside, as a share of its length.
        roughness: How much its width varies.

    Returns:
        A valid Polygon.
    """
    import shapely

    along = end - start
    length = float(np.hypot(*along))
    t = np.linspace(0, 1, max(8, int(length / 12)))
    normal = np.array([-along[1], along[0]]) / max(length, 1e-9)
    waves, lumps = np.zeros_like(t), np.zeros_like(t)
    for k in range(1, 4):
        waves += rng.normal() / k * np.sin(k * np.pi * t + rng.uniform(0, np.pi))
    for k in range(2, 9):
        lumps += rng.normal() / np.sqrt(k) * np.sin(k * np.pi * t + rng.uniform(0, 2 * np.pi))
    middle = start + t[:, None] * along + (bend * length / 2 * waves)[:, None] * normal
    middle = middle + rng.normal(scale=0.004 * width, size=middle.shape)
    half = width / 2 * np.clip(1 + roughness * lumps, 0.4, 1.6)
    discs = shapely.buffer(shapely.points(middle), half, quad_segs=6)
    # The hulls of neighbouring discs, joined, are a band without gaps at its bends.
    hulls = [shapely.convex_hull(shapely.union(a, b)) for a, b in pairwise(discs)]
    return solid(shapely.union_all(hulls))


def solid(area: Geometry) -> Geometry:
    """Keep the valid, two-dimensional part of a geometry."""
    import shapely

    valid = area if shapely.is_valid(area) else shapely.buffer(area, 0)
    parts = [p for p in shapely.get_parts(valid) if p.geom_type == "Polygon" and p.area > 0]
    return parts[0] if len(parts) == 1 else shapely.MultiPolygon(parts)
