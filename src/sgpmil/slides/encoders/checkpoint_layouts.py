"""Checkpoints of transformers and of CONCH, renamed for timm's vision transformers.

transformers and timm hold the same networks (ViT, DINOv2) under different names. transformers keeps
the matrices of queries, keys and values apart; timm stacks them. With the renaming, encoders
published for transformers need timm alone.

CONCH was trained on images and captions (CoCa). Its image tower is a vision transformer. A single
learned query attends to the tokens; its normalised answer is the embedding. The projection into
the space of captions, which follows, is left out.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional


def positions_on_grid(
    positions: torch.Tensor, grid: int, interpolation: Literal["bilinear", "bicubic"]
) -> torch.Tensor:
    """Interpolate positions learned on one square grid to another, without antialiasing.

    Args:
        positions: Positions (1×(1 + side²)×D), that of the class token first.
        grid: Tokens on a side of the image.
        interpolation: Method.

    Returns:
        Positions (1×(1 + grid²)×D); unchanged if they fit already, or belong to no square grid.
    """
    num = positions.shape[1] - 1
    side = round(num**0.5)
    if side == grid or side * side != num:
        return positions
    square = positions[:, 1:].float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    square = functional.interpolate(square, (grid, grid), mode=interpolation, align_corners=False)
    return torch.cat([positions[:, :1].float(), square.flatten(2).transpose(1, 2)], dim=1)


_BLOCK = re.compile(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias|lambda1)")
_IN_BLOCK = {
    "layernorm_before": "norm1",
    "norm1": "norm1",
    "attention.output.dense": "attn.proj",
    "layer_scale1": "ls1",
    "layernorm_after": "norm2",
    "norm2": "norm2",
    "intermediate.dense": "mlp.fc1",
    "mlp.fc1": "mlp.fc1",
    "mlp.weights_in": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "mlp.fc2": "mlp.fc2",
    "mlp.weights_out": "mlp.fc2",
    "layer_scale2": "ls2",
}
_OUTSIDE = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection.weight": "patch_embed.proj.weight",
    "embeddings.patch_embeddings.projection.bias": "patch_embed.proj.bias",
    "layernorm.weight": "norm.weight",
    "layernorm.bias": "norm.bias",
    "embeddings.mask_token": "mask_token",
}
_QUERY = "attention.attention.query"


def timm_names(weights: Mapping[str, torch.Tensor], grid: int) -> dict[str, torch.Tensor]:
    """Rename the tensors of a ViT or DINOv2 of transformers as timm names them.

    Other names stay, so that a checkpoint in timm's names passes unchanged, and a wrong checkpoint
    is refused by name later. Positions learned on another grid are interpolated as transformers
    does it, with cubic weights and without antialiasing.
    """
    named: dict[str, torch.Tensor] = {}
    for name, value in weights.items():
        match = _BLOCK.fullmatch(name)
        if match is None:
            named[_OUTSIDE.get(name, name)] = value
            continue
        block, part, kind = match.groups()
        if part == _QUERY:
            stem = name.removesuffix(f"query.{kind}")
            parts = [weights.get(f"{stem}{which}.{kind}") for which in ("query", "key", "value")]
            together = torch.cat([tensor for tensor in parts if tensor is not None])
            named[f"blocks.{block}.attn.qkv.{kind}"] = together
        elif part in _IN_BLOCK:
            ending = "gamma" if kind == "lambda1" else kind
            named[f"blocks.{block}.{_IN_BLOCK[part]}.{ending}"] = value
        elif part not in (_QUERY.replace("query", "key"), _QUERY.replace("query", "value")):
            named[name] = value
    if "pos_embed" in named:
        named["pos_embed"] = positions_on_grid(named["pos_embed"], grid, "bicubic")
    return named


_NUM_HEADS = 8


class _QueryPooling(nn.Module):
    """Attention of one learned query to tokens.

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
        """Embed normalised images."""
        trunk: Any = self.trunk
        return self.ln_contrast(self.attn_pool_contrast(trunk.forward_features(images)))


def conch_weights(weights: Mapping[str, torch.Tensor], grid: int) -> dict[str, torch.Tensor]:
    """Pick the tensors of the image tower from CONCH's checkpoint.

    Positions learned on another grid are interpolated as CONCH's loader does it.

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
