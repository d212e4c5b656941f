"""A run on disk: its folds, its settings and its provenance.

::

    runs/<name>/
      run.json            format, settings, versions, git commit, fingerprints, places of the data
      slides.json         a digest of each slide's label and features
      sources.json        last named places of slides, annotations and nuclei
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
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from sgpmil.bags.dataset import content_of
from sgpmil.bags.files import file_name, read_json, remove_leftovers, write_text
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.split_files import read_splits, write_splits
from sgpmil.bags.splits import Fold, unused_slides
from sgpmil.errors import PredictionError, RunFolderError, SplitError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.comparison.comparability import check_own_test_slides
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.evaluation.seen_slides import without_seen
from sgpmil.models.checkpoint import read_shares
from sgpmil.processes import FileLock
from sgpmil.runs.description import (
    Provenance,
    changed_slides,
    is_run,
    read_description,
    refuse_other_settings,
    write_description,
)
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.prediction_folder import (
    is_prediction_folder,
    read_prediction_folder,
    read_slide_scores,
    write_prediction_folder,
)

_SLIDES = "slides.json"


@dataclass(frozen=True, slots=True, eq=False)
class RunFold:
    """A fold on disk: of a run, or a table of predictions that another system wrote.

    Args:
        name: Name of the fold.
        path: Its folder, or the file of its predictions.
        run: The run it belongs to; None for predictions of other systems.
        other_validation: Predictions of validation slides that lie elsewhere.
        keep_seen: Whether to measure slides that the model was trained on, too.
    """

    name: str
    path: Path
    run: "Run | None" = None
    other_validation: Path | None = None
    keep_seen: bool = False

    @property
    def split(self) -> Fold | None:
        """Slides that it was trained, validated and tested on; None where unknown.

        Raises:
            SplitError: The splits of the run are damaged.
        """
        return None if self.run is None else self.run.splits.get(self.name)

    @property
    def is_done(self) -> bool:
        """Return whether it is trained and predicted."""
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
        """Return whether there are predictions of validation slides."""
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

        Raises:
            PredictionError: The file is damaged.
        """
        return read_slide_scores(self.path, slide_id)

    def load(
        self,
        *,
        with_validation: bool = True,
        with_instances: bool = True,
        damaged: dict[str, str] | None = None,
    ) -> TestedFold:
        """Read everything into memory, with the scores of the instances.

        Args:
            with_validation: Whether to read the validation slides, too.
            with_instances: Whether to read the scores of the instances, too.
            damaged: Takes the reason of each slide whose instance scores cannot be read, which
                then has none; without it they are an error.

        Raises:
            PredictionError: The fold is not done, a file is damaged, or the predictions are not
                of the fold's own test slides.
            SplitError: The splits of the run are damaged.
        """
        self._require_done()
        whole = partial(read_prediction_folder, damaged=damaged)
        read: Callable[[Path], PredictionTable] = whole if with_instances else read_predictions
        test = without_seen(read(self.path), str(self.path), keep=self.keep_seen, stacklevel=3)
        if test.provenance is None:  # of an earlier version
            test = replace(test, provenance=self.provenance(test))
        split = None if self.split is None else _spelt(self.split, test)
        if split is not None:
            check_own_test_slides(split, test)
        validation = None
        if with_validation and self.has_validation:
            validation = read(self.validation_path)
        return TestedFold(self.name, test, validation, split, self.checkpoint)

    def provenance(
        self, table: PredictionTable, encoders: Sequence[str] = ()
    ) -> PredictionProvenance | None:
        """Return the origin of predictions of this fold; None for those of other systems.

        Args:
            table: Predictions of its slides.
            encoders: Names of the patch encoders.
        """
        run = self.run
        if run is None:
            return None
        split = self.split
        shares = None if self.checkpoint is None else read_shares(self.checkpoint)
        training = run.settings.get("training", {})
        settings = run.settings.get("model_settings", {})
        expected = () if shares is None else shares.expected

        def digests(slides: Iterable[str]) -> tuple[str, ...]:
            known = (run.slides[slide] for slide in slides if slide in run.slides)
            return tuple(sorted(map(content_of, known)))

        return PredictionProvenance(
            model=run.model,
            source=str(run.path),
            folds=(self.name,),
            encoders=tuple(encoders),
            settings={"model": settings, "training": training},
            version=str(run.provenance.versions.get("sgpmil", "")),
            created=run.provenance.created or "",
            prevalence=dict(zip(table.target.names, expected, strict=False)),
            precision=str(training.get("precision", "")),
            seed=run.provenance.seed,
            samples=settings.get("prediction_samples") or settings.get("num_samples"),
            train=() if split is None else digests(split.train),
            validation=() if split is None else digests(split.val),
            slides={s: content_of(run.slides[s]) for s in table.slide_ids if s in run.slides},
            novelty_slides=None if split is None else len(split.train),
        )

    def write(
        self,
        test: PredictionTable,
        validation: PredictionTable | None = None,
        encoders: Sequence[str] = (),
    ) -> None:
        """Write its predictions; then it is done.

        Args:
            test: Predictions of its test slides.
            validation: Predictions of its validation slides, where it has any.
            encoders: Names of the patch encoders of the slides, where known.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        try:
            if validation is not None:
                write_prediction_folder(
                    self.validation_path,
                    validation.predictions,
                    validation.target,
                    provenance=self.provenance(validation, encoders),
                )
            # Last: the fold is done.
            provenance = self.provenance(test, encoders)
            write_prediction_folder(self.path, test.predictions, test.target, provenance=provenance)
        except OSError as error:
            raise RunFolderError(
                f"Expected to write to {self.path}, but got '{error.strerror or error}'. Free some "
                "space, or allow writing there; `resume=True` continues the run."
            ) from error

    def lock(self, *, wait: bool = False) -> AbstractContextManager[None]:
        """Hold the fold while a block runs, so that no other process trains it.

        Args:
            wait: Wait until it is free.

        Raises:
            RunFolderError: Another process holds it, or nothing can be written there.
        """
        place = self.path.with_name(f".{self.path.name}.lock")
        return _held(place, str(self.path), wait=wait)

    def _require_done(self) -> None:
        if not self.is_done:
            raise PredictionError(
                f"Expected predictions of fold {self.name} in {self.path}, but it is not done. "
                "Resume the run (`resume=True`)."
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
        slides: Mapping[str, str] | None = None,
        resume: bool = False,
        overwrite: bool = False,
    ) -> "Run":
        """Start a run, resume one, or replace one.

        Args:
            path: Its folder.
            folds: Its folds.
            settings: Everything that decides its result, as JSON values.
            data: Places of its bags: arguments of `sgpmil.read_bags` by name.
            slides: Digest of each slide by name (`BagDataset.slide_digests`).
            resume: Resume an existing run of the same settings.
            overwrite: Replace an existing run.

        Raises:
            RunFolderError: The folder exists and neither is asked for, is not a run, holds a run
                of other settings or of a newer format, or cannot be written.
        """
        path = Path(path)
        try:
            if path.exists() and any(path.iterdir()):
                if not is_run(path):
                    raise RunFolderError(
                        f"Expected {path} to be new or a run, but it holds other files. "
                        "Choose another folder."
                    )
                if resume:
                    run = Run.open(path)
                    remove_leftovers(path)
                    changed = changed_slides(run.slides or slides or {}, slides or {})
                    refuse_other_settings(path, run.settings, settings, changed)
                    write_splits(folds, run.splits_path, overwrite=True)
                    return run
                if not overwrite:
                    raise RunFolderError(
                        f"The run {path} exists already. Resume it (`resume=True`), replace it "
                        "(`overwrite=True`), or choose another folder (`run`)."
                    )
                shutil.rmtree(path)
            path.mkdir(parents=True, exist_ok=True)
            # First of all: without it, an interrupted start would not be known for a run.
            names = [fold.name for fold in folds]
            run = Run(path, write_description(path, names, settings, data or {}))
            write_splits(folds, run.splits_path)
            if slides is not None:
                write_text(path / _SLIDES, json.dumps(slides, indent=0))
        except OSError as error:
            raise RunFolderError(f"Could not write the run folder {path}: {error}.") from error
        return run

    @staticmethod
    def open(path: Path | str) -> "Run":
        """Open an existing run.

        Raises:
            RunFolderError: The folder is not a run, its description is damaged, or it is of a
                newer format.
        """
        return Run(Path(path), read_description(Path(path)))

    @cached_property
    def slides(self) -> Mapping[str, str]:
        """Digest of each slide that the run knows; empty in runs that were made without."""
        try:
            found = read_json(self.path / _SLIDES)
        except (OSError, ValueError):
            return {}
        known = found.items() if isinstance(found, dict) else ()
        return {name: digest for name, digest in known if isinstance(digest, str)}

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run while a block runs, as `run_lock` does."""
        return run_lock(self.path)

    @cached_property
    def folds(self) -> Mapping[str, RunFold]:
        """The folds by name, in their order."""
        return {
            name: RunFold(name, self.path / f"fold-{file_name(name)}", self)
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
    def unused_slides(self) -> Mapping[str, tuple[str, ...]]:
        """Slides of the data that are in no part of a fold, by the fold's name.

        Raises:
            SplitError: The splits cannot be read.
        """
        return unused_slides(tuple(self.splits.values()), tuple(self.slides))

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
        """Places of the bags and labels: arguments of `sgpmil.read_bags` by name."""
        found: Mapping[str, Any] = self.description.get("data", {})
        return found

    @property
    def sources(self) -> Mapping[str, str]:
        """Last named places of slides, annotations and nuclei; empty before."""
        try:
            found = read_json(self.sources_path)
        except (OSError, ValueError):  # a convenience: commands can name them again
            return {}
        known = found.items() if isinstance(found, dict) else ()
        return {name: path for name, path in known if isinstance(path, str)}

    def remember_sources(self, **paths: Path | None) -> None:
        """Record where slides, annotations or nuclei lie; None leaves the recorded place."""
        named = {name: str(path.absolute()) for name, path in paths.items() if path is not None}
        if not named.items() <= self.sources.items():
            with suppress(OSError):  # a run that cannot be written is explained elsewhere
                write_text(self.sources_path, json.dumps({**self.sources, **named}, indent=2))

    @property
    def provenance(self) -> Provenance:
        """Versions, commit, seed and fingerprints."""
        return Provenance.of(self.description)

    @property
    def sources_path(self) -> Path:
        """File of the places of slides, annotations and nuclei."""
        return self.path / "sources.json"

    @property
    def splits_path(self) -> Path:
        """Folder of the splits."""
        return self.path / "splits"

    @property
    def metrics_path(self) -> Path:
        """Table of the metrics, a row a fold."""
        return self.path / "metrics.parquet"


@contextmanager
def run_lock(folder: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a run while the block runs, so that no other process writes into it.

    Args:
        folder: Folder of the run, which need not exist; its parent is created where missing.
        shared: Let other processes that share it train other folds (`RunFold.lock`).

    Raises:
        RunFolderError: Another process holds the run, or nothing can be written there.
    """
    # Beside the folder, not in it: replacing a run removes the folder.
    with _held(folder.with_name(f".{folder.name}.lock"), str(folder), shared=shared):
        yield


@contextmanager
def creation_lock(folder: Path) -> Iterator[None]:
    """Hold the right to create a run that several processes share; wait for it."""
    with _held(folder.with_name(f".{folder.name}.create.lock"), str(folder), wait=True):
        yield


@contextmanager
def _held(path: Path, what: str, *, shared: bool = False, wait: bool = False) -> Iterator[None]:
    lock = FileLock(path)
    try:
        is_ours = lock.acquire(shared=shared, wait=wait)
    except OSError as error:
        raise RunFolderError(f"Could not write to {what}: {error}.") from error
    if not is_ours:
        raise RunFolderError(
            f"Another process is writing into {what}. Wait for it, or choose another folder."
        )
    try:
        yield
    finally:
        lock.release()


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
