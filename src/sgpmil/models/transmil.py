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

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.models.contract import MILModel, ModelOutput
from sgpmil.models.embedding import relu_layers
from sgpmil.models.nystrom import AttentionMatrix, NystromSettings, PreNormAttention
from sgpmil.shapes import Float

__all__ = ["TransMIL", "TransMILSettings", "class_token_rollout"]


@dataclass(frozen=True)
class TransMILSettings(NystromSettings):
    """How TransMIL is built.

    Args:
        rollout: ``nystrom`` follows the trained operator; ``exact`` the attention that it
            approximates, in O(N²) time.
    """

    rollout: Literal["nystrom", "exact"] = "nystrom"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_choice("rollout", ("nystrom", "exact"))


class TransMIL(MILModel):
    """The model; see the module's text for what it computes.

    Args:
        in_dim: Number of features of an instance.
        num_classes: Number of classes.
        settings: How it is built.
    """

    settings: TransMILSettings

    def __init__(self, in_dim: int, num_classes: int, settings: TransMILSettings) -> None:
        super().__init__(in_dim, num_classes, settings)
        dim = settings.hidden_dim
        self.mlp = relu_layers((self.feature_dim, dim))
        self.class_token = nn.Parameter(torch.randn(1, dim))
        self.first = PreNormAttention(settings)
        self.second = PreNormAttention(settings)
        self.position = PositionEncoding(dim)
        self.norm = nn.LayerNorm(dim)
        self.classifier = nn.Linear(dim, num_classes)

    def forward(self, batch: BagBatch) -> ModelOutput:
        """Classify the bags of a packed batch."""
        embeddings = self.through(self.mlp, batch.features)
        bounds = itertools.pairwise(batch.offsets.tolist())
        bags = [self._bag(embeddings[start:end]) for start, end in bounds]
        class_tokens = torch.stack([token for token, _ in bags])
        rollout = torch.cat([score for _, score in bags])
        return ModelOutput(
            logits=self.classifier(self.norm(class_tokens)).unsqueeze(1),
            # Where the approximation is coarse it can be negative; attention is not.
            attention=rollout.clamp(min=0).unsqueeze(0),
            attention_score=rollout,
        )

    def _bag(
        self, embeddings: Float[Tensor, "N H"]
    ) -> tuple[Float[Tensor, " H"], Float[Tensor, " N"]]:
        """Return a bag's class token and the rollout to each of its instances."""
        size = len(embeddings)
        side = math.isqrt(size - 1) + 1
        repeated = embeddings[: side**2 - size]
        start = torch.cat([self.class_token.to(embeddings.dtype), embeddings, repeated])
        tokens, first = self.first(start)
        middle = self.position(tokens, side)
        tokens, second = self.second(middle)
        layers: tuple[AttentionMatrix, AttentionMatrix] = (first, second)
        if self.settings.rollout == "exact" and not self.training:
            layers = self.first.exact_matrix(start), self.second.exact_matrix(middle)
        # Not in half precision, in which scores would tie.
        with torch.autocast(embeddings.device.type, enabled=False):
            return tokens[0], class_token_rollout(*layers)[1 : 1 + size]


class PositionEncoding(nn.Module):
    """PPEG: depth-wise convolutions over the tokens as a square image, added to them.

    Args:
        dim: Width of a token.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(dim, dim, size, padding=size // 2, groups=dim) for size in (7, 5, 3)
        )

    def forward(self, tokens: Float[Tensor, "n d"], side: int) -> Float[Tensor, "n d"]:
        """Encode all tokens but the class token, the first."""
        image = tokens[1:].T.unflatten(1, (side, side)).unsqueeze(0)
        image = image + sum(conv(image) for conv in self.convs)
        return torch.cat([tokens[:1], image.squeeze(0).flatten(1).T])


@torch.no_grad()
def class_token_rollout(first: AttentionMatrix, second: AttentionMatrix) -> Float[Tensor, " n"]:
    r"""Return the class token's row of $\mathrm{rn}(A_2 + I)\,\mathrm{rn}(A_1 + I)$."""
    row = second.row(0)
    row = torch.cat([row[:1] + 1, row[1:]])
    row = row / row.sum()
    row = row / (first.row_sums() + 1)
    return row + first.left_product(row)
