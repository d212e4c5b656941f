"""Weights of networks, from files and from Hugging Face's hub."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sgpmil.bags.readers.torch_files import load_torch
from sgpmil.errors import EncoderError, damage_as
from sgpmil.slides.encoders.encoder import require

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weight files in a repository of Hugging Face's hub, the preferred one first."""

_SHARDS = "model.safetensors.index.json"
_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".torch")
_NESTED = ("state_dict", "model", "teacher", "model_state_dict")
_DEEPEST = 8
"""Dictionaries around the tensors, one in another."""
_WRAPPERS = ("module.", "_orig_mod.", "model.")
"""Prefixes of data-parallel training, compilation and training frameworks."""
_HEADS = ("head.", "fc.", "_fc.", "classifier.", "dino_head.", "ibot_head.", "pooler.")
_LEFTOVERS = ("mask_token",)
"""Tensors that only training needs."""


def weights_file(path: Path) -> Path:
    """Return the weight file of a path: itself, or the one in a folder (a snapshot of a hub).

    Raises:
        EncoderError: There is none, or there are several.
    """
    if not path.is_dir():
        if not path.is_file():
            raise EncoderError(f"Expected weights in '{path}', but there is no such file.")
        return path
    for name in (WEIGHT_FILES[0], _SHARDS, *WEIGHT_FILES[1:]):
        if (path / name).exists():
            return path / name
    found = sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    if len(found) != 1:
        raise EncoderError(
            f"Expected one weight file ({', '.join(WEIGHT_FILES)} or any of "
            f"{', '.join(_SUFFIXES)}) in '{path}', but found {len(found)}. Give the file itself."
        )
    return found[0]


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a checkpoint, by name.

    The file is of safetensors or of torch. Its tensors may be nested under ``state_dict``,
    ``model`` or ``teacher``, and have the prefixes of wrappers. Only tensors are read, so that a
    checkpoint cannot run code.

    Raises:
        EncoderError: The file is missing, damaged or not a checkpoint.
    """
    file = weights_file(path)
    advice = "Download it again, or save the model's state_dict."
    with damage_as(EncoderError, "a checkpoint with nothing but tensors", file, advice):
        return _unwrapped(_tensors(_read(file), file))


def _read(file: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if file.name == _SHARDS:
        names = set(json.loads(file.read_text(encoding="utf-8"))["weight_map"].values())
        if any(Path(name).name != name or name == _SHARDS for name in names):
            raise ValueError("parts of the weights in other folders")
        return {
            key: value for name in sorted(names) for key, value in _read(file.parent / name).items()
        }
    if file.suffix == ".safetensors":
        try:
            return load_file(file)
        except SafetensorError as error:
            raise ValueError(str(error)) from error
    return load_torch(file, EncoderError)


def _tensors(content: Any, file: Path) -> dict[str, torch.Tensor]:
    for _ in range(_DEEPEST):  # a dictionary can hold itself
        if not isinstance(content, Mapping):
            break
        nested = next((key for key in _NESTED if isinstance(content.get(key), Mapping)), None)
        if nested is None:
            break
        content = content[nested]
    found = (
        {
            key: value
            for key, value in content.items()
            if isinstance(key, str) and isinstance(value, torch.Tensor)
        }
        if isinstance(content, Mapping)
        else {}
    )
    if not found:
        raise EncoderError(
            f"Expected tensors by name in '{file}', but found none. Save the model's state_dict."
        )
    return found


def _unwrapped(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in weights):
            return _unwrapped({name.removeprefix(prefix): value for name, value in weights.items()})
    # Other tensors than the backbone's are heads for training.
    inside = [name for name in weights if name.startswith("backbone.")]
    if inside:
        return _unwrapped({name.removeprefix("backbone."): weights[name] for name in inside})
    return weights


def load_weights(network: nn.Module, weights: Mapping[str, torch.Tensor], what: str) -> None:
    """Put weights into a network; every tensor of it must be there and fit.

    A head that the network lacks is left out.

    Args:
        network: The network, which may be on the meta device. It takes the tensors themselves.
        weights: Tensors by name.
        what: Name and file of the expected weights, for the message.

    Raises:
        EncoderError: A tensor is missing, unknown or of another shape.
    """
    wanted = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    given = {
        name: value
        for name, value in weights.items()
        if name in wanted or not (name.startswith(_HEADS) or name in _LEFTOVERS)
    }
    missing = [name for name in wanted if name not in given]
    unknown = [name for name in given if name not in wanted]
    other = [
        f"{name} is {_shape(given[name].shape)} instead of {_shape(shape)}"
        for name, shape in wanted.items()
        if name in given and tuple(given[name].shape) != shape
    ]
    counts = ((missing, "missing"), (unknown, "unknown"), (other, "of another shape"))
    faults = [f"{len(names)} are {word} (first: {names[0]})" for names, word in counts if names]
    if faults:
        raise EncoderError(
            f"Expected the weights of {what}, but of its {len(wanted)} tensors "
            f"{', '.join(faults)}. Give the checkpoint of this very encoder."
        )
    network.load_state_dict(given, assign=True)
    network.float()


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "a number"


def hub_failure(repository: str, error: Exception | None) -> EncoderError:
    """Return the error of a failed download, with what to do about it."""
    words = " ".join(str(error).split())[:160]
    return EncoderError(
        f"Expected the weights of '{repository}' from Hugging Face's hub or its cache, but they "
        f"cannot be loaded ({type(error).__name__}: {words}). Accept the licence at "
        f"https://huggingface.co/{repository} and log in with 'hf auth login'; or, without "
        "internet, download the weights elsewhere and give the file with `weights`."
    )


def download_weights(repository: str) -> Path:
    """Return the weight file of a repository, from the cache or else downloaded.

    A cached file is used without asking the hub: a second run depends neither on the network nor
    on later uploads. With ``HF_HUB_OFFLINE=1`` the hub is never asked.

    Raises:
        EncoderError: It is neither cached nor reachable, or its licence is not accepted.
    """
    require("huggingface_hub")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    failure: Exception | None = None
    for from_cache in (True, False):
        for name in WEIGHT_FILES:
            try:
                return Path(hf_hub_download(repository, name, local_files_only=from_cache))
            except (EntryNotFoundError, OSError, ValueError) as error:
                failure = error
                is_elsewhere = isinstance(error, EntryNotFoundError)
                is_unreachable = isinstance(error, LocalEntryNotFoundError) and not from_cache
                if is_unreachable or not is_elsewhere:
                    break
    raise hub_failure(repository, failure) from failure
