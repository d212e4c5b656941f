"""An encoder of the user's own: a Python class."""

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.encoder import DTYPES
from sgpmil.slides.encoders.network import Network
from sgpmil.slides.encoders.transform import IMAGENET_MEAN, IMAGENET_STD, PatchTransform
from sgpmil.torchvision_import import mend_torchvision

__all__ = ["PatchNetwork", "load_own_class"]


@runtime_checkable
class PatchNetwork(Protocol):
    """What a class must have to serve as an encoder.

    It is constructed without arguments, or with ``weights=PATH`` where ``--weights`` is given. It
    may be a ``torch.nn.Module``; then it is moved to the device. It may also have ``mean`` and
    ``std`` (three numbers each; ImageNet's otherwise), ``interpolation`` (``bilinear``, or
    ``bicubic``) and ``precision`` (``float32``, ``float16`` or ``bfloat16``, on a GPU).

    Attributes:
        dim: Length of an embedding.
        input_size: Side of the image it takes, in pixels.
    """

    dim: int
    input_size: int

    def __call__(self, images: torch.Tensor, /) -> torch.Tensor:
        """Embed normalised images (B×3×S×S) as B×D.

        Args:
            images: The images.
        """


def load_own_class(name: str, weights: Path | None = None) -> Network:
    """Make an encoder of a class.

    Args:
        name: ``package.module:ClassName``. The current folder is looked into, too.
        weights: Passed on to the constructor.

    Raises:
        EncoderError: There is no such class, or it is not what an encoder must be.
    """
    # It may import timm, and that torchvision.
    mend_torchvision()
    kind = _find_class(name)
    try:
        network = kind(weights=weights) if weights is not None else kind()
    except TypeError as error:
        raise EncoderError(
            f"Expected '{name}' to be constructed without arguments or with weights=PATH, but it "
            f"refuses that ({error})."
        ) from error
    if not isinstance(network, PatchNetwork):
        raise EncoderError(
            f"Expected '{name}' to have dim and input_size and to be callable, but it lacks one "
            "of them. See the page on encoders."
        )
    precision = getattr(network, "precision", "float32")
    try:
        transform = PatchTransform(
            int(network.input_size),
            mean=_three(getattr(network, "mean", IMAGENET_MEAN)),
            std=_three(getattr(network, "std", IMAGENET_STD)),
            interpolation=getattr(network, "interpolation", "bilinear"),
        )
        if precision not in DTYPES:
            raise ValueError(f"precision '{precision}'")
    except (TypeError, ValueError) as error:
        raise EncoderError(
            f"Expected input_size, mean, std and precision of '{name}' to make a transform, but "
            f"they do not ({error})."
        ) from error
    source = "" if isinstance(network, nn.Module) else _source(kind)
    return Network(
        name=name.split(":")[1],
        network=network,
        transform=transform,
        dim=int(network.dim),
        precision=precision,
        recipe=f"class {name}\n{source}",
    )


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = (float(value) for value in values)
    return first, second, third


def _find_class(name: str) -> Callable[..., Any]:
    module_name, class_name = name.split(":")
    here = str(Path.cwd())
    # Started as a command, Python does not look into the current folder.
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise EncoderError(
            f"Expected a module '{module_name}' for encoder '{name}', but it cannot be imported "
            f"({error}). Install or mend it, or start from its folder."
        ) from error
    finally:
        sys.path.remove(here)
    kind = getattr(module, class_name, None)
    if not callable(kind):
        raise EncoderError(
            f"Expected a class '{class_name}' in '{module.__file__}', but there is none."
        )
    return kind


def _source(kind: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""
