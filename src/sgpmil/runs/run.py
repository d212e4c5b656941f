"""A run on disk: its folds, its settings and its provenance.

::

    runs/<name>/
      run.json            format, settings, versions, git commit, fingerprints, where the data lay
      splits/             the folds, as CLAM writes them
      fold-<k>/           checkpoint.safetensors + .json   the model that predicted
                          best.*, last.*                   best and last epoch
                          last.ckpt                        everything a resume needs
                          metrics.csv                      curves
                          validation/                      predictions of the validation slides
                          predictions.parquet              written last: the fold is done
                          attention/<slide>.h5             scores of the instances
      metrics.parquet     a row a fold
      figures/  explanation/  report.html
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sgpmil.bags.files import write_text
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.split_files import read_splits, write_splits
from sgpmil.bags.splits import Fold
from sgpmil.errors import PredictionError, RunFolderError, SplitError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.comparison.comparability import check_own_test_slides
from sgpmil.evaluation.instance_scores import InstanceScores
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.processes import FileLock
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.prediction_folder import (
    is_prediction_folder,
    read_prediction_folder,
    read_slide_scores,
    write_prediction_folder,
)

__all__ = ["FORMAT", "Provenance", "Run", "RunFold", "is_run", "run_lock"]

FORMAT = 1
"""Version of the format of ``run.json``. Runs without one are of the first format."""

_DESCRIPTION = "run.json"
_PACKAGES = ("sgpmil", "torch", "gpytorch", "lightning", "numpy", "scikit-learn")


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


@dataclass(frozen=True, slots=True, eq=False)
class RunFold:
    """A fold on disk: of a run, or a table of predictions that another system wrote.

    Args:
        name: Name of the fold.
        path: Its folder, or the file of its predictions.
        run: The run it belongs to; None for predictions of other systems.
        other_validation: Predictions of validation slides that lie elsewhere.
    """

    name: str
    path: Path
    run: "Run | None" = None
    other_validation: Path | None = None

    @property
    def split(self) -> Fold | None:
        """Slides that it was trained, validated and tested on; None where unknown.

        Raises:
            SplitError: The splits of the run are damaged.
        """
        return None if self.run is None else self.run.splits.get(self.name)

    @property
    def is_done(self) -> bool:
        """Whether it is trained and predicted."""
        return self.path.is_file() or is_prediction_folder(self.path)

    @property
    def checkpoint(self) -> Path | None:
        """Folder of its model, for `sgpmil.models.load_model`; None before it is trained."""
        return self.path if (self.path / "checkpoint.json").exists() else None

    @property
    def validation_path(self) -> Path:
        """Place of the predictions of its validation slides, which may not exist."""
        return self.other_validation or self.path / "validation"

    @property
    def has_validation(self) -> bool:
        """Whether there are predictions of validation slides."""
        return self.other_validation is not None or is_prediction_folder(self.validation_path)

    @property
    def predictions(self) -> PredictionTable:
        """Predictions of its test slides, without the scores of the instances.

        Raises:
            PredictionError: The fold is not done, or the file is damaged.
        """
        self._require_done()
        return read_predictions(self.path)

    @property
    def validation(self) -> PredictionTable | None:
        """Predictions of its validation slides, without the scores of the instances.

        Raises:
            PredictionError: The file is damaged.
        """
        return read_predictions(self.validation_path) if self.has_validation else None

    def instance_scores(self, slide_id: str) -> InstanceScores | None:
        """Read the scores of the instances of one test slide; None where there are none.

        Args:
            slide_id: Name of the slide.

        Raises:
            PredictionError: The file is damaged.
        """
        return read_slide_scores(self.path, slide_id)

    def load(
        self, *, with_validation: bool = True, damaged: dict[str, str] | None = None
    ) -> TestedFold:
        """Read everything into memory, with the scores of the instances.

        Args:
            with_validation: Whether to read the validation slides, too.
            damaged: Takes the reason of each slide whose instance scores cannot be read, which
                then has none; without it they are an error.

        Raises:
            PredictionError: The fold is not done, a file is damaged, or the predictions are not
                of the fold's own test slides.
            SplitError: The splits of the run are damaged.
        """
        self._require_done()
        test = read_prediction_folder(self.path, damaged)
        split = None if self.split is None else _spelt(self.split, test)
        if split is not None:
            check_own_test_slides(split, test)
        validation = None
        if with_validation and self.has_validation:
            validation = read_prediction_folder(self.validation_path, damaged)
        return TestedFold(self.name, test, validation, split, self.checkpoint)

    def write(self, test: PredictionTable, validation: PredictionTable | None = None) -> None:
        """Write its predictions; then it is done.

        Args:
            test: Predictions of its test slides.
            validation: Predictions of its validation slides, where it has any.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        try:
            if validation is not None:
                write_prediction_folder(
                    self.validation_path, validation.predictions, validation.class_names
                )
            # Last: the fold is done.
            write_prediction_folder(self.path, test.predictions, test.class_names)
        except OSError as error:
            raise RunFolderError(f"Could not write to {self.path}: {error}.") from error

    def _require_done(self) -> None:
        if not self.is_done:
            raise PredictionError(
                f"Expected predictions of fold {self.name} in {self.path}, but it is not done. "
                "Go on with the run (--resume)."
            )


@dataclass(frozen=True, eq=False)
class Run:
    """A run on disk, from `Run.create` or `Run.open`.

    Args:
        path: Its folder.
        description: Content of its ``run.json``.
    """

    path: Path
    description: Mapping[str, Any]

    @staticmethod
    def create(
        path: Path | str,
        folds: Sequence[Fold],
        settings: Mapping[str, Any],
        *,
        data: Mapping[str, Any] | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> "Run":
        """Start a run, resume one, or replace one.

        Args:
            path: Its folder.
            folds: Its folds.
            settings: Everything that decides its result, as JSON values.
            data: Where its bags lie: arguments of `sgpmil.read_bags` by name.
            resume: Resume an existing run of the same settings.
            overwrite: Replace an existing run.

        Raises:
            RunFolderError: The folder exists and neither is asked for, is not a run, holds a run
                of other settings or of a newer format, or cannot be written.
        """
        path = Path(path)
        settings = json.loads(json.dumps(settings, default=str))
        try:
            if path.exists() and any(path.iterdir()):
                if not is_run(path):
                    raise RunFolderError(
                        f"Expected {path} to be new or a run, but it holds other files. "
                        "Choose another folder."
                    )
                if resume:
                    run = Run.open(path)
                    _refuse_other_settings(run, settings)
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
                "format": FORMAT,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "python": platform.python_version(),
                "versions": _versions(),
                "git_commit": _git_commit(),
                "folds": [fold.name for fold in folds],
                "data": json.loads(json.dumps(data or {}, default=str)),
                "settings": settings,
            }
            # First of all: without it, an interrupted start would not be known for a run.
            write_text(path / _DESCRIPTION, json.dumps(description, indent=2))
            write_splits(folds, path / "splits")
        except OSError as error:
            raise RunFolderError(f"Could not write the run folder {path}: {error}.") from error
        return Run(path, description)

    @staticmethod
    def open(path: Path | str) -> "Run":
        """Open an existing run.

        Args:
            path: Its folder.

        Raises:
            RunFolderError: The folder is not a run, its description is damaged, or it is of a
                newer format.
        """
        path = Path(path)
        try:
            description = json.loads((path / _DESCRIPTION).read_text(encoding="utf-8"))
            written_as = int(description.get("format", FORMAT))
            if written_as <= FORMAT:
                tuple(description["folds"])
        except OSError as error:
            raise RunFolderError(
                f"Expected a run (a folder with {_DESCRIPTION}) at {path}, but found none."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(
                f"Expected the description of a run in {path / _DESCRIPTION}, but it is damaged "
                f"({type(error).__name__}: {error}). Replace the run with --overwrite, or restore "
                "the file."
            ) from error
        if written_as > FORMAT:
            raise RunFolderError(
                f"Expected a run of format {FORMAT} or older at {path}, but it is of format "
                f"{written_as}. Update sgpmil."
            )
        return Run(path, description)

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run while a block runs, as `run_lock` does."""
        return run_lock(self.path)

    @cached_property
    def folds(self) -> Mapping[str, RunFold]:
        """The folds by name, in their order."""
        return {
            name: RunFold(name, self.path / f"fold-{name}", self)
            for name in self.description["folds"]
        }

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Name of each fold that is not done."""
        return tuple(name for name, fold in self.folds.items() if not fold.is_done)

    @cached_property
    def splits(self) -> Mapping[str, Fold]:
        """Slides of each fold's parts, by the fold's name; empty where the run has no splits.

        Raises:
            SplitError: They cannot be read, or are of another number of folds.
        """
        folder = self.splits_path
        if not folder.is_dir():
            return {}
        # The files are numbered in the folds' order, whatever these are called.
        found = read_splits(folder)
        if len(found) != len(self.folds):
            raise SplitError(
                f"Expected the splits of {len(self.folds)} folds in {folder}, but got "
                f"{len(found)}. Resume the run, which writes them again."
            )
        return {
            name: replace(fold, name=name) for name, fold in zip(self.folds, found, strict=True)
        }

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything that decided the result."""
        found: Mapping[str, Any] = self.description.get("settings", {})
        return found

    @property
    def model(self) -> str:
        """Name of the model; empty where the run does not say."""
        return str(self.settings.get("model", ""))

    @property
    def data(self) -> Mapping[str, Any]:
        """Where the bags lay: arguments of `sgpmil.read_bags` by name."""
        found: Mapping[str, Any] = self.description.get("data", {})
        return found

    @property
    def provenance(self) -> Provenance:
        """Versions, commit, seed and fingerprints."""
        found, settings = self.description, self.settings
        return Provenance(
            created=found.get("created"),
            python=found.get("python"),
            versions=found.get("versions", {}),
            git_commit=found.get("git_commit"),
            seed=settings.get("training", {}).get("seed"),
            data_fingerprint=settings.get("data_fingerprint"),
            splits_fingerprint=settings.get("splits_fingerprint"),
            format=int(found.get("format", FORMAT)),
        )

    @property
    def splits_path(self) -> Path:
        """Folder of the splits."""
        return self.path / "splits"

    @property
    def metrics_path(self) -> Path:
        """Table of the metrics, a row a fold."""
        return self.path / "metrics.parquet"

    @property
    def figures_path(self) -> Path:
        """Folder of the figures."""
        return self.path / "figures"

    @property
    def explanation_path(self) -> Path:
        """Folder of the explanation."""
        return self.path / "explanation"

    @property
    def report_path(self) -> Path:
        """Page of the report."""
        return self.path / "report.html"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold a run while the block runs, so that no other process writes into it.

    Args:
        folder: Folder of the run, which need not exist; its parent is created where missing.

    Raises:
        RunFolderError: Another process holds the run, or nothing can be written there.
    """
    # Beside the folder, not in it: replacing a run removes the folder.
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        is_ours = lock.acquire()
    except OSError as error:
        raise RunFolderError(f"Could not write the run folder {folder}: {error}.") from error
    if not is_ours:
        raise RunFolderError(
            f"Another process is training into {folder}. Wait for it, or choose another folder."
        )
    try:
        yield
    finally:
        lock.release()


def is_run(path: Path | str) -> bool:
    """Return whether a folder is a run, whose description may be damaged."""
    file = Path(path) / _DESCRIPTION
    try:
        description = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:
        return file.with_name("splits").is_dir()
    return isinstance(description, dict) and {"folds", "settings"} <= description.keys()


def _spelt(split: Fold, table: PredictionTable) -> Fold:
    """Spell the slides of a fold as its predictions do.

    Split files are read without the suffixes of slide files, which names may have.
    """
    spelt = {clean_slide_id(slide): slide for slide in table.slide_ids}
    train, val, test = (
        tuple(spelt.get(slide, slide) for slide in slides)
        for slides in (split.train, split.val, split.test)
    )
    return Fold(split.name, train, val, test)


def _refuse_other_settings(run: Run, settings: Mapping[str, Any]) -> None:
    old, new = _flat(run.settings), _flat(settings)
    differing = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    if differing:
        key = differing[0]
        raise RunFolderError(
            f"Expected the settings of the run {run.path} to resume it, but {key} was "
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
