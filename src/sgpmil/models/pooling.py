r"""Pooling of packed instances: from attention to one embedding per bag and sample.

The bag embedding is $z_s = \sum_i \tilde a_{si} h_i$; each pooling has its own $\tilde a$:

``sum``         $\tilde a = a$ (published: its size grows with the bag)
``mean``        $\tilde a = a / N$
``normalised``  $\tilde a = a / \sum_j a_j$
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.gpu.pooling import bag_softmax as bag_softmax
from sgpmil.gpu.pooling import bag_sum
from sgpmil.gpu.pooling import pool as pool
from sgpmil.shapes import Float

Pooling = Literal["sum", "mean", "normalised"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


def pooling_weights(
    attention: Float[Tensor, "S T"], segments: Segments, pooling: str
) -> Float[Tensor, "S T"]:
    """Turn attention into the weights with which instances enter their bag's embedding.

    Raises:
        SettingsError: No pooling has that name.
    """
    if pooling == "sum":
        return attention
    if pooling == "mean":
        return attention / segments.sizes[segments.index]
    if pooling == "normalised":
        total = bag_sum(attention, segments)
        return attention / total.clamp(min=torch.finfo(total.dtype).tiny)[:, segments.index]
    raise SettingsError(
        f"Expected pooling to be one of {', '.join(POOLINGS)}, but got '{pooling}'."
    )
