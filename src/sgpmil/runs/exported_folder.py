"""An exported model on disk: one folder in Hugging Face's layout with all that prediction needs.

::

    config.json         format, classes, features, encoder; the model and settings of each fold
    model.safetensors   the weights of all folds; those of the second begin with "1."
    slides.json         digests of the slides that were trained on, without their names
    README.md           the model card
    model.onnx          the prediction as a graph, where it was asked for

Nothing in it is pickled, and it holds no path of the machine that it was made on.
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sgpmil.bags.files import (
    atomic_path,
    read_json,
    regular_file,
    remove_leftovers,
    temporary_sibling,
    write_text,
)
from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.errors import CheckpointError, RunFolderError, damage_as
from sgpmil.models.checkpoint import CheckpointInfo, unfit_weights, weights_of
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import ModelLike
from sgpmil.runs.seen_slides import read_seen, write_seen

FORMAT_VERSION = 1
"""Version of the format of ``config.json``."""

CONFIG, WEIGHTS, SLIDES, CARD, GRAPH = (
    "config.json",
    "model.safetensors",
    "slides.json",
    "README.md",
    "model.onnx",
)

_LIBRARY = "sgpmil"


@dataclass(frozen=True, slots=True)
class ExportedFolder:
    """What ``config.json`` and ``slides.json`` say.

    Args:
        names: Name of each fold.
        infos: Description of the model of each fold.
        encoders: Names of the patch encoders, where known.
        seen: Slides that the folds have seen.
    """

    names: tuple[str, ...]
    infos: tuple[CheckpointInfo, ...]
    encoders: tuple[str, ...] = ()
    seen: SeenSlides = SeenSlides()  # noqa: RUF009 (it is frozen)


def is_exported(folder: Path) -> bool:
    """Return whether a folder is an exported model, whose weights may be damaged."""
    try:
        content = read_json(folder / CONFIG)
    except OSError:
        return False
    except ValueError:  # not even JSON: the files beside it tell
        return all((folder / name).exists() for name in (WEIGHTS, SLIDES))
    return isinstance(content, dict) and content.get("library_name") == _LIBRARY


def write_exported(folder: Path, models: Sequence[MILModel], described: ExportedFolder) -> None:
    """Write all but the model card.

    Args:
        folder: An existing folder.
        models: Model of each fold.
        described: Their description.

    Raises:
        OSError: A file cannot be written.
    """
    first = described.infos[0]
    content = {
        "library_name": _LIBRARY,
        "format_version": FORMAT_VERSION,
        "sgpmil_version": version("sgpmil"),
        # As transformers name them, for tools that read such files.
        "model_type": first.model,
        "architectures": [type(models[0]).__name__],
        "id2label": dict(enumerate(first.target.names)),
        "label2id": {name: index for index, name in enumerate(first.target.names)},
        "encoders": list(described.encoders),
        "folds": [
            {"name": name, **info.to_json()}
            for name, info in zip(described.names, described.infos, strict=True)
        ],
    }
    write_text(folder / CONFIG, json.dumps(content, indent=2) + "\n")
    state = {
        f"{number}.{name}": value
        for number, model in enumerate(models)
        for name, value in weights_of(model).items()
    }
    with atomic_path(folder / WEIGHTS) as temporary:
        temporary.write_bytes(save(state, metadata={"format": "pt"}))
    write_seen(folder / SLIDES, described.seen)


def read_exported(
    folder: Path, *, model: ModelLike | None = None, **settings: Any
) -> tuple[tuple[MILModel, ...], ExportedFolder]:
    """Read an exported model, in evaluation mode, on the CPU.

    Args:
        folder: Its folder.
        model: See `sgpmil.models.load_model`.
        settings: See `sgpmil.models.load_model`.

    Raises:
        CheckpointError: A file is missing, damaged or of a newer format; or the model is of a
            plug-in that is not installed.
    """
    described = _read_config(folder)
    models = []
    weights = folder / WEIGHTS
    for number, info in enumerate(described.infos):
        prefix = f"{number}."
        try:
            with safe_open(regular_file(weights), framework="pt") as file:
                own = [name for name in file.keys() if name.startswith(prefix)]  # noqa: SIM118
                state = {name.removeprefix(prefix): file.get_tensor(name) for name in own}
        except (OSError, ValueError, SafetensorError) as error:
            raise unfit_weights(info.model, weights, error) from error
        models.append(info.build(state, weights, model=model, **settings))
    return tuple(models), described


def _read_config(folder: Path) -> ExportedFolder:
    file = folder / CONFIG
    expected = "the description of an exported model"
    with damage_as(CheckpointError, expected, file, "Export the model again."):
        content: Mapping[str, Any] = read_json(file)
        written_as = int(content["format_version"])
        if written_as > FORMAT_VERSION:
            raise CheckpointError(
                f"Expected an exported model of format {FORMAT_VERSION} or older in {folder}, but "
                f"it is of format {written_as}. Update sgpmil."
            )
        folds = [dict(fold) for fold in content["folds"]]
        names = tuple(str(fold.pop("name")) for fold in folds)
        infos = tuple(CheckpointInfo.from_json(fold) for fold in folds)
        if len({(info.target, info.in_dim) for info in infos}) != 1:
            raise ValueError("its folds are not of the same classes and features")
        encoders = tuple(str(name) for name in content.get("encoders", ()))
    return ExportedFolder(names, infos, encoders, read_seen(folder / SLIDES))


@contextmanager
def new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a hidden folder beside `folder`, renamed to it if the block succeeds.

    A process that is stopped in between leaves `folder` as it was.

    Args:
        folder: The folder to make.
        overwrite: Whether an exported model may be replaced.

    Raises:
        RunFolderError: The folder holds files and `overwrite` is not given, it is no exported
            model, or it cannot be written.
    """
    check_new_folder(folder, overwrite=overwrite)
    remove_leftovers(folder)
    temporary = temporary_sibling(folder)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        if folder.exists():
            before = temporary_sibling(folder)
            os.replace(folder, before)
            os.replace(temporary, folder)
            shutil.rmtree(before)
        else:
            os.replace(temporary, folder)
    except OSError as error:
        raise RunFolderError(f"Could not write the folder {folder}: {error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_new_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot be made; see `new_folder`."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise RunFolderError(f"Expected a folder to write at {folder}, but it is a file.")
    if not any(folder.iterdir()):
        return
    if not is_exported(folder):
        raise RunFolderError(
            f"Expected {folder} to be new or an exported model, but it holds other files. Choose "
            "another folder (`to`)."
        )
    if not overwrite:
        raise RunFolderError(
            f"{folder} holds an exported model already. Replace it (`overwrite=True`), or choose "
            "another folder (`to`)."
        )
