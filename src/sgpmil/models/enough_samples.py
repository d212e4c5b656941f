r"""Samples of a prediction, as many as each bag needs.

The probability of a bag is a mean over samples. Of $n$ pairs of samples with opposite noise, whose
means have the standard deviation $s$, it has the standard error $s / \sqrt n$. Most bags are clear,
and a few hundred samples say enough; where samples contradict each other, thousands are needed.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sgpmil.shapes import Float, Int

MOST_DOUBLINGS = 5
"""Samples of a bag are 32 times the first ones at most. A probability that is .5 with samples at 0
and 1 then has a standard error of .004 after 480 first ones, were they independent."""

MOST_DRAWS = 2**28
"""Samples of a bag times its instances are so many at most, or the first samples: a slide of a
million patches would else take minutes."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Logits of bags, those of some repeated until all have as many.

    Args:
        logits: Class logits of each bag and sample.
        num_different: Number of different samples of each bag.
    """

    logits: Float[Tensor, "B S C"]
    num_different: Int[Tensor, " B"]


def enough_samples(
    draw: Callable[[int, Int[Tensor, " _"]], Float[Tensor, "_ S C"]],
    sizes: Int[Tensor, " B"],
    *,
    error: float,
    corrected: Callable[[Float[Tensor, "_ S C"]], Float[Tensor, "_ S C"]] = lambda logits: logits,
) -> Samples:
    """Double the samples of each bag until its probabilities are exact enough.

    The result of a bag does not depend on the others.

    Args:
        draw: Given 0 and all bags, the first samples; given k > 0 and some bags, as many new ones
            as there are already. Samples come in pairs, the two of a pair next to each other.
        sizes: Number of instances of each bag, on the device of the samples.
        error: Standard error of a probability up to which it is exact enough; 0 takes the first
            samples alone.
        corrected: Turns logits into those that predictions are of.
    """
    wanting = torch.arange(len(sizes), device=sizes.device)
    logits = draw(0, wanting)
    num_different = torch.full_like(sizes, logits.shape[1])
    for doubling in range(1, MOST_DOUBLINGS + 1 if error > 0 else 1):
        wanting = wanting[2 * logits.shape[1] * sizes[wanting] <= MOST_DRAWS]
        wanting = wanting[standard_error(corrected(logits[wanting])) > error]
        if not len(wanting):
            break
        logits, before = torch.cat([logits, logits], dim=1), logits.shape[1]
        logits[wanting, before:] = draw(doubling, wanting)
        num_different[wanting] *= 2
    return Samples(logits, num_different)


def standard_error(logits: Float[Tensor, "B S C"]) -> Float[Tensor, " B"]:
    """Return the standard error of each bag's probabilities, the largest of its classes."""
    pairs = logits.double().softmax(-1).unflatten(1, (-1, 2)).mean(2)
    return (pairs.std(1) / pairs.shape[1] ** 0.5).amax(-1)
