"""The description of a run, ``run.json``: format, settings, versions and fingerprints."""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sgpmil.bags.files import name_fault, read_json, write_text
from sgpmil.bags.tables import listed
from sgpmil.errors import RunFolderError, reason_of

FORMAT = 1
"""Version of the format of ``run.json``. Runs without one are of the first format."""

_FILE = "run.json"
_BEFORE: Mapping[str, Any] = {"model_settings.hidden_dims": []}
"""Values of settings that a run does not hold, because it was made before there were such."""

_KINDS: Mapping[str, type] = {
    "folds": list,
    "settings": dict,
    "data": dict,
    "versions": dict,
    **dict.fromkeys(("created", "python", "git_commit"), str),
    **dict.fromkeys(("settings.training", "settings.model_settings"), dict),
    **dict.fromkeys(("settings.model", "settings.data_fingerprint"), str),
    "settings.splits_fingerprint": str,
    **{
        f"data.{name}": str
        for name in (
            *("folder", "labels", "slide_table"),
            *("slide_column", "label_column", "case_column"),
        )
    },
    "settings.training.seed": int,
}
"""Kinds of the values of a description that is not damaged, where they are there."""

_PACKAGES = ("sgpmil", "torch", "gpytorch", "lightning-fabric", "numpy", "scikit-learn")


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a run; what an older run did not record is None or empty.

    Args:
        created: Date and time, in UTC.
        python: Version of Python.
        versions: Version of each package that decides the numbers.
        git_commit: Commit of the folder in which the run was started.
        seed: Seed of the training.
        data_fingerprint: Digest of the bags and their labels.
        splits_fingerprint: Digest of the folds.
        format: Version of the format of ``run.json``.
    """

    created: str | None
    python: str | None
    versions: Mapping[str, str]
    git_commit: str | None
    seed: int | None
    data_fingerprint: str | None
    splits_fingerprint: str | None
    format: int

    @staticmethod
    def of(description: Mapping[str, Any]) -> "Provenance":
        """Take the origin of a run from its description."""
        settings = description.get("settings", {})
        return Provenance(
            created=description.get("created"),
            python=description.get("python"),
            versions=description.get("versions", {}),
            git_commit=description.get("git_commit"),
            seed=settings.get("training", {}).get("seed"),
            data_fingerprint=settings.get("data_fingerprint"),
            splits_fingerprint=settings.get("splits_fingerprint"),
            format=int(description.get("format", FORMAT)),
        )


def is_run(path: Path | str) -> bool:
    """Return whether a folder is a run, whose description may be damaged."""
    file = Path(path) / _FILE
    try:
        description = read_json(file)
    except OSError:
        return False
    except ValueError:
        return file.with_name("splits").is_dir()
    return isinstance(description, dict) and {"folds", "settings"} <= description.keys()


def write_description(
    folder: Path, folds: Sequence[str], settings: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the description of a new run, and return it (see `Run.create`)."""
    description = {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": _versions(),
        "git_commit": _git_commit(),
        "folds": list(folds),
        "data": _as_json(data),
        "settings": _as_json(settings),
    }
    write_text(folder / _FILE, json.dumps(description, indent=2))
    return description


def read_description(folder: Path) -> dict[str, Any]:
    """Read the description of a run.

    Raises:
        RunFolderError: There is none, it is damaged, or it is of a newer format.
    """
    file = folder / _FILE
    try:
        description: dict[str, Any] = read_json(file)
        written_as = int(description.get("format", FORMAT))
        if written_as <= FORMAT:
            _check_kinds(description)
    except OSError as error:
        raise RunFolderError(
            f"Expected a run (a folder with {_FILE}) at {folder}, but found none."
        ) from error
    except Exception as error:  # a damaged file fails in many ways
        raise RunFolderError(
            f"Expected the description of a run in {file}, but it is damaged "
            f"({type(error).__name__}: {reason_of(error)}). Replace the run with `overwrite=True`, "
            "or restore the file."
        ) from error
    if written_as > FORMAT:
        raise RunFolderError(
            f"Expected a run of format {FORMAT} or older at {folder}, but it is of format "
            f"{written_as}. Update sgpmil."
        )
    return description


def _check_kinds(description: Mapping[str, Any]) -> None:
    for place, kind in _KINDS.items():
        section, _, name = place.rpartition(".")
        holder = description
        for part in filter(None, section.split(".")):
            holder = holder.get(part, {})
        # An older run did not record everything, and not all of it is known of every run.
        value = holder.get(name) if kind in (str, int) else holder.get(name, kind())
        if value is None and kind in (str, int):
            continue
        if not isinstance(value, kind) or isinstance(value, bool):
            raise TypeError(f"{place} is no {kind.__name__}")
    if not all(isinstance(version, str) for version in description.get("versions", {}).values()):
        raise TypeError("versions are no texts")
    folds = description["folds"]
    if not folds:
        raise ValueError("it names no fold")
    if not all(isinstance(name, str) and not name_fault(name) for name in folds):
        raise TypeError("folds are no names")
    if len(set(folds)) < len(folds):
        raise ValueError("a fold is named twice")


def changed_slides(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Say which slides are not what they were, by their digests; empty where all are.

    Example:
        >>> changed_slides({"a": "1", "b": "1"}, {"a": "2", "c": "1"})
        "1 changed ('a'), 1 is new ('c'), 1 is gone ('b')"
    """
    kinds = [
        ("changed", "changed", [s for s in before if s in now and before[s] != now[s]]),
        ("is new", "are new", [s for s in now if s not in before]),
        ("is gone", "are gone", [s for s in before if s not in now]),
    ]
    return ", ".join(
        f"{len(slides)} {one if len(slides) == 1 else several} ({listed(slides)})"
        for one, several, slides in kinds
        if slides
    )


def refuse_other_settings(
    folder: Path,
    before: Mapping[str, Any],
    settings: Mapping[str, Any],
    slides: str = "",
) -> None:
    """Refuse to resume a run with settings other than its own.

    Args:
        folder: The run.
        before: Its settings.
        settings: The settings to resume it with.
        slides: Slides that are not what they were, by `changed_slides`.

    Raises:
        RunFolderError: Slides changed, or a setting differs; the message names the first.
    """
    if slides:
        raise RunFolderError(
            f"Expected the slides of the run {folder} to resume it, but of their labels and "
            f"files {slides}. Put them back, choose another folder, or replace the run with "
            "`overwrite=True`."
        )
    old, new = {**_BEFORE, **_flat(before)}, {**_BEFORE, **_flat(_as_json(settings))}
    old.pop("training.logger", None)  # an earlier setting, which decided nothing
    if "training.prevalence" in new:
        old.setdefault("training.prevalence", earlier_prevalence(before.get("training", {})))
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if differing:
        key = differing[0]
        raise RunFolderError(
            f"Expected the settings of the run {folder} to resume it, but {key} was "
            f"{old.get(key)!r} and is now {new.get(key)!r}"
            f"{f' ({len(differing) - 1} more differ)' if len(differing) > 1 else ''}. "
            "Choose another folder, or replace the run with `overwrite=True`."
        )


def earlier_prevalence(training: Mapping[str, Any]) -> str:
    """Return the prevalence of a run that was made before there was such a setting."""
    return "balanced" if training.get("balanced_sampling", True) else "training"


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn settings into what JSON gives back: lists for tuples, text for paths."""
    found: dict[str, Any] = json.loads(json.dumps(values, default=str))
    return found


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {prefix: values}
    return {
        key: value
        for name, inner in values.items()
        for key, value in _flat(inner, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _git_commit() -> str | None:
    """Return the commit of the working directory, where it is a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    result = subprocess.run(  # noqa: S603
        [git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None
