"""The folder that a run leaves on disk.

::

    runs/<name>/
      run.json            settings, versions, git commit, seed, data fingerprint, where the data lay
      splits/             the folds, as CLAM writes them
      fold-<k>/           checkpoint.safetensors + .json   the model that predicted
                          best.*, last.*                   best and last epoch
                          last.ckpt                        everything a resume needs
                          metrics.csv                      curves
                          validation/                      predictions of the validation slides
                          predictions.parquet              written last: the fold is done
                          attention/<slide>.h5             scores of the instances
      metrics.parquet     a row a fold
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sgpmil.bags.files import write_text
from sgpmil.bags.split_files import read_splits, write_splits
from sgpmil.bags.splits import Fold
from sgpmil.errors import RunFolderError, SplitError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.runs.prediction_folder import (
    is_prediction_folder,
    read_prediction_folder,
    write_prediction_folder,
)

__all__ = ["VALIDATION", "RunFolder", "open_run", "read_description", "read_run"]

VALIDATION = "validation"
"""Folder, within a fold's, of the predictions of its validation slides."""
_DESCRIPTION = "run.json"
_PACKAGES = ("sgpmil", "torch", "gpytorch", "lightning", "numpy", "scikit-learn")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run on disk.

    Args:
        path: The folder.
        folds: Names of its folds.
    """

    path: Path
    folds: tuple[str, ...]

    @property
    def metrics(self) -> Path:
        """Table of the metrics, a row a fold."""
        return self.path / "metrics.parquet"

    def fold(self, name: str) -> Path:
        """Return the folder of a fold."""
        return self.path / f"fold-{name}"

    def is_done(self, name: str) -> bool:
        """Say whether a fold is trained and predicted."""
        return is_prediction_folder(self.fold(name))

    def write(
        self, name: str, test: PredictionTable, validation: PredictionTable | None = None
    ) -> None:
        """Write the predictions of a fold.

        Args:
            name: Name of the fold.
            test: Predictions of its test slides.
            validation: Predictions of its validation slides, where it has any.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        folder = self.fold(name)
        try:
            if validation is not None:
                write_prediction_folder(
                    folder / VALIDATION, validation.predictions, validation.class_names
                )
            # Last: the fold is done.
            write_prediction_folder(folder, test.predictions, test.class_names)
        except OSError as error:
            raise RunFolderError(f"Could not write to {folder}: {error}.") from error

    def read(self, name: str, damaged: dict[str, str] | None = None) -> PredictionTable:
        """Read the predictions of a fold, with the scores of the instances where there are any.

        Args:
            name: Name of the fold.
            damaged: As of `read_prediction_folder`.
        """
        return read_prediction_folder(self.fold(name), damaged)

    def read_validation(
        self, name: str, damaged: dict[str, str] | None = None
    ) -> PredictionTable | None:
        """Read the predictions of a fold's validation slides; None where there are none.

        Args:
            name: Name of the fold.
            damaged: As of `read_prediction_folder`.
        """
        folder = self.fold(name) / VALIDATION
        return read_prediction_folder(folder, damaged) if is_prediction_folder(folder) else None

    def read_folds(self) -> tuple[Fold, ...]:
        """Read which slides each fold trained on, validated and tested with.

        Raises:
            SplitError: They cannot be read.
        """
        # The files are numbered in the folds' order, whatever these are called.
        found = read_splits(self.path / "splits")
        if len(found) != len(self.folds):
            raise SplitError(
                f"Expected the splits of {len(self.folds)} folds in {self.path / 'splits'}, but "
                f"got {len(found)}. Resume the run, which writes them again."
            )
        return tuple(replace(fold, name=name) for name, fold in zip(self.folds, found, strict=True))


def open_run(
    path: Path,
    folds: Sequence[Fold],
    settings: Mapping[str, Any],
    *,
    data: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> RunFolder:
    """Start a run, go on with one, or replace one.

    Args:
        path: Its folder.
        folds: Its folds.
        settings: Everything that decides its result, as JSON values.
        data: Where its bags lie, for commands that read them again.
        resume: Go on with an existing run of the same settings.
        overwrite: Replace an existing run.

    Raises:
        RunFolderError: The folder exists and neither is asked for, is not a run, holds a run of
            other settings, or cannot be written.
    """
    run = RunFolder(path, tuple(fold.name for fold in folds))
    settings = json.loads(json.dumps(settings, default=str))
    try:
        if path.exists() and any(path.iterdir()):
            if not _is_run(path):
                raise RunFolderError(
                    f"Expected {path} to be new or a run, but it holds other files. "
                    "Choose another folder."
                )
            if resume:
                _refuse_other_settings(path, settings)
                write_splits(folds, path / "splits", overwrite=True)
                return run
            if not overwrite:
                raise RunFolderError(
                    f"The run {path} exists already. Go on with it (--resume), replace it "
                    "(--overwrite), or choose another folder (--run)."
                )
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        description = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "versions": _versions(),
            "git_commit": _git_commit(),
            "folds": list(run.folds),
            "data": json.loads(json.dumps(data or {}, default=str)),
            "settings": settings,
        }
        # First of all: without it, an interrupted start would not be known for a run.
        write_text(path / _DESCRIPTION, json.dumps(description, indent=2))
        write_splits(folds, path / "splits")
    except OSError as error:
        raise RunFolderError(f"Could not write the run folder {path}: {error}.") from error
    return run


def read_run(path: Path | str) -> RunFolder:
    """Open an existing run.

    Raises:
        RunFolderError: The folder is not a run.
    """
    path = Path(path)
    try:
        description = json.loads((path / _DESCRIPTION).read_text())
        return RunFolder(path, tuple(description["folds"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"Expected a run (a folder with {_DESCRIPTION}) at {path}, but found none."
        ) from error


def read_description(path: Path | str) -> dict[str, Any]:
    """Read what a run says of itself: its settings, versions and data.

    Raises:
        RunFolderError: The folder is not a run.
    """
    run = read_run(path)
    description: dict[str, Any] = json.loads((run.path / _DESCRIPTION).read_text())
    return description


def _is_run(path: Path) -> bool:
    """Say whether a folder is a run of ours, of which the description may be damaged."""
    try:
        description = json.loads((path / _DESCRIPTION).read_text())
    except FileNotFoundError:
        return False
    except ValueError:
        return (path / "splits").is_dir()
    return isinstance(description, dict) and {"folds", "settings"} <= description.keys()


def _refuse_other_settings(path: Path, settings: Mapping[str, Any]) -> None:
    try:
        before = json.loads((path / _DESCRIPTION).read_text())["settings"]
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"{path / _DESCRIPTION} is damaged: replace the run with --overwrite."
        ) from error
    old, new = _flat(before), _flat(settings)
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if differing:
        key = differing[0]
        raise RunFolderError(
            f"Expected the settings of the run {path} to resume it, but {key} was "
            f"{old.get(key)!r} and is now {new.get(key)!r}"
            f"{f' ({len(differing) - 1} more differ)' if len(differing) > 1 else ''}. "
            "Choose another folder, or replace the run with --overwrite."
        )


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
