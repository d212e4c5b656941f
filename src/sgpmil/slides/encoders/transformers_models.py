"""Any image model of the package transformers."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.hub import hub_failure
from sgpmil.slides.encoders.network import Network
from sgpmil.slides.encoders.packages import require
from sgpmil.slides.encoders.transform import Interpolation, PatchTransform

__all__ = ["load_transformers"]

_RESAMPLING: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}
"""Pillow's numbers, as configurations have them."""
_NO_CROP_FROM = 384
"""Side from which ConvNeXt's image processor no longer cuts to the centre."""


def load_transformers(name: str, weights: Path | None = None) -> Network:
    """Load an image model of transformers, with the transform of its own image processor.

    An embedding is the class token of the last layer; the mean over the image where there are no
    tokens; the image's features where the model knows captions too. Code from the hub is not run.

    Args:
        name: ``owner/name`` on the hub, or a folder.
        weights: A folder with a snapshot of it, instead of the hub.

    Raises:
        EncoderError: It cannot be had, or is no image model.
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
        transform=_transform(processor, name),
        recipe=f"transformers {Path(name).name}",
    )


def _transform(processor: Any, name: str) -> PatchTransform:
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
    """An image model whose output is pooled.

    Args:
        model: The model.
    """

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
