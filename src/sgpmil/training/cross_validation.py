"""Train and test a model on every fold, each scored on its own test set."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold, check_folds
from sgpmil.bags.store import PackedStore
from sgpmil.errors import SettingsError, SplitError
from sgpmil.evaluation.device import compute_device
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.summary import (
    FoldMetrics,
    MetricSummary,
    evaluate,
    summarise,
    write_metrics,
)
from sgpmil.gpu.resident import fits_on_device, on_device
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import ModelLike, find_model, resolve_settings
from sgpmil.runs.run import Run, RunFold, run_lock
from sgpmil.training.defaults import resolve_training
from sgpmil.training.fit import fit
from sgpmil.training.folds_at_once import MOST_AT_ONCE, default_folds_at_once
from sgpmil.training.progress import FoldProgress, run_progress
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.trainer import quiet_and_deterministic
from sgpmil.training.turns import give_way, resting, take_turns
from sgpmil.training.untrained import refuse_mixed_coordinates, untrained_model

__all__ = ["CrossValidation", "cross_validate"]

_ASSUMED_FREE = 4 * 2**30
"""Bytes of memory taken as free where the system does not say."""


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The result of a run.

    Args:
        metrics: Metrics of each fold.
        predictions: Predictions of each fold's test set.
        folder: Where it lies on disk, if it does.
    """

    metrics: tuple[FoldMetrics, ...]
    predictions: tuple[PredictionTable, ...]
    folder: Path | None = None

    def summary(self) -> tuple[MetricSummary, ...]:
        """Summarise every metric over the folds."""
        return summarise(self.metrics)


def cross_validate(
    bags: BagDataset,
    splits: Sequence[Fold] | Path | str,
    *,
    model: ModelLike = "sgpmil",
    model_settings: Mapping[str, Any] | None = None,
    training: TrainingSettings | Mapping[str, Any] | None = None,
    run: Path | str | None = None,
    data: Mapping[str, Any] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    only_folds: Sequence[str] | None = None,
    folds_at_once: int | None = None,
    allow_missing: bool = False,
    on_shared_case: str = "error",
    progress: bool = True,
) -> CrossValidation:
    """Train a model on each fold and predict the fold's own test set.

    Args:
        bags: Labelled bags.
        splits: Folds, or the file or folder they are read from.
        model: A name of `sgpmil.list_models`, a class of models, or a model that has seen none of
            the bags: a copy of it is trained on each fold.
        model_settings: Settings of the model that differ from its defaults.
        training: How to train; the model's own published training by default.
        run: Folder to write to; nothing is written without it.
        data: Where the bags lie, to be written into ``run.json`` for commands that read them
            again: arguments of `sgpmil.read_bags` by name.
        resume: Go on with an interrupted run.
        overwrite: Replace an existing run.
        only_folds: Names of the folds to run; all by default. The result has all that are done.
        folds_at_once: Folds that are trained side by side on a GPU; None takes as many as are
            faster than one after another. Results are the same.
        allow_missing: Leave out slides of the splits that have no bag.
        on_shared_case: ``error``, or ``warn`` about a patient in two parts of a fold.
        progress: Whether to show a progress bar.

    Raises:
        SettingsError: A setting is unknown or impossible, or both resume and overwrite are asked.
        SplitError: The splits do not fit the bags, or leak.
        RunFolderError: The run exists already or cannot be written.
        TrainingError: A fold could not be trained.
    """
    if resume and overwrite:
        raise SettingsError("Expected resume or overwrite of a run, but got both.")
    if folds_at_once is not None and not 1 <= folds_at_once <= MOST_AT_ONCE:
        raise SettingsError(
            f"Expected folds_at_once from 1 to {MOST_AT_ONCE}, but got {folds_at_once}."
        )
    settings = resolve_training(model, training)
    table = bags.label_table()
    folds = read_splits(Path(splits), table) if isinstance(splits, (str, Path)) else tuple(splits)
    folds = check_folds(
        folds,
        table,
        allow_missing=allow_missing,
        on_shared_case="warn" if on_shared_case == "warn" else "error",
    )
    selected = {fold.name for fold in folds} if only_folds is None else set(only_folds)
    unknown = sorted(selected - {fold.name for fold in folds})
    if unknown or not selected:
        raise SplitError(
            f"Expected folds among {', '.join(f.name for f in folds)}, but got "
            f"{', '.join(unknown) or 'none'}. Name folds of the splits."
        )
    name = find_model(model).name
    # Bags that cannot be read are found before there is a run.
    description = {
        "model": name,
        "model_settings": _plain(resolve_settings(model, model_settings or {})),
        "training": asdict(settings),
        "class_names": list(bags.class_names),
        "data_fingerprint": bags.fingerprint(),
        "splits_fingerprint": hashlib.sha256(repr(folds).encode()).hexdigest(),
    }
    # And so is whatever else would keep a fold from being trained: a run that is replaced is gone.
    for fold in folds:
        if fold.name in selected:
            network = untrained_model(
                bags.subset(fold.train),
                bags.subset(fold.val) if fold.val else None,
                model=model,
                model_settings=model_settings,
                training=settings,
            )
            if network.uses_coordinates:
                refuse_mixed_coordinates(name, bags)
    device = compute_device(settings.device)
    if fits_on_device(bags, device):
        bags = on_device(bags, device)  # all folds share what is there
    # A packed store is read as fast as memory once the system has it there.
    elif not isinstance(bags.source, PackedStore) and _fits_in_memory(bags):
        bags = bags.in_memory()
    with ExitStack() as stack:
        folder = None
        if run is not None:
            stack.enter_context(run_lock(Path(run)))
            folder = Run.create(
                run, folds, description, data=data, resume=resume, overwrite=overwrite
            )
        bars = stack.enter_context(run_progress(settings.epochs, show=progress))
        done_before = {f.name for f in folds if folder is not None and folder.folds[f.name].is_done}
        wanted = [fold for fold in folds if fold.name in selected | done_before]

        def tested(number: int) -> tuple[PredictionTable, FoldMetrics]:
            fold = wanted[number]
            done = fold.name in done_before
            on_disk = None if folder is None else folder.folds[fold.name]
            with bars.fold(f"{name}, fold {fold.name} ({number + 1} of {len(wanted)})") as bar:
                predictions = (
                    on_disk.load(with_validation=False).test
                    if done and on_disk is not None
                    else _run_fold(
                        bags, fold, model, model_settings, settings, on_disk, resume, bar
                    )
                )
                metrics = evaluate(predictions, fold.name)
                bar.say(_fold_line(metrics, done))
            return predictions, metrics

        at_once = folds_at_once or default_folds_at_once(network, settings, bags, device)
        # Predictions too, while others are trained: then they are so however many are at once.
        stack.enter_context(quiet_and_deterministic())
        results = take_turns(
            [partial(tested, i) for i in range(len(wanted))],
            at_once,
            device,
            on_stop=lambda: bars.say("Stopping: what is being written is finished first."),
        )
        tables, metrics = zip(*results, strict=True)
        if folder is not None:
            write_metrics(folder.metrics_path, metrics)
    return CrossValidation(tuple(metrics), tuple(tables), None if run is None else Path(run))


def _run_fold(
    bags: BagDataset,
    fold: Fold,
    model: ModelLike,
    model_settings: Mapping[str, Any] | None,
    settings: TrainingSettings,
    on_disk: RunFold | None,
    resume: bool,
    bar: FoldProgress,
) -> PredictionTable:
    fitted: MILModel = fit(
        bags.subset(fold.train),
        val=bags.subset(fold.val) if fold.val else None,
        model=model,
        model_settings=model_settings,
        training=settings,
        folder=None if on_disk is None else on_disk.path,
        resume=resume,
        on_epoch=bar.epoch,
    )
    bar.trained()
    if settings.select == "best":
        bar.say(
            f"fold {fold.name}: epoch {fitted.epoch + 1} predicts, the best on validation"
            if fold.val
            else f"fold {fold.name} has no validation slides: all epochs were trained, and the "
            "last predicts"
        )

    def predicted(slides: Sequence[str]) -> PredictionTable:
        return predict(
            fitted,
            bags.subset(slides),
            class_names=bags.class_names,
            device=compute_device(settings.device),
            precision=settings.precision,
            on_bag=lambda _: give_way(),
        )

    test = predicted(fold.test)
    if on_disk is not None:
        # Thresholds, temperatures and prediction sets are fitted on the validation slides.
        validation = predicted(fold.val) if fold.val else None
        with resting():
            on_disk.write(test, validation)
    return test


def _fold_line(metrics: FoldMetrics, done: bool) -> str:
    slide = metrics.slide
    text = (
        f"fold {metrics.fold}: balanced accuracy {slide.balanced_accuracy:.3f}, "
        f"AUC {slide.auc:.3f}, ACE {slide.ace:.3f} on {slide.num_slides} slides"
    )
    if metrics.instance is not None:
        text += f", instance AUC {metrics.instance.attention_auc:.3f}"
    return text + (" (done before)" if done else "")


def _fits_in_memory(bags: BagDataset) -> bool:
    """Keep bags in memory while they take less than half of what is free."""
    try:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # only Linux tells
        free = _ASSUMED_FREE
    return 2 * bags.nbytes_estimate() < free


def _plain(settings: Any) -> dict[str, Any]:
    return {
        key: value if isinstance(value, (str, int, float, bool, tuple, type(None))) else str(value)
        for key, value in vars(settings).items()
    }
