"""Models of the user's own: TorchScript and ONNX files, and Python classes."""

import importlib
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import nn

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.encoder import (
    DTYPES,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Interpolation,
    Network,
    PatchTransform,
    Precision,
    file_hash,
    require,
)
from sgpmil.torchvision_import import mend_torchvision

__all__ = [
    "MODEL_SUFFIXES",
    "PatchNetwork",
    "Sidecar",
    "load_model_file",
    "load_own_class",
    "read_sidecar",
]

MODEL_SUFFIXES = (".pt", ".pth", ".ts", ".torchscript", ".onnx")


def load_model_file(path: Path, device: torch.device) -> Network:
    """Load a model that takes normalised images (B×3×S×S) and gives embeddings (B×D).

    A file of the same name with the suffix ``.json`` says what it takes; 224 px and the mean and
    standard deviation of ImageNet otherwise.

    Args:
        path: TorchScript, or ONNX where the suffix is ``.onnx``.
        device: Where it is to compute.

    Raises:
        EncoderError: The file is missing, damaged or something else.
        MissingPartError: It is ONNX, and onnxruntime is not installed.
    """
    if not path.is_file():
        raise EncoderError(f"Expected a model in '{path}', but there is no such file.")
    if path.suffix == ".onnx":
        require("onnxruntime", "onnxruntime (with CUDA: onnxruntime-gpu)")
        model: Any = _OnnxModel(path, device)
        sidecar = read_sidecar(path, **model.stated_size)
    else:
        model = _torchscript(path, device)
        sidecar = read_sidecar(path)
    return Network(
        name=path.stem,
        network=model,
        transform=sidecar.transform,
        precision=sidecar.precision,
        recipe=f"file {file_hash(path)}",
    )


def _torchscript(path: Path, device: torch.device) -> torch.nn.Module:
    try:
        return torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError, OSError) as error:
        raise EncoderError(
            f"Expected a TorchScript model in '{path}', but it is none. If it holds weights, say "
            "whose: name the encoder, and give the file with --weights."
        ) from error


class _OnnxModel:
    """A model that onnxruntime computes, on the GPU where it can.

    Args:
        path: The file.
        device: Where it is to compute.
    """

    def __init__(self, path: Path, device: torch.device) -> None:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state

        refusals = (state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf)
        wanted = ["CPUExecutionProvider"]
        if device.type == "cuda":
            wanted.insert(0, "CUDAExecutionProvider")
        available = onnxruntime.get_available_providers()
        try:
            self.session: Any = onnxruntime.InferenceSession(
                str(path), providers=[name for name in wanted if name in available]
            )
        except (*refusals, state.NotImplemented) as error:
            words = " ".join(str(error).split())[:160]
            raise EncoderError(
                f"Expected an ONNX model in '{path}', but onnxruntime refuses it ({words})."
            ) from error
        self.input: Any = self.session.get_inputs()[0]
        batch, *_, width = self.input.shape
        self.batch = batch if isinstance(batch, int) else None
        self.stated_size = {"input_size": width} if isinstance(width, int) else {}

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        dtype = np.float16 if self.input.type == "tensor(float16)" else np.float32
        array = images.cpu().numpy().astype(dtype)
        num = len(array)
        step = self.batch or num
        # A model exported for a fixed batch gets full ones; what fills the last is dropped.
        padded = np.concatenate([array, np.repeat(array[-1:], -num % step, axis=0)])
        parts = [
            self.session.run(None, {self.input.name: padded[start : start + step]})[0]
            for start in range(0, len(padded), step)
        ]
        return torch.from_numpy(np.concatenate(parts)[:num])


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
