"""A colour for each of the most used prototypes, the same on every slide.

The colour depends on how a prototype ranks by use over all slides that are explained together,
and on nothing else.
"""

from collections.abc import Sequence

__all__ = ["NEUTRAL", "PALETTE", "prototype_colours"]

PALETTE = (
    "#88CCEE",
    "#E69F00",
    "#1B2A6B",
    "#EE6677",
    "#EEDD88",
    "#4477AA",
    "#CC3311",
    "#882255",
    "#5C3A1E",
    "#000000",
)
"""Colours that the colour-blind can tell apart from each other, from grey and from white.

Taken from the schemes of Tol and of Okabe and Ito such that, as normal, protan, deutan and tritan
eyes see them, every two differ by more than 20 in CIELAB.
"""

NEUTRAL = "#BBBBBB"
"""The colour of prototypes that are used less."""


def prototype_colours(order: Sequence[int]) -> dict[int, str]:
    """Give each prototype its colour.

    Args:
        order: Numbers of the prototypes, the most used first.

    Example:
        >>> prototype_colours([7, 3])
        {7: '#88CCEE', 3: '#E69F00'}
    """
    shown = len(PALETTE)
    return {number: PALETTE[rank] if rank < shown else NEUTRAL for rank, number in enumerate(order)}
