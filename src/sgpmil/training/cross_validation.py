"""Cross-validation: training on every fold, each scored on its own test set."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sgpmil.bags.dataset import BagDataset, require_dataset
from sgpmil.bags.labels import LabelTable
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold, check_folds, make_kfold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import SettingsError, SplitError
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.summary import (
    FoldMetrics,
    Summary,
    evaluate,
    folds_frame,
    summarise,
    write_metrics,
)
from sgpmil.gpu.resident import free_memory
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import ModelLike, find_model, resolve_settings
from sgpmil.notebook import counted
from sgpmil.progress import progress_bar
from sgpmil.runs.run import Run, creation_lock, run_lock
from sgpmil.scaleout.executors import Executor, LocalExecutor
from sgpmil.training.callbacks import Callback
from sgpmil.training.fabric import (
    Fabric,
    Logger,
    deterministic,
    launch,
    start_fabric,
)
from sgpmil.training.fit import (
    refuse_mixed_coordinates,
    refuse_more_devices_than_bags,
    untrained_model,
)
from sgpmil.training.fold import (
    FoldLogger,
    FoldProgress,
    FoldTraining,
    bags_near,
    train_elsewhere,
)
from sgpmil.training.recorded_steps import MOST_ROWS, can_record, filled_rows
from sgpmil.training.settings import TrainingSettings, resolve_training
from sgpmil.training.turns import take_turns

if TYPE_CHECKING:
    import pandas as pd

MOST_AT_ONCE = 8
"""Folds for which torch has enough streams: each needs two of either priority, of 32."""

_VALUE_BYTES = 32
"""Memory that each output of a layer for an instance takes in a step; half of it was measured."""

_PARAMETER_BYTES = 64
"""Memory of a parameter: its value, its moments, and its gradients of many recordings."""


@dataclass(frozen=True, slots=True)
class CrossValidation:
    """The result of a run.

    Args:
        metrics: Metrics of each fold.
        predictions: Predictions of each fold's test set.
        folder: Its folder, if it is on disk.
    """

    metrics: tuple[FoldMetrics, ...]
    predictions: tuple[PredictionTable, ...]
    folder: Path | None = None

    def summary(self) -> Summary:
        """Summarise over the folds every metric that is defined for the target."""
        target = self.predictions[0].target if self.predictions else None
        found = summarise(self.metrics)
        return Summary(
            one for one in found if target is None or target.kind in METRICS[one.name].targets
        )

    def to_pandas(self) -> "pd.DataFrame":
        """Return the metrics as a pandas DataFrame, a row a fold and a column a metric.

        Means over folds are those of `summary`, and predictions those of `predictions`; both have
        a `to_pandas` of their own.
        """
        return folds_frame(self.metrics)

    def __repr__(self) -> str:
        shown = [s for s in self.summary() if s.name in ("balanced_accuracy", "auc", "ace")]
        place = "" if self.folder is None else f"; {self.folder}"
        found = ", ".join(f"{s.name} {s.text}" for s in shown)
        return f"CrossValidation({counted(len(self.metrics), 'fold')}: {found}{place})"

    def _repr_html_(self) -> str:
        return self.summary()._repr_html_()


def select_folds(folds: Sequence[Fold], names: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the names of the folds that are to be run, in the order of the folds.

    Args:
        folds: The folds.
        names: Names of some of them; all by default.

    Raises:
        SplitError: There is no such fold.
    """
    known = [fold.name for fold in folds]
    if names is None:
        return tuple(known)
    unknown = sorted(set(names) - set(known))
    if unknown or not names:
        raise SplitError(
            f"Expected folds among {', '.join(known)}, but got "
            f"{', '.join(unknown) or 'none'}. Name folds of the splits."
        )
    return tuple(name for name in known if name in names)


def cross_validate(
    bags: BagDataset,
    splits: Sequence[Fold] | Path | str | int = 5,
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
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    devices: int = 1,
    num_nodes: int = 1,
    strategy: str = "auto",
    executor: Executor | None = None,
    shared_folder: bool = True,
) -> CrossValidation:
    """Train a model on each fold and predict the fold's own test set.

    Args:
        bags: Labelled bags.
        splits: Folds, the file or folder they are read from, or the number of folds to make.
        model: A name of `sgpmil.list_models`, a class of models, or a model that has seen none of
            the bags: a copy of it is trained on each fold.
        model_settings: Settings of the model that differ from its defaults.
        training: Values that replace single ones of the model's own published training, or all of
            them as `TrainingSettings`.
        run: Folder to write to; nothing is written without it.
        data: Where the bags lie, to be written into ``run.json`` for commands that read them
            again: arguments of `sgpmil.read_bags` by name.
        resume: Continue an interrupted run.
        overwrite: Replace an existing run.
        only_folds: Names of the folds to run; all by default. The result has all that are done.
        folds_at_once: Folds that are trained side by side on a GPU; None takes as many as are
            faster than one after another. Results are the same.
        allow_missing: Leave out slides of the splits that have no bag.
        on_shared_case: ``error``, or ``warn`` about a patient in two parts of a fold.
        progress: Whether to show a progress bar.
        callbacks: Your own code at the start, after each epoch and at the end of each fold.
        loggers: Objects that record metrics, such as any logger of Lightning. Names of metrics
            start with the fold's: ``fold-0/train_loss``.
        devices: Devices of each machine. With several, each step's bags are divided over them, and
            the script that calls `cross_validate` is started once for each device.
        num_nodes: Number of machines; start the script on each of them.
        strategy: Lightning Fabric's name for how the devices work together, such as ``ddp``.
        executor: Trains the folds as jobs, such as on a Ray cluster
            (`sgpmil.scaleout.executors.PlaceOptions`); needs `run`.
        shared_folder: Whether the workers of the executor see the folder of the run.

    Raises:
        SettingsError: A setting is unknown or impossible, or both resume and overwrite are asked.
        SplitError: The splits do not fit the bags, or leak.
        RunFolderError: The run exists already or cannot be written.
        TrainingError: A fold could not be trained.
    """
    require_dataset(bags)
    if resume and overwrite:
        raise SettingsError("Expected resume or overwrite of a run, but got both.")
    if folds_at_once is not None and not 1 <= folds_at_once <= MOST_AT_ONCE:
        raise SettingsError(
            f"Expected folds_at_once from 1 to {MOST_AT_ONCE}, but got {folds_at_once}."
        )
    remote = executor is not None and not isinstance(executor, LocalExecutor)
    if remote and (run is None or devices * num_nodes > 1):
        raise SettingsError(
            "Expected a folder (`run`) and one device a fold for folds that are trained elsewhere."
        )
    if remote and callbacks:
        raise SettingsError(
            "Callbacks run in the process that trains, which is on another machine here. Use "
            "loggers, or train locally."
        )
    settings = resolve_training(model, training)
    refuse_more_devices_than_bags(devices * num_nodes, settings)
    table = bags.label_table()
    folds = _folds(splits, table)
    folds = check_folds(
        folds,
        table,
        allow_missing=allow_missing,
        on_shared_case="warn" if on_shared_case == "warn" else "error",
    )
    selected = set(select_folds(folds, only_folds))
    name = find_model(model).name
    # Bags that cannot be read are found before there is a run.
    slides = bags.slide_digests()
    description = {
        "model": name,
        "model_settings": _plain(resolve_settings(model, model_settings or {})),
        "training": asdict(settings),
        "class_names": list(bags.target.names),
        # Nothing of runs of classes without an order, as those of earlier versions are.
        **({"target": bags.target.kind} if bags.target.kind != ClassTarget.kind else {}),
        "data_fingerprint": bags.fingerprint(),
        "splits_fingerprint": hashlib.sha256(repr(folds).encode()).hexdigest(),
    }
    # So are folds that cannot be trained: replacing a run deletes it.
    for fold in folds:
        if fold.name in selected:
            network = untrained_model(
                bags.subset(fold.train),
                bags.subset(fold.val) if fold.val else None,
                model=model,
                model_settings=model_settings,
                # The GPU that is asked for may be on another machine.
                training=replace(settings, device="auto") if remote else settings,
            )
            if network.uses_coordinates:
                refuse_mixed_coordinates(name, bags)
    if executor is not None:
        executor.require_room()
    path = None if run is None else Path(run)

    def train_folds(fabric: Fabric) -> CrossValidation:
        """Train and test the folds in one of the processes; the first one writes the run."""
        is_first = fabric.is_global_zero
        near = bags if remote else bags_near(bags, fabric.device)
        with ExitStack() as stack:
            opened = None
            if path is not None and is_first:
                # Processes that resume single folds of a run may do so at the same time.
                joins = resume and only_folds is not None
                stack.enter_context(run_lock(path, shared=joins))
                with creation_lock(path) if joins else nullcontext():
                    opened = Run.create(
                        path,
                        folds,
                        description,
                        data=data,
                        slides=slides,
                        resume=resume,
                        overwrite=overwrite,
                    )
            fabric.barrier()
            if path is not None and not is_first:
                opened = Run.open(path)
            on_disk = {} if opened is None else dict(opened.folds)
            done = {fold.name for fold in on_disk.values() if fold.is_done}
            done_before = set(done)
            fabric.barrier()  # before another fold can be done
            wanted = [fold for fold in folds if fold.name in selected | done]
            bar = stack.enter_context(
                progress_bar(
                    name,
                    settings.epochs * sum(fold.name not in done for fold in wanted),
                    "epochs",
                    may_end_early=settings.patience > 0,
                    show=progress and is_first,
                )
            )

            training = FoldTraining(near, settings, model, model_settings, resume, callbacks)

            def train_here(fold: Fold, progress: FoldProgress) -> PredictionTable:
                place = on_disk.get(fold.name)
                own = [FoldLogger(logger, fold.name) for logger in loggers]
                with place.lock() if place is not None and is_first else nullcontext():
                    folder = None if place is None else place.path
                    found = training.run(fabric, fold, folder, progress, own)
                    if place is not None and is_first:
                        found.write(place)
                return found.test

            if remote and executor is not None and opened is not None:
                todo = [fold for fold in wanted if fold.name not in done]
                train_elsewhere(
                    executor, training, todo, opened, bar, loggers, shared_folder=shared_folder
                )
                done |= {fold.name for fold in todo}

            def tested(number: int) -> tuple[PredictionTable, FoldMetrics]:
                fold = wanted[number]
                if fold.name in done:
                    predictions = on_disk[fold.name].load(with_validation=False).test
                else:
                    text = f"fold {fold.name} ({number + 1} of {len(wanted)})"
                    with FoldProgress.shown(bar, text, settings.epochs) as shown:
                        predictions = train_here(fold, shown)
                metrics = evaluate(predictions, fold.name)
                bar.say(_fold_line(metrics, fold.name in done_before))
                return predictions, metrics

            at_once = folds_at_once or default_folds_at_once(network, settings, near, fabric.device)
            # Predictions too, while others are trained: so they are the same however many are.
            stack.enter_context(deterministic())
            results = take_turns(
                [partial(tested, i) for i in range(len(wanted))],
                at_once if fabric.world_size == 1 else 1,
                fabric.device,
                on_stop=lambda: bar.say("Stopping after the files that are being written."),
            )
            tables, metrics = zip(*results, strict=True)
            if opened is not None and is_first:
                write_metrics(opened.metrics_path, metrics)
        return CrossValidation(tuple(metrics), tuple(tables), path)

    device = "cpu" if remote else settings.device
    fabric = start_fabric(device, devices=devices, num_nodes=num_nodes, strategy=strategy)
    return launch(fabric, train_folds, num_nodes=num_nodes)


def _folds(splits: Sequence[Fold] | Path | str | int, table: LabelTable) -> tuple[Fold, ...]:
    if isinstance(splits, int):
        return make_kfold(table, num_folds=splits)
    return read_splits(Path(splits), table) if isinstance(splits, (str, Path)) else tuple(splits)


def default_folds_at_once(
    model: MILModel, settings: TrainingSettings, bags: BagDataset, device: torch.device
) -> int:
    """Return the number of folds that are trained at once, unless another is given.

    Several at once are faster where steps are recorded for all bags of a size. Other steps keep a
    core of the computer, or the GPU, busy by themselves.
    """
    largest = sum(sorted(bags.num_instances)[-settings.bags_per_step :])
    if not can_record(model, settings, bags) or largest > MOST_ROWS:
        return 1
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    width = model.in_dim + sum(layer.out_features for layer in layers)
    need = filled_rows(largest) * width * _VALUE_BYTES + model.num_parameters() * _PARAMETER_BYTES
    return max(1, min(MOST_AT_ONCE, free_memory(device) // need))


def _fold_line(metrics: FoldMetrics, done: bool) -> str:
    slide = metrics.slide
    text = (
        f"fold {metrics.fold}: balanced accuracy {slide.balanced_accuracy:.3f}, "
        f"AUC {slide.auc:.3f}, ACE {slide.ace:.3f} on {counted(slide.num_slides, 'slide')}"
    )
    if metrics.instance is not None:
        areas = {kind: metrics.instance[f"{kind}_auc"] for kind in CLASS_SCORES}
        known = (f"{kind} {area:.3f}" for kind, area in areas.items() if not math.isnan(area))
        text += f", instance AUC {', '.join(known) or 'undefined'}"
    return text + (" (done before)" if done else "")


def _plain(settings: Any) -> dict[str, Any]:
    return {
        key: value if isinstance(value, (str, int, float, bool, tuple, type(None))) else str(value)
        for key, value in vars(settings).items()
    }
