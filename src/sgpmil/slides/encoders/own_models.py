"""Models of the user: TorchScript files, ONNX files and Python classes."""

import hashlib
import importlib
import inspect
import json
import sys
import zipfile
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
    require,
)
from sgpmil.torchvision_import import mend_torchvision

MODEL_SUFFIXES = (".pt", ".pth", ".ts", ".torchscript", ".onnx")


class _Sidecar(BaseModel):
    """The JSON file beside a model, which describes its input."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input_size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    interpolation: Interpolation = "bilinear"
    precision: Precision = "float32"

    @property
    def transform(self) -> PatchTransform:
        return PatchTransform(
            self.input_size, mean=self.mean, std=self.std, interpolation=self.interpolation
        )


def load_model_file(path: Path, device: torch.device, *, trust: bool = False) -> Network:
    """Load a model that maps normalised images (B×3×S×S) to embeddings (B×D).

    A file of the same name with the suffix ``.json`` describes the input. Without it, the input is
    224 px with the mean and standard deviation of ImageNet.

    A TorchScript file is a program: it can read and write files. An ONNX file is a graph of
    operators that onnxruntime has; operators of other libraries are refused.

    Args:
        path: TorchScript, or ONNX if the suffix is ``.onnx``.
        device: Device of the computation.
        trust: Whether TorchScript may run.

    Raises:
        EncoderError: The file is missing, damaged or something else, or TorchScript without trust.
        MissingPartError: It is ONNX, and onnxruntime is not installed.
    """
    if not path.is_file():
        raise EncoderError(f"Expected a model in '{path}', but there is no such file.")
    if path.suffix == ".onnx":
        require("onnxruntime", "onnxruntime (with CUDA: onnxruntime-gpu)")
        model: Any = _OnnxModel(path, device)
        sidecar = _read_sidecar(path, **model.stated_size)
    else:
        if not _is_torchscript(path):
            raise _no_torchscript(path)
        if not trust:
            raise EncoderError(
                f"Expected an encoder that cannot run code, but '{path}' is TorchScript, a program "
                "that can read and write your files. If you trust whoever made it, pass "
                "`trust=True`; safer are an architecture by name and its weights as safetensors "
                "(`weights`), or ONNX."
            )
        model = _torchscript(path, device)
        sidecar = _read_sidecar(path)
    with path.open("rb") as file:
        content_hash = hashlib.file_digest(file, "sha256").hexdigest()
    return Network(
        name=path.stem,
        network=model,
        transform=sidecar.transform,
        precision=sidecar.precision,
        recipe=f"file {content_hash}",
    )


def _read_sidecar(model: Path, **defaults: Any) -> _Sidecar:
    file = model.with_suffix(".json")
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        sidecar = _Sidecar(**{**defaults, **content})
        _ = sidecar.transform
    except (OSError, ValueError, TypeError, ValidationError) as error:
        words = " ".join(str(error).split())[:200]
        raise EncoderError(
            f"Expected {', '.join(_Sidecar.model_fields)} in '{file}', the description of "
            f"'{model.name}', but it cannot be used ({words})."
        ) from error
    return sidecar


def _torchscript(path: Path, device: torch.device) -> torch.nn.Module:
    try:
        return torch.jit.load(str(path), map_location=device)
    except Exception as error:  # a damaged file fails in many ways
        raise _no_torchscript(path) from error


def _is_torchscript(path: Path) -> bool:
    """Return whether a file has code, without running any."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except Exception:  # noqa: BLE001 (whatever an archive is damaged by)
        return False


def _no_torchscript(path: Path) -> EncoderError:
    return EncoderError(
        f"Expected a TorchScript model in '{path}', but it is none. If it holds weights, name "
        "their encoder, and give the file with `weights`."
    )


class _OnnxModel:
    """A model that onnxruntime computes, on the GPU where it can."""

    def __init__(self, path: Path, device: torch.device) -> None:
        import onnxruntime

        wanted = ["CPUExecutionProvider"]
        if device.type == "cuda":
            wanted.insert(0, "CUDAExecutionProvider")
        available = onnxruntime.get_available_providers()
        try:
            self.session: Any = onnxruntime.InferenceSession(
                str(path), providers=[name for name in wanted if name in available]
            )
        except Exception as error:  # damaged, or with operators that it does not have
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
        # A model exported for a fixed batch size gets full batches; the padding is dropped.
        padded = np.concatenate([array, np.repeat(array[-1:], -num % step, axis=0)])
        parts = [
            self.session.run(None, {self.input.name: padded[start : start + step]})[0]
            for start in range(0, len(padded), step)
        ]
        return torch.from_numpy(np.concatenate(parts)[:num])


@runtime_checkable
class PatchNetwork(Protocol):
    """Protocol of a class that serves as an encoder.

    The class is constructed without arguments, or with ``weights=PATH`` if ``--weights`` is given.
    A ``torch.nn.Module`` is moved to the device. Optional attributes are ``mean`` and ``std``
    (three numbers each; by default ImageNet's), ``interpolation`` (``bilinear`` or ``bicubic``)
    and ``precision`` on a GPU (``float32``, ``float16`` or ``bfloat16``).

    Attributes:
        dim: Length of an embedding.
        input_size: Side of the input image in pixels.
    """

    dim: int
    input_size: int

    def __call__(self, images: torch.Tensor, /) -> torch.Tensor:
        """Embed normalised images (B×3×S×S) as B×D."""


def load_own_class(name: str, weights: Path | None = None) -> Network:
    """Load an encoder from a class by its path.

    Args:
        name: ``package.module:ClassName``. The current folder is searched as well.
        weights: Argument of the constructor.

    Raises:
        EncoderError: There is no such class, or it cannot serve as an encoder.
    """
    # It may import timm, and timm imports torchvision.
    mend_torchvision()
    return load_class(_find_class(name), name, name.split(":")[1], weights)


def load_class(
    kind: Callable[..., Any], path: str, name: str, weights: Path | None = None
) -> Network:
    """Load an encoder from a class.

    Args:
        kind: The class (see `PatchNetwork`).
        path: ``package.module:ClassName``, for messages and the fingerprint.
        name: Name of the encoder.
        weights: Argument of the constructor.

    Raises:
        EncoderError: It cannot serve as an encoder.
    """
    try:
        network = kind(weights=weights) if weights is not None else kind()
    except TypeError as error:
        raise EncoderError(
            f"Expected '{path}' to be constructed without arguments or with weights=PATH, but it "
            f"refuses that ({error})."
        ) from error
    if not isinstance(network, PatchNetwork):
        raise EncoderError(
            f"Expected '{path}' to have dim and input_size and to be callable, but it lacks one "
            "of them. See the page on encoders."
        )
    transform, precision = class_transform(network, path)
    source = "" if isinstance(network, nn.Module) else _source(kind)
    return Network(
        name=name,
        network=network,
        transform=transform,
        dim=int(network.dim),
        precision=precision,
        recipe=f"class {path}\n{source}",
    )


def class_transform(network: Any, path: str) -> tuple[PatchTransform, Precision]:
    """Return the transform and the precision that the attributes of a class describe.

    Raises:
        EncoderError: The attributes describe no transform.
    """
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
            f"Expected input_size, mean, std and precision of '{path}' to make a transform, but "
            f"they do not ({error})."
        ) from error
    return transform, precision


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = (float(value) for value in values)
    return first, second, third


def _find_class(name: str) -> Callable[..., Any]:
    module_name, class_name = name.split(":")
    here = str(Path.cwd())
    # A command does not search the current folder for modules.
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise EncoderError(
            f"Expected a module '{module_name}' for encoder '{name}', but it cannot be imported "
            f"({error}). Install or correct it, or start from its folder."
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
