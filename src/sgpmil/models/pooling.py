r"""From the attention of packed instances to one embedding a bag and sample.

The bag embedding is $z_s = \sum_i \tilde a_{si} h_i$; the pooling says what $\tilde a$ is:

``sum``         $\tilde a = a$ (published: its size grows with the bag)
``mean``        $\tilde a = a / N$
``normalised``  $\tilde a = a / \sum_j a_j$
"""

import itertools
from typing import Literal, get_args

import torch
from torch import Tensor

from sgpmil.errors import SettingsError
from sgpmil.shapes import Float, Int

__all__ = ["POOLINGS", "Pooling", "bag_softmax", "pool", "pool_values", "pooling_weights"]

Pooling = Literal["sum", "mean", "normalised"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


def bag_softmax(
    values: Float[Tensor, "S T"], bag_index: Int[Tensor, " T"], num_bags: int
) -> Float[Tensor, "S T"]:
    """Take the softmax over the instances of each bag, in single precision at least.

    Example:
        >>> bag_softmax(torch.zeros(1, 3), torch.tensor([0, 0, 1]), 2)
        tensor([[0.5000, 0.5000, 1.0000]])
    """
    # In half precision, instances would tie.
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    index = bag_index.expand_as(values)
    floor = values.new_full((len(values), num_bags), -torch.inf)
    peak = floor.scatter_reduce(1, index, values.detach(), "amax")
    powers = (values - peak[:, bag_index]).exp()
    return powers / _bag_sum(powers, bag_index, num_bags)[:, bag_index]


def pooling_weights(
    attention: Float[Tensor, "S T"],
    bag_index: Int[Tensor, " T"],
    sizes: Int[Tensor, " B"],
    pooling: str,
) -> Float[Tensor, "S T"]:
    """Turn attention into the weights with which instances enter their bag's embedding.

    Raises:
        SettingsError: No pooling has that name.
    """
    if pooling == "sum":
        return attention
    if pooling == "mean":
        return attention / sizes[bag_index]
    if pooling == "normalised":
        total = _bag_sum(attention, bag_index, len(sizes))
        return attention / total.clamp(min=torch.finfo(total.dtype).tiny)[:, bag_index]
    raise SettingsError(
        f"Expected pooling to be one of {', '.join(POOLINGS)}, but got '{pooling}'."
    )


def pool(
    weights: Float[Tensor, "S T"], embeddings: Float[Tensor, "T H"], offsets: Int[Tensor, " _"]
) -> Float[Tensor, "B S H"]:
    r"""Sum weighted embeddings over each bag, $z_{bs} = \sum_{i \in b} \tilde a_{si} h_i$.

    Example:
        >>> h = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> pool(torch.ones(1, 2), h, torch.tensor([0, 2]))
        tensor([[[4., 6.]]])
    """
    # A product a bag: S×N×H is never formed.
    bounds = offsets.tolist()
    embeddings = embeddings.to(weights.dtype)
    return torch.stack(
        [weights[:, start:end] @ embeddings[start:end] for start, end in itertools.pairwise(bounds)]
    )


def pool_values(
    weights: Float[Tensor, "S T"], values: Float[Tensor, "T C"], offsets: Int[Tensor, " _"]
) -> Float[Tensor, "B S C"]:
    r"""Sum weighted values of few columns over each bag, $\sum_{i \in b} \tilde a_{si} v_i$.

    What a linear classifier makes of pooled embeddings is the pooling of what it makes of the
    instances: C columns are pooled in place of H.

    Example:
        >>> pool_values(torch.ones(1, 2), torch.tensor([[1.0], [3.0]]), torch.tensor([0, 2]))
        tensor([[[4.]]])
    """
    if weights.device.type == "cpu":
        return pool(weights, values, offsets)
    # On a GPU a product a bag would be as many calls as there are bags.
    return _pool_at_once(weights, values, offsets)


def _pool_at_once(
    weights: Float[Tensor, "S T"], values: Float[Tensor, "T C"], offsets: Int[Tensor, " _"]
) -> Float[Tensor, "B S C"]:
    """Pool by one product with the bags' indicator: no order of additions that may change."""
    weighted = weights.unsqueeze(2) * values.to(weights.dtype)  # (S, T, C)
    sizes = offsets.diff().to(weights.device, non_blocking=True)
    bags = torch.arange(len(offsets) - 1, device=weights.device)
    index = bags.repeat_interleave(sizes, output_size=weights.shape[1])
    indicator = (index == bags.unsqueeze(1)).to(weights.dtype)  # (B, T)
    return torch.einsum("bt,stc->bsc", indicator, weighted)


def _bag_sum(
    values: Float[Tensor, "S T"], bag_index: Int[Tensor, " T"], num_bags: int
) -> Float[Tensor, "S B"]:
    return values.new_zeros(len(values), num_bags).index_add(1, bag_index, values)
