"""One fold of a run: trained, tested and written, by this process or by a worker elsewhere."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import atomic_path
from sgpmil.bags.splits import Fold
from sgpmil.bags.store import PackedStore
from sgpmil.errors import RunFolderError, TrainingError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.gpu.resident import DeviceSource, where_it_fits
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import ModelLike
from sgpmil.progress import ProgressBar, ProgressLine, progress_bar
from sgpmil.runs.run import Run, RunFold
from sgpmil.scaleout.executors import Executor, RunningJob
from sgpmil.training.callbacks import Callback
from sgpmil.training.fabric import Fabric, Logger, deterministic, start_fabric
from sgpmil.training.fit import fit_fold
from sgpmil.training.fold_files import read_metrics
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.turns import release_turn, yield_turn

_ASSUMED_FREE = 4 * 2**30
"""Bytes of memory taken as free where the system does not say."""


@dataclass(frozen=True)
class FoldTraining:
    """The training of the folds of a run, the same for each.

    Args:
        bags: Bags of all folds.
        settings: Training settings.
        model: A name of `sgpmil.list_models`, a class of models, or a model to copy.
        model_settings: Settings of the model that differ from its defaults.
        resume: Whether to continue from the last checkpoint.
        callbacks: Code of the user's own.
    """

    bags: BagDataset
    settings: TrainingSettings
    model: ModelLike
    model_settings: Mapping[str, Any] | None = None
    resume: bool = False
    callbacks: Sequence[Callback] = ()

    def run(
        self,
        fabric: Fabric,
        fold: Fold,
        folder: Path | None,
        progress: "FoldProgress",
        loggers: Sequence[Logger] = (),
    ) -> "TestedModel":
        """Train a fold in one of the processes that Fabric has started, and predict its slides.

        Args:
            fabric: The processes.
            fold: The fold.
            folder: Folder of its checkpoints; None writes nothing, and predicts no validation.
            progress: Its progress.
            loggers: Objects that record metrics.
        """
        bags, settings = self.bags, self.settings
        fitted = fit_fold(
            fabric,
            bags.subset(fold.train),
            bags.subset(fold.val) if fold.val else None,
            model=self.model,
            model_settings=self.model_settings,
            settings=settings,
            folder=folder,
            resume=self.resume,
            on_epoch=progress.end_epoch,
            callbacks=self.callbacks,
            loggers=loggers,
        )
        progress.test()
        if settings.select == "best":
            progress.bar.say(
                f"fold {fold.name}: epoch {fitted.epoch + 1} predicts, the best on validation"
                if fold.val
                else f"fold {fold.name} has no validation slides: all epochs were trained, and the "
                "last predicts"
            )
        test = self._predicted(fabric, fitted, fold.test)
        # Thresholds, temperatures and prediction sets are fitted on the validation slides.
        has_validation = fold.val and folder is not None
        validation = self._predicted(fabric, fitted, fold.val) if has_validation else None
        return TestedModel(test, validation, bags.encoders())

    def _predicted(self, fabric: Fabric, model: MILModel, slides: Sequence[str]) -> PredictionTable:
        """Predict slides, each in one of the processes; all of them return all predictions."""
        own = slides[fabric.global_rank :: fabric.world_size]
        found: tuple[Prediction, ...] = ()
        if own:
            found = predict(
                model,
                self.bags.subset(own),
                device=fabric.device,
                precision=self.settings.precision,
                warn=False,
                on_bag=lambda _: yield_turn(),
            ).predictions
        if fabric.world_size > 1:
            parts: list[Any] = [None] * fabric.world_size
            torch.distributed.all_gather_object(parts, found)
            by_name = {p.slide_id: p for part in parts for p in part}
            found = tuple(by_name[slide] for slide in slides)
        return PredictionTable(found, self.bags.target)


@dataclass(frozen=True)
class TestedModel:
    """Predictions of a fold that was trained.

    Args:
        test: Those of its test slides.
        validation: Those of its validation slides, where there are any.
        encoders: Names of the patch encoders, where known.
    """

    test: PredictionTable
    validation: PredictionTable | None
    encoders: tuple[str, ...]

    def write(self, fold: RunFold) -> None:
        """Write the predictions into a fold; then it is done.

        Raises:
            RunFolderError: The folder cannot be written.
        """
        with release_turn():
            fold.write(self.test, self.validation, self.encoders)


@dataclass(frozen=True)
class FoldLogger:
    """A user's logger for one of several folds."""

    logger: Logger
    fold: str

    def log_metrics(self, metrics: dict[str, int | float], step: int | None = None) -> None:
        """Record metrics under the name of the fold."""
        self.logger.log_metrics({f"fold-{self.fold}/{k}": v for k, v in metrics.items()}, step)

    def finalize(self, status: str) -> None:
        """Leave the logger open for the other folds."""


def bags_near(bags: BagDataset, device: torch.device) -> BagDataset:
    """Move bags to where all folds read them fastest."""
    near = where_it_fits(bags, device)
    if isinstance(near.source, DeviceSource):
        return near
    # A packed store is read as fast as memory once the system has it there.
    is_kept = not isinstance(bags.source, PackedStore) and _fits_in_memory(bags)
    return bags.in_memory() if is_kept else bags


def _fits_in_memory(bags: BagDataset) -> bool:
    """Keep bags in memory while they take less than half of what is free."""
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # only Linux tells
        free = _ASSUMED_FREE
    return 2 * bags.nbytes_estimate() < free


class FoldProgress:
    """Progress of a fold: its epochs in the bar of the run, and a line of its own.

    Args:
        bar: The bar of all folds.
        line: The line of this one.
        text: Name of the fold.
        epochs: Epochs of a fold.
    """

    def __init__(self, bar: ProgressBar, line: ProgressLine, text: str, epochs: int) -> None:
        self.bar = bar
        self._line = line
        self._text = text
        self._epochs = epochs
        self._num_ended = 0

    @classmethod
    @contextmanager
    def shown(cls, bar: ProgressBar, text: str, epochs: int) -> Iterator["FoldProgress"]:
        """Show the line while the block runs."""
        with bar.line() as line:
            line.show(f"{text}: starting")
            yield cls(bar, line, text, epochs)

    def end_epoch(self, metrics: Mapping[str, int | float]) -> None:
        """Count an epoch and show its metrics."""
        number = int(metrics["epoch"]) + 1
        self.bar.drop(number - self._num_ended - 1)  # trained before this run was resumed
        self._num_ended = number
        text = f"{self._text}, epoch {number} of {self._epochs}: loss {metrics['train_loss']:.3f}"
        if "val_loss" in metrics:
            text += (
                f", validation loss {metrics['val_loss']:.3f}, "
                f"balanced accuracy {metrics['val_balanced_accuracy']:.3f}"
            )
        self._line.show(text)
        self.bar.advance()

    def test(self) -> None:
        """Take away the epochs that early stopping has left, and say what comes now."""
        self.bar.drop(self._epochs - self._num_ended)
        self._line.show(f"{self._text}: testing")


def train_elsewhere(
    executor: Executor,
    training: FoldTraining,
    folds: Sequence[Fold],
    run: Run,
    bar: ProgressBar,
    loggers: Sequence[Logger] = (),
    *,
    shared_folder: bool = True,
) -> None:
    """Train folds by an executor, each a job, into their run.

    A worker that dies costs its fold the epoch that it was in: another one resumes it from its
    checkpoint.

    Args:
        executor: The executor.
        training: The training of each fold.
        folds: The folds.
        run: The run, which this process holds.
        bar: Bar of all epochs.
        loggers: Objects that record metrics, which get those of a fold when it is done.
        shared_folder: Whether the workers see the folder of the run.

    Raises:
        TrainingError: A fold could not be trained, or workers died with it.
    """
    place = Run(run.path.absolute(), run.description) if shared_folder else None
    by_name = {fold.name: fold for fold in folds}
    epochs = dict.fromkeys(by_name, 0)

    def show(running: Sequence[RunningJob[Fold]]) -> None:
        rows = []
        for one in running:
            name = one.job.name
            epochs[name] = max(epochs[name], len(read_metrics(run.folds[name].path)))
            most = training.settings.epochs
            progress = f"epoch {epochs[name] + 1} of {most}" if epochs[name] < most else "testing"
            rows.append(one.row(f"fold {name}", progress if epochs[name] else ""))
        bar.show_table(rows)
        if shared_folder:
            bar.reach(sum(epochs.values()))

    def finish(fold: Fold, returned: "_Returned") -> None:
        on_disk = run.folds[fold.name]
        if returned.error:
            raise TrainingError(returned.error)
        if returned.model is not None:
            with on_disk.lock():
                _write_files(on_disk.path, returned.files)
                returned.model.write(on_disk)
        rows = read_metrics(on_disk.path)
        bar.drop(training.settings.epochs - len(rows))  # after an early stop
        epochs[fold.name] = len(rows)
        bar.reach(sum(epochs.values()))
        for logger in loggers:
            for row in rows:
                metrics = {key: float(value) for key, value in row.items() if value}
                FoldLogger(logger, fold.name).log_metrics(metrics, int(row["epoch"]))

    def lost(fold: Fold) -> "_Returned":
        return _Returned(
            error=f"Workers died again and again with fold {fold.name}, perhaps because memory is "
            "short. Give a job more CPUs (`cpus_per_job`), so that fewer share a machine, and "
            "resume the run (`resume=True`)."
        )

    executor.run(
        _Worker(training, place),
        list(folds),
        on_change=show,
        on_done=finish,
        on_death=lost,
    )


@dataclass(frozen=True)
class _Returned:
    """The answer of a worker: nothing where it wrote the fold itself."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    model: TestedModel | None = None
    error: str = ""


@dataclass(frozen=True)
class _Worker:
    """Makes the function that trains a fold; pickled for each worker."""

    training: FoldTraining
    run: Run | None

    def __call__(self) -> "_FoldWorker":
        return _FoldWorker(self.training, self.run)


class _FoldWorker:
    """Trains folds on the machine of a worker.

    Args:
        training: The training of each fold.
        run: The run, on a disk that all machines see; None returns the files instead.
    """

    def __init__(self, training: FoldTraining, run: Run | None) -> None:
        self.fabric = start_fabric(training.settings.device)
        near = bags_near(training.bags, self.fabric.device)
        # A worker that takes over resumes where the one before it died.
        self.training = FoldTraining(
            near, training.settings, training.model, training.model_settings, resume=True
        )
        self.run = run

    def __call__(self, fold: Fold) -> _Returned:
        """Train a fold."""
        found: _Returned = self.fabric.launch(lambda fabric: self._train(fabric, fold))
        return found

    def _train(self, fabric: Fabric, fold: Fold) -> _Returned:
        with ExitStack() as stack:
            stack.enter_context(deterministic())
            bar = stack.enter_context(progress_bar(fold.name, None, "epochs", show=False))
            progress = stack.enter_context(
                FoldProgress.shown(bar, fold.name, self.training.settings.epochs)
            )
            if self.run is None:
                folder = Path(stack.enter_context(TemporaryDirectory()))
                tested = self.training.run(fabric, fold, folder, progress)
                files = {path.name: path.read_bytes() for path in folder.iterdir()}
                return _Returned(files, tested)
            on_disk = self.run.folds[fold.name]
            # The worker before this one may live a little longer than its connection.
            stack.enter_context(on_disk.lock(wait=True))
            if not on_disk.is_done:
                self.training.run(fabric, fold, on_disk.path, progress).write(on_disk)
            return _Returned()


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with atomic_path(folder / name) as temporary:
                temporary.write_bytes(content)
    except OSError as error:
        raise RunFolderError(f"Could not write to {folder}: {error}.") from error
