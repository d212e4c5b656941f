r"""Nyström self-attention, and the attention matrix it stands for, never formed.

With queries, keys and values of a head and the means $\bar Q, \bar K$ of $m$ consecutive segments
of the sequence as landmarks,

$$ F = \mathrm{softmax}(Q \bar K^\top), \quad A = \mathrm{softmax}(\bar Q \bar K^\top), \quad
   G = \mathrm{softmax}(\bar Q K^\top), \quad \mathrm{out} = F A^{+} (G V) + \mathrm{conv}(V), $$

where $A^{+}$ is an iterated pseudo-inverse and the convolution runs along the sequence, one filter
per head. A product with the attention matrix $F A^{+} G$ costs O(n·m). A sequence of no more than
$m$ tokens is its own landmarks: $F A^{+} G = A$, and the attention is exact.

The published layer pads the sequence in front with zeros to a multiple of $m$. Those take part in
every softmax: a bag of nine instances attends to zeros with more than nine tenths of its weight,
one of 257 tokens with half. Without the padding segments differ in length by one at most.

Sequences lie end to end. Layers of single tokens, landmarks and pseudo-inverses, which take the
most steps, are computed for all sequences at once; the rest for one sequence after another. Short
sequences of one length are computed together throughout.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models.contract import ModelSettings
from sgpmil.shapes import Float

_CONV = 33
"""Length of the filters along the sequence."""
_ROWS = 1024
"""Rows of an exact attention matrix that are formed at once."""
_GRAPH_BLOCKS = 128
"""Blocks of its rows in a graph for other runtimes."""


@dataclass(frozen=True)
class NystromSettings(ModelSettings):
    """Settings that models with Nyström attention share.

    Args:
        hidden_dim: Width of a token.
        num_heads: Number of attention heads.
        num_landmarks: Number of landmarks of the approximation.
        pinv_iterations: Iterations of its pseudo-inverse.
        zero_padding: Whether a sequence is padded with zeros, as published.
        dropout: Dropout of each attention's output.
    """

    hidden_dim: int = 512
    num_heads: int = 8
    num_landmarks: int = 256
    pinv_iterations: int = 6
    zero_padding: bool = False
    dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "hidden_dim", "num_heads", "num_landmarks", "pinv_iterations")
        self.check_dropout("dropout")
        if self.hidden_dim % self.num_heads:
            raise SettingsError(
                f"Expected hidden_dim to be a multiple of num_heads, but got {self.hidden_dim} "
                f"and {self.num_heads}."
            )


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
        return self._rows(self.queries[:, index, None]).squeeze(0)

    def row_sums(self) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        return self.queries.new_ones(self.queries.shape[1])

    def left_product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """See `AttentionMatrix`."""
        if torch.compiler.is_exporting():
            return self._left_product_in_a_graph(vector)
        total = torch.zeros_like(vector)
        for start in range(0, len(vector), _ROWS):
            block = slice(start, start + _ROWS)
            total += vector[block] @ self._rows(self.queries[:, block])
        return total

    def _rows(self, queries: Float[Tensor, "h r d"]) -> Float[Tensor, "r n"]:
        return (queries @ self.keys.mT).softmax(-1).mean(0)

    def _left_product_in_a_graph(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the same by a loop that `torch.export` keeps, with a fixed number of steps."""
        from torch._higher_order_ops.scan import scan

        of_block = (vector.shape[0] + _GRAPH_BLOCKS - 1) // _GRAPH_BLOCKS
        missing = _GRAPH_BLOCKS * of_block - vector.shape[0]
        values = F.pad(vector, (0, missing)).view(_GRAPH_BLOCKS, of_block)
        queries = F.pad(self.queries, (0, 0, 0, missing)).unflatten(1, (_GRAPH_BLOCKS, of_block))

        def add(total: Tensor, block: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            values, queries = block
            return total + values @ self._rows(queries), values.sum()

        total: Tensor = scan(add, torch.zeros_like(vector), (values, queries.transpose(0, 1)))[0]
        return total


@dataclass(frozen=True, slots=True)
class _Landmarks:
    """The landmarks of a sequence, and the pseudo-inverse of their attention matrix."""

    queries: Float[Tensor, "h m d"]
    keys: Float[Tensor, "h m d"]
    inverse: Float[Tensor, "h m m"]


class NystromAttention(nn.Module):
    """The layer.

    Args:
        settings: Settings of the layer.
    """

    def __init__(self, settings: NystromSettings) -> None:
        super().__init__()
        dim, heads = settings.hidden_dim, settings.num_heads
        self.num_heads = heads
        self.num_landmarks = settings.num_landmarks
        self.pinv_iterations = settings.pinv_iterations
        self.zero_padding = settings.zero_padding
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.conv = nn.Conv1d(heads, heads, _CONV, padding=_CONV // 2, groups=heads, bias=False)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self, tokens: Float[Tensor, "T d"], segments: Segments
    ) -> tuple[Float[Tensor, "T d"], list[AttentionMatrix]]:
        """Attend within each sequence.

        Returns:
            The tokens, and the attention matrix of each sequence without gradient.
        """
        lengths = segments.lengths
        if len(lengths) > 1 and len(set(lengths)) == 1 and self.is_exact(lengths[0]):
            found, queries, keys = self._attend_together(tokens.unflatten(0, (-1, lengths[0])))
            pairs = zip(_single(queries).unbind(0), _single(keys).unbind(0), strict=True)
            return found.flatten(0, 1), [ExactMatrix(*pair) for pair in pairs]
        projected = self.qkv(tokens)
        landmarks = self._landmarks(projected, segments)
        attended, matrices = [], []
        for parts, marks in zip(self._heads(projected, segments), landmarks, strict=True):
            found, matrix = _exact(*parts) if marks is None else self._approximate(*parts, marks)
            attended.append(found + self._convolved(parts[2]))
            matrices.append(matrix)
        joined = torch.cat(attended, 1).transpose(0, 1).flatten(1)
        return self.dropout(self.out(joined)), matrices

    def is_exact(self, length: int) -> bool:
        """Return whether sequences of this length are their own landmarks, within one filter."""
        return not self.zero_padding and length <= min(self.num_landmarks, _CONV // 2 + 1)

    def attend_exactly(self, tokens: Float[Tensor, "B n d"]) -> Float[Tensor, "B n d"]:
        """Attend within many short sequences of one length at once; see `is_exact`."""
        return self._attend_together(tokens)[0]

    def _attend_together(
        self, tokens: Float[Tensor, "B n d"]
    ) -> tuple[Float[Tensor, "B n d"], Float[Tensor, "B h n e"], Float[Tensor, "B h n e"]]:
        """Attend within short sequences of one length, and return queries and keys too."""
        parts = self.qkv(tokens).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        queries = queries * queries.shape[-1] ** -0.5
        attended = (queries @ keys.mT).softmax(-1) @ values
        # A convolution of so few tokens as a matrix: entry (i, j) is the filter at j - i.
        length, middle = tokens.shape[1], _CONV // 2
        windows = self.conv.weight[:, 0].unfold(1, length, 1)
        filters = windows[:, middle - length + 1 : middle + 1].flip(1)
        joined = (attended + filters @ values).transpose(1, 2).flatten(2)
        return self.dropout(self.out(joined)), queries, keys

    @torch.no_grad()
    def exact_matrices(
        self, tokens: Float[Tensor, "T d"], segments: Segments
    ) -> list[AttentionMatrix]:
        """Return the attention matrices of the same queries and keys, without landmarks."""
        heads = self._heads(self.qkv(tokens), segments)
        return [ExactMatrix(_single(queries), _single(keys)) for queries, keys, _ in heads]

    def _heads(
        self, projected: Float[Tensor, "T e"], segments: Segments
    ) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Cut into the scaled queries, keys and values (h×n×d) of each sequence."""
        parts = projected.unflatten(1, (3, self.num_heads, -1)).permute(1, 2, 0, 3)
        queries, keys, values = parts.unbind(0)
        queries = queries * queries.shape[-1] ** -0.5
        sizes = segments.lengths
        return list(zip(*(x.split(sizes, 1) for x in (queries, keys, values)), strict=True))

    def _approximate(
        self,
        queries: Float[Tensor, "h n d"],
        keys: Float[Tensor, "h n d"],
        values: Float[Tensor, "h n d"],
        marks: _Landmarks,
    ) -> tuple[Float[Tensor, "h n d"], AttentionMatrix]:
        left, inverse, right = queries @ marks.keys.mT, marks.inverse, marks.queries @ keys.mT
        if self.zero_padding:
            padding = -keys.shape[1] % self.num_landmarks
            # The key and the value of padding are zero.
            right = F.pad(right, (padding, 0)).softmax(-1)[..., padding:]
        else:
            if torch.compiler.is_exporting():
                left, inverse, right = _of_any_length(left, inverse, right)
            right = right.softmax(-1)
        left = left.softmax(-1)
        inverse = inverse.to(left.dtype)
        attended = left @ (inverse @ (right @ values))
        return attended, NystromMatrix(*(_single(part) for part in (left, inverse, right)))

    def _landmarks(
        self, projected: Float[Tensor, "T e"], segments: Segments
    ) -> list[_Landmarks | None]:
        """Return the landmarks of sequences with more tokens than landmarks, or with padding."""
        sizes = segments.lengths
        always = self.zero_padding or torch.compiler.is_exporting()
        has_any = [always or size > self.num_landmarks for size in sizes]
        if not any(has_any):
            return [None] * len(sizes)
        means = self._means(projected[:, : 2 * projected.shape[1] // 3], segments)
        chosen = torch.stack([part for part, wanted in zip(means, has_any, strict=True) if wanted])
        split = chosen.unflatten(2, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        queries, keys = split[0] * split.shape[-1] ** -0.5, split[1]
        inverses = iterated_pinv((queries @ keys.mT).softmax(-1), self.pinv_iterations)
        found = (_Landmarks(*parts) for parts in zip(queries, keys, inverses, strict=True))
        return [next(found) if wanted else None for wanted in has_any]

    def _means(self, rows: Float[Tensor, "T e"], segments: Segments) -> Float[Tensor, "B m e"]:
        """Average the rows of each landmark's part of each sequence, where it has any."""
        m, index = self.num_landmarks, segments.index
        padding = -segments.sizes % m if self.zero_padding else torch.zeros_like(segments.sizes)
        padded = segments.sizes + padding
        shift = padding - segments.bounds[:-1]
        position = torch.arange(rows.shape[0], device=rows.device) + shift[index]
        mark = index * m + position * m // padded[index]
        # Part s begins at the first position p with floor(p m / n) = s.
        edges = (torch.arange(m + 1, device=rows.device) * padded.unsqueeze(1) + m - 1) // m
        # Half precision loses a sum of many.
        terms = rows.to(torch.promote_types(rows.dtype, torch.float32))
        sums = terms.new_zeros(len(segments) * m, terms.shape[1]).index_add(0, mark, terms)
        means = sums / edges.diff(dim=1).clamp(min=1).view(-1, 1)
        return means.to(rows.dtype).unflatten(0, (-1, m))

    def _convolved(self, values: Float[Tensor, "h n d"]) -> Float[Tensor, "h n d"]:
        # One filter per head, the same for each of its features: these are the batch.
        return self.conv(values.permute(2, 0, 1)).permute(1, 2, 0)


class PreNormAttention(nn.Module):
    r"""Nyström attention with a residual connection: $t + \mathrm{attention}(\mathrm{LN}(t))$.

    Args:
        settings: Settings of the attention.
    """

    def __init__(self, settings: NystromSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.hidden_dim)
        self.attention = NystromAttention(settings)

    def forward(
        self, tokens: Float[Tensor, "T d"], segments: Segments
    ) -> tuple[Float[Tensor, "T d"], list[AttentionMatrix]]:
        """See `NystromAttention`."""
        change, matrices = self.attention(self.norm(tokens), segments)
        return tokens + change, matrices

    def attend_exactly(self, tokens: Float[Tensor, "B n d"]) -> Float[Tensor, "B n d"]:
        """See `NystromAttention`."""
        return tokens + self.attention.attend_exactly(self.norm(tokens))

    def exact_matrices(
        self, tokens: Float[Tensor, "T d"], segments: Segments
    ) -> list[AttentionMatrix]:
        """Return the layer's attention matrices without landmarks."""
        return self.attention.exact_matrices(self.norm(tokens), segments)


def _exact(
    queries: Float[Tensor, "h n d"], keys: Float[Tensor, "h n d"], values: Float[Tensor, "h n d"]
) -> tuple[Float[Tensor, "h n d"], AttentionMatrix]:
    attended = (queries @ keys.mT).softmax(-1) @ values
    return attended, ExactMatrix(_single(queries), _single(keys))


def _of_any_length(
    left: Float[Tensor, "h n m"], inverse: Float[Tensor, "h m m"], right: Float[Tensor, "h m n"]
) -> tuple[Float[Tensor, "h n m"], Float[Tensor, "h m m"], Float[Tensor, "h m n"]]:
    """Change the factors, before their softmax, so that they attend exactly in short sequences.

    A landmark of a sequence with no more tokens than landmarks is one token or none. Then $F$
    passes over those that are none, $A^{+}$ is the identity, and $G$ selects each one's token. It
    is no branch, which `torch.export` could not leave open.
    """
    n, m = left.shape[1:]
    tokens, landmarks = torch.arange(n), torch.arange(m)
    is_part = tokens * m // n == landmarks.unsqueeze(1)
    is_short = tokens.max() < m
    lowest = torch.finfo(left.dtype).min
    # Added, which ONNX Runtime does in place.
    left = left + torch.where(is_part.any(1), 0.0, lowest)
    inverse = torch.where(is_short, torch.eye(m, dtype=inverse.dtype), inverse)
    return left, inverse, right + torch.where(is_short & ~is_part, lowest, 0.0)


def _single(values: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return a factor of an attention matrix without gradient, in single precision at least."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))


def iterated_pinv(matrix: Float[Tensor, "*B h m m"], iterations: int) -> Float[Tensor, "*B h m m"]:
    r"""Approximate the pseudo-inverse of each head's matrix.

    $Z_0 = A^\top / (\max_i \sum_j |A_{ij}| \cdot \max_j \sum_i |A_{ij}|)$ with the maxima over a
    sequence's heads, and $Z \leftarrow \tfrac14 Z (13 I - AZ (15 I - AZ (7 I - AZ)))$. The
    iteration diverges in half precision, so it runs in single precision at least.

    Example:
        >>> A = torch.eye(2, dtype=torch.float64).unsqueeze(0) * 0.5
        >>> iterated_pinv(A, 6)[0].diagonal()
        tensor([2., 2.], dtype=torch.float64)
    """
    with torch.autocast(matrix.device.type, enabled=False):
        a = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
        size = a.abs()
        largest = size.sum(-1).amax((-2, -1)) * size.sum(-2).amax((-2, -1))
        z = a.mT / largest[..., None, None, None]
        eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(iterations):
            az = a @ z
            z = 0.25 * z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az)))
        return z
