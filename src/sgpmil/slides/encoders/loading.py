"""Loading of encoders by name."""

import re
from pathlib import Path

import torch

from sgpmil.errors import EncoderError, SettingsError
from sgpmil.processes import compute_device
from sgpmil.slides.encoders.encoder import DTYPES, Encoder, Network, NetworkEncoder, Precision
from sgpmil.slides.encoders.libraries import load_timm, load_transformers
from sgpmil.slides.encoders.own_models import MODEL_SUFFIXES, load_model_file, load_own_class
from sgpmil.slides.encoders.registry import DEFAULT_ENCODER, find_entry

_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def load_encoder(
    name: str = DEFAULT_ENCODER,
    *,
    weights: Path | None = None,
    device: str = "auto",
    precision: Precision | None = None,
    trust: bool = False,
) -> Encoder:
    """Load an encoder.

    Args:
        name: A registered name (`list_encoders`); ``timm:NAME`` or ``timm:hf-hub:OWNER/NAME``;
            ``hf:OWNER/NAME``; a file with a TorchScript (``.pt``) or ONNX (``.onnx``) model; or a
            class of your own, ``package.module:ClassName``.
        weights: Local checkpoint, or the folder of one, instead of the hub.
        device: ``auto`` (a GPU where there is one), ``cpu``, ``gpu``, or a device of torch, such as
            ``cuda:1``.
        precision: Precision of the computation; by default the encoder's own on a GPU, and
            float32 elsewhere.
        trust: Whether a TorchScript file, which is a program, may run.

    Raises:
        EncoderError: There is no such encoder, or its weights are not available or do not fit.
        MissingPartError: A package it needs is not installed.
        SettingsError: There is no such device or precision.
    """
    target = compute_device(device, needs_float64=False)
    if precision is not None and precision not in DTYPES:
        raise SettingsError(f"Expected precision to be {', '.join(DTYPES)}, but got '{precision}'.")
    loaded = _load(name, weights, target, trust)
    suitable = loaded.precision if target.type == "cuda" else "float32"
    encoder = NetworkEncoder(
        re.sub(r"[^\w.-]+", "-", loaded.name),
        loaded.network,
        loaded.transform,
        dim=loaded.dim or 0,
        device=target,
        precision=precision or suitable,
        recipe=loaded.recipe,
    )
    if loaded.dim is None:
        encoder.dim = _probed_dim(encoder)
    return encoder


def _load(name: str, weights: Path | None, device: torch.device, trust: bool) -> Network:
    if name.startswith("timm:"):
        return load_timm(name.removeprefix("timm:"), weights)
    if name.startswith("hf:"):
        return load_transformers(name.removeprefix("hf:"), weights)
    if name.endswith(MODEL_SUFFIXES):
        if weights is not None:
            raise EncoderError(
                f"Expected no other weights for '{name}', which holds its own, but got "
                f"'{weights}'. To load weights, name the encoder they belong to."
            )
        return load_model_file(Path(name), device, trust=trust)
    if _CLASS.fullmatch(name):
        return load_own_class(name, weights)
    return find_entry(name).load(weights)


def _probed_dim(encoder: NetworkEncoder) -> int:
    size = encoder.input_size
    blank = torch.zeros(2, size, size, 3, dtype=torch.uint8, device=encoder.device)
    try:
        with torch.inference_mode():
            found = encoder.network(encoder.transform(blank))
    except (RuntimeError, TypeError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise EncoderError(
            f"Expected encoder '{encoder.name}' to take images of {size}×{size} px, but it fails "
            f"on them ({words}). Describe its input in the .json file beside it, or wrap it in a "
            "class of your own."
        ) from error
    if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != 2:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise EncoderError(
            f"Expected encoder '{encoder.name}' to give one embedding for each image (2×D for "
            f"two), but got {shape}. Pool its output, or wrap it in a class of your own."
        )
    return found.shape[1]
