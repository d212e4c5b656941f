"""How well prototypes, or any clusters of patches, agree with what is known of the tissue."""

from collections.abc import Sequence

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.shapes import Int
from sgpmil.slides.annotations.patch_labels import patch_coverage
from sgpmil.slides.annotations.regions import Annotations, Region

__all__ = ["normalised_mutual_information", "tissue_classes"]


def normalised_mutual_information(
    clusters: Int[np.ndarray, " N"], classes: Int[np.ndarray, " _"]
) -> float:
    r"""Say how much clusters tell of classes, and classes of clusters.

    $$ \mathrm{NMI} = \frac{2\, I(A; B)}{H(A) + H(B)} $$

    is 0 where they are independent and 1 where each determines the other. It does not correct
    for chance, and many clusters cost by their entropy: compare equal numbers of clusters.

    Args:
        clusters: Cluster of each patch.
        classes: Class of each patch; patches of unknown class (negative) are left out.

    Raises:
        ExplanationError: The two are of different patches, or no class is known.

    Example:
        >>> normalised_mutual_information(np.array([5, 5, 2]), np.array([0, 0, 1]))
        1.0
    """
    if clusters.shape != classes.shape:
        raise ExplanationError(
            f"Expected a class for each of {len(clusters)} patches, but got {len(classes)}. "
            "Take both from the same slides."
        )
    known = classes >= 0
    if not known.any():
        raise ExplanationError(
            f"Expected patches of known tissue class, but all {len(classes)} are unknown. "
            "Give the regions of these slides."
        )
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(classes[known], clusters[known]))


def tissue_classes(
    coords: Int[np.ndarray, "N 2"],
    patch_size: int,
    regions: Sequence[Region],
    class_names: Sequence[str],
) -> Int[np.ndarray, " N"]:
    """Give each patch the class that covers most of it; -1 where none covers any.

    Of classes that cover the same share, the last is taken: name those that lie on top last.

    Args:
        coords: Top-left corner (x, y) of each patch in level-0 pixels.
        patch_size: Side of a patch in level-0 pixels.
        regions: Regions of the slide.
        class_names: Names of the classes; regions of other names are passed over.

    Example:
        >>> from shapely import box
        >>> drawn = [Region(box(0, 0, 3, 8), "Fat"), Region(box(3, 0, 9, 8), "Stroma")]
        >>> tissue_classes(np.array([[0, 0], [2, 0], [9, 9]]), 4, drawn, ["Fat", "Stroma"])
        array([ 0,  1, -1])
    """
    best = np.zeros(len(coords))
    classes = np.full(len(coords), -1, dtype=np.int64)
    for number, name in enumerate(class_names):
        own = tuple(region for region in regions if region.name == name)
        coverage = patch_coverage(coords, patch_size, Annotations(own))
        # Areas are exact only up to rounding.
        better = (coverage > 0) & (coverage >= best - 1e-9)
        classes[better] = number
        best = np.maximum(best, coverage)
    return classes
