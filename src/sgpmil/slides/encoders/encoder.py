r"""Patch encoders: a transform, a network, and the fingerprint of both.

Patches have whole grey levels. The transform resizes a patch with antialiasing, first along its
rows and then along its columns, and rounds to whole grey levels each time, as Pillow does, with
which the encoders were trained. It then crops the centre if the encoder needs that, and normalises
each channel:

$$ z_c = \frac{x_c / 255 - \mu_c}{\sigma_c}. $$
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from sgpmil.errors import EncoderError
from sgpmil.shapes import Float, UInt8
from sgpmil.slides.optional_part import require_package
from sgpmil.torchvision_import import mend_torchvision

Interpolation = Literal["bilinear", "bicubic"]
Precision = Literal["float32", "float16", "bfloat16"]
Channels = tuple[float, float, float]

DTYPES: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


def require(name: str, install: str = "") -> None:
    """Check that a package is installed, and mend torchvision where it does not fit torch.

    Raises:
        MissingPartError: It is not installed.
    """
    require_package(name, purpose="encode patches", part="encoders", install=install)
    mend_torchvision()


@dataclass(frozen=True, slots=True)
class PatchTransform:
    """Resizing, cropping and normalisation of a batch of patches.

    Args:
        size: Side of the encoder's input, in pixels.
        resize: Side after resizing, before the crop to `size`; by default `size`, so that nothing
            is cropped.
        mean: Mean of each channel, for values in 0 to 1.
        std: Standard deviation of each channel, for values in 0 to 1.
        interpolation: Method of resizing.
    """

    size: int
    resize: int | None = None
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    interpolation: Interpolation = "bilinear"

    def __post_init__(self) -> None:
        if not 0 < self.size <= (self.resize or self.size):
            raise ValueError(f"A crop of {self.size} px does not fit into {self.resize} px.")
        if min(self.std) <= 0:
            raise ValueError(f"Standard deviations are positive, not {self.std}.")

    def __call__(self, patches: UInt8[torch.Tensor, "B H W 3"]) -> Float[torch.Tensor, "B 3 S S"]:
        """Transform a batch, on its device."""
        images = patches.permute(0, 3, 1, 2).float()
        side = self.resize or self.size
        if images.shape[-1] != side:
            images = self._resized(self._resized(images, images.shape[-2], side), side, side)
        start = round((side - self.size) / 2)
        images = images[..., start : start + self.size, start : start + self.size]
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (self.mean, self.std))
        return (images - 255 * mean) / (255 * std)

    def _resized(self, images: torch.Tensor, height: int, width: int) -> torch.Tensor:
        found = functional.interpolate(
            images, size=(height, width), mode=self.interpolation, antialias=True
        )
        # Cubic weights overshoot.
        return found.add_(0.5).floor_().clamp_(0, 255)


def fingerprint(weights: Mapping[str, torch.Tensor], recipe: str) -> str:
    """Hash weights, in the order of their names, and a recipe.

    The hash is the same in every process, on every device, and for every file format of the same
    weights.

    Args:
        weights: Tensors by name.
        recipe: Text that describes what else determines the embeddings.
    """
    digest = hashlib.sha256(recipe.encode())
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # NumPy has no bfloat16, so tensors are hashed as plain bytes.
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A loaded network, before it is moved to a device.

    Args:
        name: Its name.
        network: Function of normalised images (B×3×S×S) that returns embeddings (B×D).
        transform: Transform of the patches.
        dim: Length of an embedding; None where a first batch must show it.
        precision: Precision of the computation on a GPU.
        recipe: Text that describes what else determines the embeddings, for the fingerprint.
    """

    name: str
    network: Callable[[torch.Tensor], torch.Tensor]
    transform: PatchTransform
    dim: int | None = None
    precision: Precision = "float32"
    recipe: str = ""


class Encoder(ABC):
    """Base class of encoders, which turn patches into embeddings.

    Attributes:
        name: Name, fit for a folder.
        dim: Length of an embedding.
        input_size: Side of the square input in pixels; patches of another size are resized.
        device: Device of the computation.
    """

    name: str
    dim: int
    input_size: int
    device: torch.device

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the weights, of the transform and of the precision."""

    @abstractmethod
    def encode(self, patches: UInt8[torch.Tensor, "B H W 3"]) -> Float[torch.Tensor, "B D"]:
        """Encode a batch.

        Returns:
            One embedding for each patch, on the CPU.

        Raises:
            EncoderError: The patches are not square, or an embedding is not finite.
        """


class NetworkEncoder(Encoder):
    """An encoder that computes with a network.

    Args:
        name: Name, fit for a folder.
        network: Function of normalised images (B×3×S×S) that returns embeddings (B×D).
        transform: Transform of the patches.
        dim: Length of an embedding.
        device: Device of the computation.
        precision: Precision of the computation.
        recipe: Text that describes what else determines the embeddings, for the fingerprint.
    """

    def __init__(
        self,
        name: str,
        network: Callable[[torch.Tensor], torch.Tensor],
        transform: PatchTransform,
        *,
        dim: int,
        device: torch.device,
        precision: Precision = "float32",
        recipe: str = "",
    ) -> None:
        if isinstance(network, nn.Module):
            network = network.eval().to(device)
        self.name = name
        self.network = network
        self.transform = transform
        self.dim = dim
        self.input_size = transform.size
        self.device = device
        self.precision: Precision = precision
        self.recipe = recipe

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights, of the transform and of the precision."""
        weights = self.network.state_dict() if isinstance(self.network, nn.Module) else {}
        return fingerprint(weights, f"{self.recipe}\n{self.transform}\n{self.precision}")

    def encode(self, patches: UInt8[torch.Tensor, "B H W 3"]) -> Float[torch.Tensor, "B D"]:
        """Encode a batch.

        Returns:
            One float32 embedding for each patch, on the CPU.

        Raises:
            EncoderError: The patches are not square, or an embedding is not finite.
        """
        num, height, width, _ = patches.shape
        if height != width:
            raise EncoderError(
                f"Expected square patches for encoder '{self.name}', but got {width}×{height} px."
            )
        if num == 0:
            return torch.empty(0, self.dim)
        with torch.inference_mode():
            images = self.transform(patches.to(self.device, non_blocking=True))
            with torch.autocast(
                self.device.type, DTYPES[self.precision], enabled=self.precision != "float32"
            ):
                found = self.network(images)
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        if shape != (num, self.dim):
            raise EncoderError(
                f"Expected encoder '{self.name}' to give {num} embeddings of length {self.dim}, "
                f"but got {shape}. Check the model that it was made from."
            )
        # Copied outside inference mode, so that the caller may change it.
        features = found.to("cpu", torch.float32, copy=True)
        if not torch.isfinite(features).all():
            raise EncoderError(
                f"Expected finite embeddings from encoder '{self.name}', but some are NaN or "
                f"infinite in {self.precision}. Use precision 'bfloat16' or 'float32', or check "
                "the weights."
            )
        return features
