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
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from sgpmil.errors import EncoderError, MissingPartError
from sgpmil.shapes import Float, UInt8
from sgpmil.torchvision_import import mend_torchvision

__all__ = [
    "DTYPES",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "Encoder",
    "Interpolation",
    "Network",
    "NetworkEncoder",
    "PatchTransform",
    "Precision",
    "file_hash",
    "fingerprint",
    "require",
]

Interpolation = Literal["bilinear", "bicubic"]
Channels = tuple[float, float, float]

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True)
class PatchTransform:
    """Resize, crop and normalise a batch of patches.

    Args:
        size: Side that the encoder takes, in pixels.
        resize: Side that patches are resized to before they are cut to `size`; `size` itself where
            not given, so that nothing is cut off.
        mean: Mean of each channel, of values in 0 to 1.
        std: Standard deviation of each channel, likewise.
        interpolation: How to resize.
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
        """Transform a batch, on the device it is on.

        Args:
            patches: Square patches.
        """
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

    The same in every process and on every device, and for every file format that the same weights
    came from.

    Args:
        weights: Tensors by name.
        recipe: What else makes the embeddings, in words.
    """
    digest = hashlib.sha256(recipe.encode())
    for name in sorted(weights):
        tensor = weights[name].detach()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        # Bytes have no bfloat16 in NumPy: they are hashed as plain bytes.
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def file_hash(path: Path) -> str:
    """Hash the content of a file.

    Args:
        path: File to read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


Precision = Literal["float32", "float16", "bfloat16"]

DTYPES: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}


class Encoder(ABC):
    """Something that turns patches into embeddings.

    Attributes:
        name: Name, fit for a folder.
        dim: Length of an embedding.
        input_size: Side of the square it takes, in pixels; patches of another size are resized.
        device: Where it computes.
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

        Args:
            patches: Square RGB patches, on any device.

        Returns:
            An embedding a patch, on the CPU.

        Raises:
            EncoderError: The patches are not square, or an embedding is not finite.
        """


class NetworkEncoder(Encoder):
    """A network, and what it needs to be fed.

    Args:
        name: Name, fit for a folder.
        network: Takes normalised images (B×3×S×S), gives embeddings (B×D).
        transform: What is done to patches first.
        dim: Length of an embedding.
        device: Where to compute.
        precision: What the network computes in.
        recipe: What else makes the embeddings, for the fingerprint.
        output: What embeddings are returned in.
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
        output: Literal["float32", "float16"] = "float32",
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
        self.output: Literal["float32", "float16"] = output

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the weights, of the transform and of the precision."""
        weights = self.network.state_dict() if isinstance(self.network, nn.Module) else {}
        return fingerprint(weights, f"{self.recipe}\n{self.transform}\n{self.precision}")

    def encode(self, patches: UInt8[torch.Tensor, "B H W 3"]) -> Float[torch.Tensor, "B D"]:
        """Encode a batch.

        Args:
            patches: Square RGB patches, on any device.

        Returns:
            An embedding a patch, on the CPU.

        Raises:
            EncoderError: The patches are not square, or an embedding is not finite.
        """
        num, height, width, _ = patches.shape
        if height != width:
            raise EncoderError(
                f"Expected square patches for encoder '{self.name}', but got {width}×{height} px."
            )
        if num == 0:
            return torch.empty(0, self.dim, dtype=DTYPES[self.output])
        with torch.inference_mode():
            images = self.transform(patches.to(self.device, non_blocking=True))
            with torch.autocast(
                self.device.type, DTYPES[self.precision], enabled=self.precision != "float32"
            ):
                found = self.network(images)
        self._check(found, num)
        # Copied outside inference mode, so that the caller may do with it as he likes.
        features = found.to("cpu", DTYPES[self.output], copy=True)
        if not torch.isfinite(features).all():
            raise EncoderError(
                f"Expected finite embeddings from encoder '{self.name}', but some are NaN or "
                f"infinite in {self.precision} (stored as {self.output}). Use precision "
                "'bfloat16' or 'float32', or check the weights."
            )
        return features

    def _check(self, found: object, num: int) -> None:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        if shape != (num, self.dim):
            raise EncoderError(
                f"Expected encoder '{self.name}' to give {num} embeddings of length {self.dim}, "
                f"but got {shape}. Check the model that it was made from."
            )


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A network, and what it needs to be fed.

    Args:
        name: Its name.
        network: Takes normalised images (B×3×S×S), gives embeddings (B×D).
        transform: What is done to patches first.
        dim: Length of an embedding; None where it is to be found out.
        precision: What it computes in on a GPU.
        recipe: What else makes the embeddings, for the fingerprint.
    """

    name: str
    network: Callable[[torch.Tensor], torch.Tensor]
    transform: PatchTransform
    dim: int | None = None
    precision: Precision = "float32"
    recipe: str = ""


def require(name: str, install: str = "'sgpmil[encoders]'") -> None:
    """Refuse to go on without a package; make it importable where torchvision does not fit torch.

    Args:
        name: Name of the package.
        install: What pip is to install.

    Raises:
        MissingPartError: It is not installed.
    """
    if find_spec(name) is None:
        raise MissingPartError(
            f"Expected the package '{name}' to encode patches, but it is not installed. "
            f"Install it with: pip install {install}."
        )
    mend_torchvision()
