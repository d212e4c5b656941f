"""What a file beside a model says of its input."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.encoder import Precision
from sgpmil.slides.encoders.transform import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Interpolation,
    PatchTransform,
)

__all__ = ["Sidecar", "read_sidecar"]


class Sidecar(BaseModel):
    """What a model takes.

    Args:
        input_size: Side of the image, in pixels.
        mean: Mean of each channel, of values in 0 to 1.
        std: Standard deviation of each channel.
        interpolation: How patches of another size are resized.
        precision: What the model computes in on a GPU.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: Interpolation = "bilinear"
    precision: Precision = "float32"

    @property
    def transform(self) -> PatchTransform:
        """What is done to patches first."""
        return PatchTransform(
            self.input_size, mean=self.mean, std=self.std, interpolation=self.interpolation
        )


def read_sidecar(model: Path, **defaults: Any) -> Sidecar:
    """Read the JSON file beside a model, of the same name; the defaults where there is none.

    Args:
        model: The model's file.
        defaults: What holds where the file does not say.

    Raises:
        EncoderError: It is not readable, or says something else.
    """
    file = model.with_suffix(".json")
    try:
        said = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        sidecar = Sidecar(**{**defaults, **said})
        _ = sidecar.transform
    except (OSError, ValueError, TypeError, ValidationError) as error:
        words = " ".join(str(error).split())[:200]
        raise EncoderError(
            f"Expected {', '.join(Sidecar.model_fields)} in '{file}', the description of "
            f"'{model.name}', but it cannot be used ({words})."
        ) from error
    return sidecar
