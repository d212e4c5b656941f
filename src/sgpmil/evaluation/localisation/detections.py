"""Points of a slide at which a score says that there is something."""

from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError
from sgpmil.shapes import Float, Int

__all__ = ["Detections", "find_detections"]


@dataclass(frozen=True, slots=True, eq=False)
class Detections:
    """Detections of one slide, the highest score first.

    Args:
        scores: Score of each.
        points: Place (x, y) of each in level-0 pixels.
    """

    scores: Float[np.ndarray, " K"]
    points: Float[np.ndarray, "K 2"]


def find_detections(
    scores: Float[np.ndarray, " N"],
    coords: Int[np.ndarray, "N 2"],
    patch_size: int,
    radius: float,
) -> Detections:
    """Keep the local maxima of a score over the patches.

    Non-maximum suppression: the patch with the highest score is kept and all within the radius
    of it are dropped, until none is left. Of equal scores the first patch is kept.

    Args:
        scores: Score of each patch.
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        patch_size: Side of a patch in level-0 pixels; a detection is at the centre.
        radius: Distance of centres in level-0 pixels up to which a patch is suppressed; 0 keeps
            every patch.

    Raises:
        PredictionError: The radius is negative.

    Example:
        >>> row = np.array([[0, 0], [10, 0], [20, 0]])
        >>> find_detections(np.array([0.2, 0.9, 0.8]), row, 10, 10.0).scores
        array([0.9])
    """
    if radius < 0:
        raise PredictionError(
            f"Expected a radius of at least 0 level-0 pixels, but got {radius}. "
            "Use a few patch sizes."
        )
    from scipy.spatial import KDTree

    centres = coords + patch_size / 2
    order = np.argsort(-scores, kind="stable")
    if radius > 0:
        tree = KDTree(centres)
        alive = np.ones(len(scores), dtype=bool)
        kept = []
        for patch in order:
            if alive[patch]:
                kept.append(patch)
                alive[tree.query_ball_point(centres[patch], radius)] = False
        order = np.array(kept, dtype=np.int64)
    return Detections(np.asarray(scores[order], dtype=np.float64), centres[order])
