"""Scores on a scale that suits a picture."""

from typing import Literal, get_args

import numpy as np

from sgpmil.errors import ExplanationError
from sgpmil.shapes import Float

__all__ = ["ScaleKind", "scaled"]

ScaleKind = Literal["absolute", "rank", "minmax"]
"""`absolute`: the scores themselves, which can be compared between slides. `rank` and `minmax`:
relative to the slide, so that its highest score is 1 whatever it is."""


def scaled(values: Float[np.ndarray, " N"], scale: ScaleKind) -> Float[np.ndarray, " N"]:
    r"""Put the scores of a slide on a scale.

    With the average rank $r_k \in [1, N]$ of score $a_k$ among the N finite ones,

    $$ \text{rank: } \frac{r_k - 1}{N - 1}, \qquad
       \text{minmax: } \frac{a_k - \min_j a_j}{\max_j a_j - \min_j a_j}. $$

    Scores that are all equal (or a single one) have no order, and become 1/2. What is NaN stays
    NaN and is left out of the rest.

    Args:
        values: Scores of the instances.
        scale: Which scale.

    Raises:
        ExplanationError: There is no such scale, or a score is infinite.

    Example:
        >>> scaled(np.array([3.0, 1.0, 1.0, 9.0]), "rank").round(2)
        array([0.67, 0.17, 0.17, 1.  ])
        >>> scaled(np.array([3.0, 1.0, 1.0, 9.0]), "minmax")
        array([0.25, 0.  , 0.  , 1.  ])
    """
    if scale not in get_args(ScaleKind):
        raise ExplanationError(
            f"Expected the scale 'absolute', 'rank' or 'minmax', but got '{scale}'. "
            "Choose one of the three."
        )
    if np.isinf(values).any():
        raise ExplanationError(
            "Expected finite scores, but got an infinite one. Check the model that gave them."
        )
    if scale == "absolute":
        return values
    known = ~np.isnan(values)
    result = np.full(len(values), np.nan)
    numbers = values[known].astype(np.float64)
    if not len(numbers):
        return result
    lowest, highest = numbers.min(), numbers.max()
    if lowest == highest:
        result[known] = 0.5
    elif scale == "rank":
        from scipy.stats import rankdata  # half a second to import, seldom needed

        result[known] = (rankdata(numbers) - 1) / (len(numbers) - 1)
    else:
        # Halved first: the difference of two large numbers need not be a number.
        result[known] = (numbers / 2 - lowest / 2) / (highest / 2 - lowest / 2)
    return result
