"""Where the instances of a slide lie, and how large they are."""

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.shapes import Int

__all__ = ["patch_side", "placed_coords"]


def placed_coords(scores: InstanceScores) -> Int[np.ndarray, "N 2"]:
    """Give the top-left corners of the instances, which every map and export needs.

    Args:
        scores: Scores of a slide's instances.

    Raises:
        ExplanationError: The scores have no coordinates, or there is no instance.
    """
    if scores.coords is None:
        raise ExplanationError(
            "Expected scores with the coordinates of their patches, but got none. "
            "Predict again from embeddings that were stored with 'coords'."
        )
    if not scores.num_instances:
        raise ExplanationError(
            "Expected the scores of at least one patch, but got none. Leave this slide out."
        )
    return scores.coords


def patch_side(scores: InstanceScores) -> int:
    """Give the side of a patch in level-0 pixels.

    Where it was not stored, it is the spacing of the patches: the commonest step between
    neighbours of a row or a column or, where no two share one, the median distance (the larger
    of the two axes') to the nearest other. Patches that overlap are then drawn too small.

    Args:
        scores: Scores of a slide's instances.

    Raises:
        ExplanationError: The scores have no coordinates, or the side is unknown and there is
            only one place to infer it from.

    Example:
        >>> coords = np.array([[0, 0], [256, 0], [512, 0], [131, 256], [387, 256]])
        >>> patch_side(InstanceScores(np.ones(5), np.zeros(5), coords=coords))
        256
    """
    coords = placed_coords(scores)
    if scores.patch_size is not None:
        if scores.patch_size < 1:
            raise ExplanationError(
                f"Expected patches of at least one pixel, but got a side of {scores.patch_size}. "
                "Store the embeddings with 'patch_size_level0'."
            )
        return scores.patch_size
    places = np.unique(coords.astype(np.int64), axis=0)
    if len(places) < 2:
        raise ExplanationError(
            "Expected patches of a known size, but it was not stored and cannot be inferred from "
            "a single place. Store the embeddings with 'patch_size_level0'."
        )
    steps = np.concatenate([_steps(places, axis) for axis in (0, 1)])
    if len(steps):
        found, counts = np.unique(steps, return_counts=True)
        return int(found[np.argmax(counts)])
    from scipy.spatial import cKDTree  # slow to import, seldom needed

    nearest, _ = cKDTree(places).query(places, k=2, p=np.inf)
    return max(1, round(float(np.median(nearest[:, 1]))))


def _steps(places: Int[np.ndarray, "N 2"], axis: int) -> Int[np.ndarray, " K"]:
    """Steps along an axis between neighbours that are level on the other one."""
    ordered = places[np.lexsort((places[:, axis], places[:, 1 - axis]))]
    level = ordered[1:, 1 - axis] == ordered[:-1, 1 - axis]
    return np.diff(ordered[:, axis])[level]
