"""The image tower of CONCH.

CONCH was trained on images and captions (CoCa). Of its image tower, what embeds an image is a
vision transformer whose tokens a single learned query attends to; the query's answer, normalised,
is the embedding. The projection into the space of captions comes after it and is left out.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from sgpmil.slides.encoders.positions import positions_on_grid

__all__ = ["ConchTower", "conch_weights"]

_NUM_HEADS = 8


class _QueryPooling(nn.Module):
    """One learned query attends to tokens.

    Args:
        dim: Length of the answer.
        token_dim: Length of a token.
    """

    def __init__(self, dim: int, token_dim: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, dim))
        self.attn = nn.MultiheadAttention(
            dim, _NUM_HEADS, kdim=token_dim, vdim=token_dim, batch_first=True
        )
        self.ln_q = nn.LayerNorm(dim)
        self.ln_k = nn.LayerNorm(token_dim)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        query = self.ln_q(self.query).expand(len(tokens), -1, -1)
        keys = self.ln_k(tokens)
        answer, _ = self.attn(query, keys, keys, need_weights=False)
        return answer[:, 0]


class ConchTower(nn.Module):
    """A vision transformer whose tokens are pooled by attention.

    The parts are named as in CONCH's checkpoint.

    Args:
        trunk: The vision transformer.
        dim: Length of an embedding.
    """

    def __init__(self, trunk: nn.Module, dim: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.attn_pool_contrast = _QueryPooling(dim, int(trunk.num_features))  # type: ignore[arg-type]
        self.ln_contrast = nn.LayerNorm(dim)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Embed normalised images.

        Args:
            images: The images.
        """
        trunk: Any = self.trunk
        return self.ln_contrast(self.attn_pool_contrast(trunk.forward_features(images)))


def conch_weights(weights: Mapping[str, torch.Tensor], grid: int) -> dict[str, torch.Tensor]:
    """Pick the tensors of the image tower from CONCH's checkpoint.

    Positions learned on another grid are interpolated as CONCH's own loader does it.

    Args:
        weights: Tensors by name, as published: of both towers and of the caption decoder.
        grid: Tokens on a side of the image.
    """
    parts = ("trunk.", "attn_pool_contrast.", "ln_contrast.")
    inside = {name.removeprefix("visual."): value for name, value in weights.items()}
    tower = {name: value for name, value in inside.items() if name.startswith(parts)}
    if "trunk.pos_embed" in tower:
        positions = positions_on_grid(tower["trunk.pos_embed"], grid, "bilinear")
        tower["trunk.pos_embed"] = positions
    return tower
