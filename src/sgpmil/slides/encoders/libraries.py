"""Models of the packages timm and transformers."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.checkpoints import hub_failure, load_weights, read_weights
from sgpmil.slides.encoders.encoder import Interpolation, Network, PatchTransform, require

_HUB = ("hf-hub:", "hf_hub:")


def load_timm(name: str, weights: Path | None = None) -> Network:
    """Load a model of timm, without its head, with the transform of its configuration.

    Args:
        name: Its name (``resnet18.a1_in1k``), or ``hf-hub:owner/name``.
        weights: Local checkpoint; by default the pretrained weights. A folder with a
            ``config.json`` (a snapshot of the hub) states the architecture, too.

    Raises:
        EncoderError: There is no such model, or its weights are not available or do not fit.
        MissingPartError: timm is not installed.
    """
    require("timm")
    import timm

    if weights is not None and weights.is_dir() and (weights / "config.json").exists():
        name = f"local-dir:{weights}"
    elif weights is not None and name.startswith(_HUB):
        raise EncoderError(
            f"Expected a folder with config.json and the weights of 'timm:{name}', but got the "
            f"file '{weights}'. Give the folder that was downloaded, or the name of an "
            "architecture of timm instead."
        )
    elif not name.startswith((*_HUB, "local-dir:")) and not timm.is_model(name):
        raise EncoderError(
            f"Expected a model of timm {timm.__version__}, but it has none of the name '{name}'. "
            "See timm.list_models()."
        )
    network = _create(name, pretrained=weights is None)
    if weights is not None:
        load_weights(network, read_weights(weights), f"'timm:{name}' in '{weights}'")
    return Network(
        name=f"timm-{name.split(':')[-1].split('/')[-1]}",
        network=network,
        transform=_timm_transform(network, name),
        recipe=f"timm {name}",
    )


def _create(name: str, *, pretrained: bool) -> Any:
    import timm

    try:
        create: Any = timm.create_model
        return create(name, pretrained=pretrained, num_classes=0)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        if pretrained and not name.startswith("local-dir:"):
            repository = name.split(":")[-1] if ":" in name else f"timm/{name}"
            raise hub_failure(repository, error) from error
        raise EncoderError(
            f"Expected to build 'timm:{name}', but timm refuses it ({error})."
        ) from error


def _timm_transform(network: Any, name: str) -> PatchTransform:
    from timm.data.config import resolve_model_data_config

    config = resolve_model_data_config(network)
    _, height, width = config["input_size"]
    interpolation = config["interpolation"]
    if height != width or interpolation not in ("bilinear", "bicubic"):
        raise EncoderError(
            f"Expected square images and bilinear or bicubic interpolation for 'timm:{name}', but "
            f"its configuration asks for {height}×{width} px and '{interpolation}'. Wrap it in a "
            "class of your own."
        )
    return PatchTransform(
        height,
        resize=math.floor(height / config["crop_pct"]),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=interpolation,
    )


_RESAMPLING: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers in configurations."""
_NO_CROP_FROM = 384
"""Side from which ConvNeXt's image processor no longer crops the centre."""


def load_transformers(name: str, weights: Path | None = None) -> Network:
    """Load an image model of transformers, with the transform of its image processor.

    An embedding is the class token of the last layer, the mean over the image of a model without
    tokens, or the image features of a model of images and captions. Code from the hub is not run.

    Args:
        name: ``owner/name`` on the hub, or a folder.
        weights: A folder with a snapshot of it, instead of the hub.

    Raises:
        EncoderError: It is not available, or is no image model.
        MissingPartError: transformers is not installed.
    """
    require("transformers", "transformers")
    from transformers import AutoImageProcessor, AutoModel

    source = str(weights or name)
    try:
        model = AutoModel.from_pretrained(source, trust_remote_code=False)
        processor = AutoImageProcessor.from_pretrained(source, trust_remote_code=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        if weights is not None or Path(name).exists():
            words = " ".join(str(error).split())[:200]
            raise EncoderError(
                f"Expected a model of transformers (config.json, preprocessor_config.json and "
                f"weights) in '{source}', but it cannot be loaded ({words}). Give the folder "
                "that was downloaded."
            ) from error
        raise hub_failure(name, error) from error
    return Network(
        name=f"hf-{Path(name).name}",
        network=_ImageModel(model.float()),
        transform=_transformers_transform(processor, name),
        recipe=f"transformers {Path(name).name}",
    )


def _transformers_transform(processor: Any, name: str) -> PatchTransform:
    resized, cropped = processor.size, getattr(processor, "crop_size", None)
    resize = resized.get("shortest_edge") or resized.get("height")
    size = cropped.get("height") if cropped and processor.do_center_crop else resize
    share = getattr(processor, "crop_pct", None)
    if share and resize and resize < _NO_CROP_FROM:
        size, resize = resize, int(resize / share)
    is_usual = (
        processor.do_resize
        and processor.do_normalize
        and abs(255 * processor.rescale_factor - 1) < 1e-6
        and int(processor.resample) in _RESAMPLING
    )
    if not (is_usual and size and resize):
        raise EncoderError(
            f"Expected the image processor of 'hf:{name}' to resize to a square, bilinear or "
            f"bicubic, and to normalise, but it does something else ({type(processor).__name__}). "
            "Wrap the model in a class of your own."
        )
    return PatchTransform(
        int(size),
        resize=int(resize),
        mean=tuple(processor.image_mean),
        std=tuple(processor.image_std),
        interpolation=_RESAMPLING[int(processor.resample)],
    )


class _ImageModel(nn.Module):
    """An image model with pooled output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        model: Any = self.model
        if hasattr(model, "get_image_features"):
            found = model.get_image_features(pixel_values=images)
            return found if isinstance(found, torch.Tensor) else found.pooler_output
        hidden = model(pixel_values=images).last_hidden_state
        return hidden[:, 0] if hidden.ndim == 3 else hidden.mean((2, 3))
