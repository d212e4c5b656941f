"""Patches become embeddings."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import torch
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.shapes import Float, UInt8
from sgpmil.slides.encoders.fingerprint import fingerprint
from sgpmil.slides.encoders.transform import PatchTransform

__all__ = ["DTYPES", "Encoder", "NetworkEncoder", "Precision"]

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
