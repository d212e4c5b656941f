"""Encoders by name.

An encoder of this package registers an entry beside its definition. A class of another package
registers with `register_encoder`; such plug-ins are found by the entry points ``sgpmil.encoders``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from sgpmil.errors import EncoderError
from sgpmil.plugins import load_plugins
from sgpmil.slides.encoders.encoder import Network, PatchTransform, Precision
from sgpmil.slides.encoders.own_models import class_transform, load_class

DEFAULT_ENCODER = "efficientnet-lite0"

_Class = TypeVar("_Class", bound=type)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderEntry(ABC):
    """A registered encoder.

    Args:
        name: Its name, which is TRIDENT's where that tool has it.
        dim: Length of an embedding.
        transform: Transform of the patches.
        precision: Precision of the computation on a GPU.
        repository: Repository of the weights on Hugging Face's hub; empty if a package holds them.
        aliases: Other names.
        licence: Licence of the weights.
        is_gated: Whether the licence must be accepted before the weights can be downloaded.
    """

    name: str
    dim: int
    transform: PatchTransform
    precision: Precision = "float32"
    repository: str = ""
    aliases: tuple[str, ...] = ()
    licence: str = ""
    is_gated: bool = False

    @abstractmethod
    def load(self, weights: Path | None = None) -> Network:
        """Load the network with its weights.

        Args:
            weights: Local checkpoint, or a folder with one, instead of the hub.

        Raises:
            EncoderError: The weights are not available, or do not fit.
            MissingPartError: A package is not installed.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _RegisteredClass(EncoderEntry):
    """The entry of a class that was registered with `register_encoder`."""

    kind: Callable[..., Any]

    def load(self, weights: Path | None = None) -> Network:
        return load_class(self.kind, _path(self.kind), self.name, weights)


_ENTRIES: dict[str, EncoderEntry] = {}


def register_entry(entry: EncoderEntry) -> None:
    """Register an encoder under its name and its aliases.

    Raises:
        EncoderError: Another encoder has one of the names.
    """
    by_name = _by_name()
    for name in (entry.name, *entry.aliases):
        taken = by_name.get(_plain(name))
        # A class that is defined again, as in a notebook, replaces the one before.
        if taken is not None and (taken.name != entry.name or _owner(taken) != _owner(entry)):
            raise EncoderError(
                f"Expected a new name for the encoder {_owner(entry)}, but '{name}' is registered "
                f"for {_owner(taken)}. Choose another name."
            )
    _ENTRIES[entry.name] = entry


def register_encoder(
    name: str,
    *,
    aliases: tuple[str, ...] = (),
    repository: str = "",
    licence: str = "",
    is_gated: bool = False,
) -> Callable[[_Class], _Class]:
    """Register a class of encoders under a name; see `PatchNetwork` for what the class needs.

    Args:
        name: The name.
        aliases: Other names.
        repository: Repository of the weights on Hugging Face's hub.
        licence: Licence of the weights.
        is_gated: Whether the licence must be accepted before the weights can be downloaded.

    Raises:
        EncoderError: Another encoder has the name, or the class lacks dim or input_size.
    """

    def add(kind: _Class) -> _Class:
        if not (hasattr(kind, "dim") and hasattr(kind, "input_size")):
            raise EncoderError(
                f"Expected the class '{_path(kind)}' to have dim and input_size, but it lacks one "
                "of them. Set them in the body of the class."
            )
        transform, precision = class_transform(kind, _path(kind))
        register_entry(
            _RegisteredClass(
                name=name,
                dim=int(kind.dim),
                transform=transform,
                precision=precision,
                repository=repository,
                aliases=aliases,
                licence=licence,
                is_gated=is_gated,
                kind=kind,
            )
        )
        return kind

    return add


def list_encoders() -> tuple[EncoderEntry, ...]:
    """Return the registered encoders, those of plug-ins among them, the default first."""
    load_plugins("sgpmil.encoders")
    return tuple(_ENTRIES.values())


def find_entry(name: str) -> EncoderEntry:
    """Return the encoder of a name or alias; case, dashes and underscores do not matter.

    Raises:
        EncoderError: There is none of that name.
    """
    found = _by_name().get(_plain(name))
    if found is None:
        load_plugins("sgpmil.encoders")
        by_name = _by_name()
        found = by_name.get(_plain(name))
    if found is None:
        close = [by_name[n].name for n in get_close_matches(_plain(name), by_name, n=3)]
        hint = f"Did you mean {' or '.join(dict.fromkeys(close))}? " if close else ""
        raise EncoderError(
            f"Expected the name of an encoder, but got '{name}'. {hint}Known are "
            f"{', '.join(_ENTRIES)}; any other model goes by timm:NAME, hf:OWNER/NAME, FILE.pt "
            "(TorchScript), FILE.onnx or package.module:Class."
        )
    return found


def encoder_rows() -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Return the heading and the rows of a table of the encoders."""
    heading = ("name", "length", "input", "precision", "weights", "licence")
    rows = tuple(
        (
            entry.name,
            str(entry.dim),
            f"{entry.transform.size} px",
            entry.precision,
            entry.repository or "embedded",
            entry.licence + (", to be accepted" if entry.is_gated else ""),
        )
        for entry in list_encoders()
    )
    return heading, rows


def _by_name() -> dict[str, EncoderEntry]:
    return {_plain(n): e for e in _ENTRIES.values() for n in (e.name, *e.aliases)}


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def _owner(entry: EncoderEntry) -> str:
    return _path(entry.kind if isinstance(entry, _RegisteredClass) else type(entry))


def _path(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
