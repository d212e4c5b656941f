"""Attention matrices of a sequence of n tokens, which are never formed as a whole."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from sgpmil.shapes import Float

__all__ = ["AttentionMatrix", "ExactMatrix", "NystromMatrix"]

_ROWS = 1024
"""Rows of an exact attention matrix that are formed at once."""


@runtime_checkable
class AttentionMatrix(Protocol):
    """The mean over heads of a layer's attention matrices $A$ (n×n)."""

    def row(self, index: int) -> Float[Tensor, " n"]:
        """Return a row."""
        ...

    def row_sums(self) -> Float[Tensor, " n"]:
        """Return the sum of each row."""
        ...

    def left_product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        r"""Return $v^\top A$."""
        ...


@dataclass(frozen=True, slots=True)
class NystromMatrix:
    """An attention matrix in the factors that the layer multiplies by.

    Args:
        left: $F$, of every head.
        inverse: $A^{+}$.
        right: $G$.
    """

    left: Float[Tensor, "h n m"]
    inverse: Float[Tensor, "h m m"]
    right: Float[Tensor, "h m n"]

    def row(self, index: int) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        return (self.left[:, index, None] @ self.inverse @ self.right).mean(0).squeeze(0)

    def row_sums(self) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        columns = self.right.sum(2, keepdim=True)
        return (self.left @ (self.inverse @ columns)).mean(0).squeeze(1)

    def left_product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        return ((vector @ self.left).unsqueeze(1) @ self.inverse @ self.right).mean(0).squeeze(0)


@dataclass(frozen=True, slots=True)
class ExactMatrix:
    """The attention matrix that the factors approximate, a block of rows at a time: O(n²) work.

    Args:
        queries: Scaled queries of every head.
        keys: Keys.
    """

    queries: Float[Tensor, "h n d"]
    keys: Float[Tensor, "h n d"]

    def row(self, index: int) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        return self._rows(slice(index, index + 1)).mean(0).squeeze(0)

    def row_sums(self) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        return self.queries.new_ones(self.queries.shape[1])

    def left_product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        total = torch.zeros_like(vector)
        for start in range(0, len(vector), _ROWS):
            block = slice(start, start + _ROWS)
            total += vector[block] @ self._rows(block).mean(0)
        return total

    def _rows(self, block: slice) -> Float[Tensor, "h r n"]:
        return (self.queries[:, block] @ self.keys.mT).softmax(-1)
