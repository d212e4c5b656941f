r"""From the attention of packed instances to one embedding a bag and sample.

The bag embedding is $z_s = \sum_i \tilde a_{si} h_i$; the pooling says what $\tilde a$ is:

``sum``         $\tilde a = a$ (published: its size grows with the bag)
``mean``        $\tilde a = a / N$
``normalised``  $\tilde a = a / \sum_j a_j$
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.gpu.pooling_kernels import SegmentPool, SegmentSoftmax, available
from sgpmil.shapes import Float

__all__ = ["POOLINGS", "Pooling", "bag_softmax", "pool", "pooling_weights"]

Pooling = Literal["sum", "mean", "normalised"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


def bag_softmax(values: Float[Tensor, "S T"], segments: Segments) -> Float[Tensor, "S T"]:
    """Take the softmax over the instances of each bag, in single precision at least.

    Example:
        >>> bag_softmax(torch.zeros(1, 3), Segments.of(torch.tensor([0, 2, 3])))
        tensor([[0.5000, 0.5000, 1.0000]])
    """
    # In half precision, instances would tie.
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    if _on_kernels(values):
        return SegmentSoftmax.apply(values, segments.bounds)
    index = segments.index
    floor = values.new_full((len(values), len(segments)), -torch.inf)
    peak = floor.scatter_reduce(1, index.expand_as(values), values.detach(), "amax")
    powers = (values - peak[:, index]).exp()
    return powers / _bag_sum(powers, segments)[:, index]


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
        total = _bag_sum(attention, segments)
        return attention / total.clamp(min=torch.finfo(total.dtype).tiny)[:, segments.index]
    raise SettingsError(
        f"Expected pooling to be one of {', '.join(POOLINGS)}, but got '{pooling}'."
    )


def pool(
    weights: Float[Tensor, "S T"], embeddings: Float[Tensor, "T H"], segments: Segments
) -> Float[Tensor, "B S H"]:
    r"""Sum weighted embeddings over each bag, $z_{bs} = \sum_{i \in b} \tilde a_{si} h_i$.

    The result has the weights' precision, and single precision at least.

    Example:
        >>> h = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> pool(torch.ones(1, 2), h, Segments.of(torch.tensor([0, 2])))
        tensor([[[4., 6.]]])
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if _on_kernels(weights):
        return SegmentPool.apply(weights, embeddings, segments.bounds)
    # A product a bag: S×N×H is never formed.
    sizes = segments.offsets.diff().tolist()
    parts = zip(weights.split(sizes, dim=1), embeddings.to(weights.dtype).split(sizes), strict=True)
    return torch.stack([weight @ embedding for weight, embedding in parts])


def _bag_sum(values: Float[Tensor, "S T"], segments: Segments) -> Float[Tensor, "S B"]:
    if _on_kernels(values):  # adding by index is not deterministic there
        return pool(values, values.new_ones(values.shape[1], 1), segments)[:, :, 0].T
    total = values.new_zeros(len(values), len(segments))
    return total.index_add(1, segments.index, values)


def _on_kernels(values: Tensor) -> bool:
    return values.device.type == "cuda" and available()
