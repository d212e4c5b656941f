"""Functions of rows, a part of the rows at a time: what lies between does not fit for all of them.

A slide may have a million instances, and a hidden layer of each takes more memory than the
instances themselves. What a network makes of an instance does not depend on the others, so that it
can be computed for a chunk of them after another.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["by_chunks", "chunk_bounds", "recomputed"]

Result = TypeVar("Result")

ROWS = {"cpu": 2**14, "cuda": 2**19}
"""Rows of a chunk where no gradient is asked for: enough to keep the device busy."""

RECOMPUTED_ROWS = 2**18
"""Rows of a chunk in training, and the number beyond which there are chunks at all: each is
computed again in the backward pass, which costs a third more time."""


def by_chunks(function: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor) -> tuple[Tensor, ...]:
    """Apply a function that treats each row alone, and put its results together.

    Args:
        function: From rows to tensors with as many rows.
        rows: The rows.

    Example:
        >>> by_chunks(lambda x: (x + 1, x[:, 0]), torch.zeros(2, 1))
        (tensor([[1.],
                [1.]]), tensor([0., 0.]))
    """
    bounds = chunk_bounds(len(rows), rows.device)
    if len(bounds) == 1:
        return function(rows)
    if torch.is_grad_enabled():
        parts = [recomputed(function, rows[start:end]) for start, end in bounds]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))
    # Into place: parts and their concatenation together would take twice the memory.
    found: tuple[Tensor, ...] = ()
    for start, end in bounds:
        part = function(rows[start:end])
        if not found:
            found = tuple(p.new_empty(len(rows), *p.shape[1:]) for p in part)
        for whole, piece in zip(found, part, strict=True):
            whole[start:end] = piece
    return found


def recomputed(function: Callable[..., Result], *arguments: Tensor) -> Result:
    """Call a function; where gradients are asked for, keep no more of it than its arguments.

    Args:
        function: The function; it is called again in the backward pass.
        arguments: Its arguments.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


def chunk_bounds(num_rows: int, device: torch.device) -> list[tuple[int, int]]:
    """Give start and end of each chunk of rows.

    Args:
        num_rows: Number of rows.
        device: Where they are.
    """
    size = RECOMPUTED_ROWS if torch.is_grad_enabled() else ROWS.get(device.type, ROWS["cpu"])
    return [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)] or [(0, 0)]
