"""A network that was loaded, before it is put on a device."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sgpmil.slides.encoders.encoder import Precision
from sgpmil.slides.encoders.transform import PatchTransform

__all__ = ["Network"]


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
