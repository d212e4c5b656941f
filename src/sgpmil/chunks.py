"""Chunks of rows, for functions whose intermediate results do not fit into memory for all rows.

A slide may have a million instances, and a hidden layer takes more memory than the instances
themselves. A network treats each instance alone, so it can be applied to one chunk after another.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")

ROWS = {"cpu": 2**14, "cuda": 2**19}
"""Rows of a chunk without gradients: enough to keep the device busy."""

RECOMPUTED_ROWS = 2**18
"""Rows of a chunk in training. The backward pass computes each chunk again, which takes a third
more time, so smaller batches are not divided."""


def by_chunks(function: Callable[[Tensor], tuple[Tensor, ...]], rows: Tensor) -> tuple[Tensor, ...]:
    """Apply a function that treats each row alone, and concatenate its results.

    Args:
        function: Function from rows to tensors with the same number of rows.
        rows: The rows.

    Example:
        >>> by_chunks(lambda x: (x + 1, x[:, 0]), torch.zeros(2, 1))
        (tensor([[1.],
                [1.]]), tensor([0., 0.]))
    """
    bounds = chunk_bounds(rows.shape[0], rows.device)
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
    """Call a function; for its gradient, keep only its arguments and compute it again.

    Args:
        function: The function; it is called again in the backward pass.
        arguments: Its arguments.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False)


def chunk_bounds(num_rows: int, device: torch.device) -> list[tuple[int, int]]:
    """Return start and end of each chunk of rows; `torch.export` takes all rows as one."""
    if torch.compiler.is_exporting():
        return [(0, num_rows)]
    size = RECOMPUTED_ROWS if torch.is_grad_enabled() else ROWS.get(device.type, ROWS["cpu"])
    return [(start, min(start + size, num_rows)) for start in range(0, num_rows, size)] or [(0, 0)]
