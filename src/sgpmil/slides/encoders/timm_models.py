"""Any model of timm."""

import math
from pathlib import Path
from typing import Any

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.checkpoints import load_weights, read_weights
from sgpmil.slides.encoders.hub import hub_failure
from sgpmil.slides.encoders.network import Network
from sgpmil.slides.encoders.packages import require
from sgpmil.slides.encoders.transform import PatchTransform

__all__ = ["load_timm"]

_HUB = ("hf-hub:", "hf_hub:")


def load_timm(name: str, weights: Path | None = None) -> Network:
    """Load a model of timm, without its head, with the transform of its own configuration.

    Args:
        name: Its name (``resnet18.a1_in1k``), or ``hf-hub:owner/name``.
        weights: Local checkpoint; the pretrained weights where not given. A folder with a
            ``config.json`` (a snapshot of the hub) gives the architecture too.

    Raises:
        EncoderError: There is no such model, or its weights cannot be had or do not fit.
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
        transform=_transform(network, name),
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


def _transform(network: Any, name: str) -> PatchTransform:
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
