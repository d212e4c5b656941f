r"""Checkpoints of the package transformers fit timm's vision transformers.

Both packages hold the same networks (ViT, DINOv2) under other names; transformers keeps the
matrices of queries, keys and values apart, where timm has them one above the other. So the
encoders published for transformers need only timm here.
"""

import re
from collections.abc import Mapping

import torch

from sgpmil.slides.encoders.positions import positions_on_grid

__all__ = ["timm_names"]

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
    """Rename the tensors of a ViT or DINOv2 of transformers as timm has them.

    Names that are not transformers' stay as they are, so that a checkpoint in timm's names passes
    unchanged, and a wrong one is refused by name. Positions learned on another grid are
    interpolated as transformers does it, by cubic weights without antialiasing.

    Args:
        weights: Tensors by name.
        grid: Tokens on a side of the image.
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
