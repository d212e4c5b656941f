r"""TransMIL: two layers of Nyström self-attention and a class token (Shao et al., 2021).

$h_i = \mathrm{ReLU}(W x_i + b)$; the first rows are repeated until their number is a square, and a
learnt class token is put in front. Then $t \leftarrow t + \mathrm{attention}(\mathrm{LN}(t))$,
PPEG, the same again, and $\ell = W_c\, \mathrm{LN}(t)_0 + b_c$. PPEG lays the tokens (not the
class token) out as a square image and adds depth-wise convolutions of 7×7, 5×5 and 3×3.

The instance score is the attention rollout to the class token. With the layers' attention
matrices $A_1$, $A_2$, averaged over heads, and $\mathrm{rn}$ dividing rows by their sums,

$$ R = \mathrm{rn}(A_2 + I)\,\mathrm{rn}(A_1 + I), \qquad s_i = R_{0, i}, $$

the later layer on the left. Only the class token's row is followed, so with the factors of the
trained Nyström operator it takes O(N·m) memory and time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.segments import OneSegment, Segments
from sgpmil.models.contract import MILModel, ModelOutput, Recordable
from sgpmil.models.embedding import relu_layers
from sgpmil.models.nystrom import (
    AttentionMatrix,
    ExactMatrix,
    NystromSettings,
    PreNormAttention,
)
from sgpmil.models.registry import ONE_BAG_A_STEP, register
from sgpmil.shapes import Float

_SHORT = 64
"""Longest sequences whose attention matrices are formed together."""
_FILTERS = (7, 5, 3)
"""Sides of the position encoding's filters, the largest first."""


@dataclass(frozen=True)
class TransMILSettings(NystromSettings):
    """Settings of TransMIL.

    Args:
        rollout: ``nystrom`` follows the trained operator; ``exact`` the attention that it
            approximates, in O(N²) time.
    """

    rollout: Literal["nystrom", "exact"] = "nystrom"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("rollout", ("nystrom", "exact"))


@register(
    "transmil",
    presets={"released": {"standardise": False, "zero_padding": True, "rollout": "exact"}},
    # Shao et al., NeurIPS 2021; in half precision, which is a matter of speed.
    training={
        **ONE_BAG_A_STEP,
        "epochs": 200,
        "optimiser": "lookahead-radam",
        "learning_rate": 2e-4,
        "weight_decay": 1e-5,
        "schedule": "constant",
        "accumulate_steps": 2,
        "select": "best",
        "patience": 10,
        "validation": "optional",
    },
)
class TransMIL(MILModel):
    """The model of this module; its arguments are those of `MILModel`."""

    recordable = Recordable.BAGS
    settings: TransMILSettings

    def __init__(self, in_dim: int, num_outputs: int, settings: TransMILSettings) -> None:
        super().__init__(in_dim, num_outputs, settings)
        dim = settings.hidden_dim
        self.mlp = relu_layers((self.feature_dim, dim))
        self.class_token = nn.Parameter(torch.randn(1, dim))
        self.first = PreNormAttention(settings)
        self.second = PreNormAttention(settings)
        self.position = PositionEncoding(dim)
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, num_outputs)

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        embeddings = self.through(self.mlp, batch.features)
        sizes = batch.segments.lengths
        sides = [_side(size) for size in sizes]
        start = self._tokens(embeddings, sizes, sides)
        segments = _token_segments(batch.segments, sides)
        tokens, first = self.first(start, segments)
        middle = self.position(tokens, sides)
        tokens, second = self.second(middle, segments)
        if self.settings.rollout == "exact" and not self.training:
            first = self.first.exact_matrices(start, segments)
            second = self.second.exact_matrices(middle, segments)
        # Not in half precision, in which scores would tie.
        with torch.autocast(embeddings.device.type, enabled=False):
            scores = class_token_rollouts(first, second)
        of_instances = [score[1 : 1 + n] for score, n in zip(scores, sizes, strict=True)]
        rollout = torch.cat(of_instances)
        return ModelOutput(
            logits=self.classifier(self.norm(tokens[segments.bounds[:-1]])).unsqueeze(1),
            # The approximation can be negative where it is coarse; attention is not.
            attention=rollout.clamp(min=0).unsqueeze(0),
            attention_score=rollout,
        )

    def predict_bags_of_one(self, batch: BagBatch) -> Float[Tensor, "B 1 C"]:
        """Return the logits of bags of one instance, all at once: a class token and an image."""
        if not self.first.attention.is_exact(2):
            return super().predict_bags_of_one(batch)
        embeddings = self.through(self.mlp, batch.features)
        class_tokens = self.class_token.to(embeddings.dtype).expand_as(embeddings)
        tokens = self.first.attend_exactly(torch.stack([class_tokens, embeddings], 1))
        class_tokens, images = tokens.unbind(1)
        tokens = torch.stack([class_tokens, self.position.encode_single(images)], 1)
        tokens = self.second.attend_exactly(tokens)
        return self.classifier(self.norm(tokens[:, :1]))

    def _tokens(
        self, embeddings: Float[Tensor, "T H"], sizes: list[int], sides: list[int]
    ) -> Float[Tensor, "_ H"]:
        """Put a class token in front of each bag, and repeat instances to fill its square."""
        class_token = self.class_token.to(embeddings.dtype)
        if len(sizes) > 1 and len(set(sizes)) == 1:
            bags = embeddings.unflatten(0, (-1, sizes[0]))
            first = class_token.expand(len(bags), 1, -1)
            repeated = bags[:, : sides[0] ** 2 - sizes[0]]
            return torch.cat([first, bags, repeated], 1).flatten(0, 1)
        parts = []
        for bag, side in zip(embeddings.split(sizes), sides, strict=True):
            parts += [class_token, bag, bag[: side**2 - bag.shape[0]]]
        return torch.cat(parts)


class PositionEncoding(nn.Module):
    """PPEG: depth-wise convolutions over the tokens as a square image, added to them.

    Args:
        dim: Width of a token.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(dim, dim, size, padding=size // 2, groups=dim) for size in _FILTERS
        )

    def forward(self, tokens: Float[Tensor, "T d"], sides: list[int]) -> Float[Tensor, "T d"]:
        """Encode all tokens but the class tokens, the first of each sequence.

        Args:
            tokens: Class token and square image of each sequence, end to end.
            sides: Sides of the images.
        """
        # A convolution is linear in its filters: one with the sum of the three.
        weights = [
            F.pad(conv.get_parameter("weight"), [(_FILTERS[0] - size) // 2] * 4)
            for conv, size in zip(self.convs, _FILTERS, strict=True)
        ]
        weight = torch.stack(weights).sum(0)
        # Not stacked: the three gradients would share memory, and be clipped three times.
        first, *others = (conv.get_parameter("bias") for conv in self.convs)
        bias = sum(others, first)
        if len(sides) > 1 and len(set(sides)) == 1:
            side = sides[0]
            parts = tokens.unflatten(0, (-1, 1 + side**2))
            images = parts[:, 1:].transpose(1, 2).unflatten(2, (side, side))
            found = F.conv2d(images, weight, bias, padding=_FILTERS[0] // 2, groups=len(weight))
            changed = parts[:, 1:] + found.flatten(2).transpose(1, 2)
            return torch.cat([parts[:, :1], changed], 1).flatten(0, 1)
        encoded = []
        for part, side in zip(tokens.split([1 + side**2 for side in sides]), sides, strict=True):
            image = part[1:].T.unflatten(1, (side, side)).unsqueeze(0)
            found = F.conv2d(image, weight, bias, padding=_FILTERS[0] // 2, groups=len(weight))
            encoded += [part[:1], part[1:] + found.squeeze(0).flatten(1).T]
        return torch.cat(encoded)

    def encode_single(self, images: Float[Tensor, "B d"]) -> Float[Tensor, "B d"]:
        """Encode images of one token, which only the centre of each filter meets."""
        encoded = images
        for conv, size in zip(self.convs, _FILTERS, strict=True):
            centre = conv.get_parameter("weight")[:, 0, size // 2, size // 2]
            encoded = encoded + images * centre + conv.get_parameter("bias")
        return encoded


def _side(size: int) -> int:
    """Return the side of the smallest square that holds a bag."""
    if not torch.compiler.is_exporting():
        return math.isqrt(size - 1) + 1
    # As many numbers from zero on have a square below the size.
    side: Any = (torch.arange(size).square() < size).sum().item()
    torch._check(side >= 1)
    found: int = side
    return found


def _token_segments(segments: Segments, sides: list[int]) -> Segments:
    """Return the division of tokens into sequences: class token and square image of each bag."""
    if torch.compiler.is_exporting():
        (side,) = sides
        return OneSegment.of_length(1 + side**2)
    # Computed on both devices: a copy from one to the other would disturb a recording.
    lengths = 1 + torch.tensor(sides).square()
    on_device = 1 + (segments.sizes - 1).double().sqrt().floor().long().add(1).square()
    return Segments(*(F.pad(each.cumsum(0), (1, 0)) for each in (lengths, on_device)))


@torch.no_grad()
def class_token_rollouts(
    first: Sequence[AttentionMatrix], second: Sequence[AttentionMatrix]
) -> list[Float[Tensor, " n"]]:
    """Return the rollout of each sequence, of short ones of one length together."""
    if len(first) == 1:
        return [class_token_rollout(first[0], second[0])]
    lower = [matrix for matrix in first if isinstance(matrix, ExactMatrix)]
    upper = [matrix for matrix in second if isinstance(matrix, ExactMatrix)]
    lengths = {matrix.queries.shape[1] for matrix in lower}
    is_short = len(lengths) == 1 and max(lengths) <= _SHORT
    if not (is_short and len(lower) == len(upper) == len(first)):
        return [class_token_rollout(*pair) for pair in zip(first, second, strict=True)]
    # Each row of an exact matrix sums to 1.
    row = _dense(upper, rows=1).squeeze(1)
    row = torch.cat([row[:, :1] + 1, row[:, 1:]], 1) / 4
    return list((row + (row.unsqueeze(1) @ _dense(lower)).squeeze(1)).unbind(0))


def _dense(matrices: Sequence[ExactMatrix], rows: int | None = None) -> Float[Tensor, "B r n"]:
    """Return the first rows of exact matrices of one size."""
    queries = torch.stack([matrix.queries[:, :rows] for matrix in matrices])
    keys = torch.stack([matrix.keys for matrix in matrices])
    return (queries @ keys.mT).softmax(-1).mean(1)


@torch.no_grad()
def class_token_rollout(first: AttentionMatrix, second: AttentionMatrix) -> Float[Tensor, " n"]:
    r"""Return the class token's row of $\mathrm{rn}(A_2 + I)\,\mathrm{rn}(A_1 + I)$."""
    row = second.row(0)
    row = torch.cat([row[:1] + 1, row[1:]])
    row = row / row.sum()
    row = row / (first.row_sums() + 1)
    return row + first.left_product(row)
