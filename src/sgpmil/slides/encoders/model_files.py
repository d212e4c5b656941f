"""Whole models from a file: TorchScript and ONNX."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgpmil.errors import EncoderError
from sgpmil.slides.encoders.fingerprint import file_hash
from sgpmil.slides.encoders.network import Network
from sgpmil.slides.encoders.packages import require
from sgpmil.slides.encoders.sidecar import read_sidecar

__all__ = ["MODEL_SUFFIXES", "load_model_file"]

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
