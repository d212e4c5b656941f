"""Training of one model on the bags of one fold."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset, require_dataset
from sgpmil.bags.feature_origin import FeatureOrigin
from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.bags.target import Target
from sgpmil.errors import BagError, LabelError, RunFolderError, SettingsError, TrainingError
from sgpmil.gpu.resident import where_it_fits
from sgpmil.models.checkpoint import load_model
from sgpmil.models.contract import MILModel
from sgpmil.models.precision import resolve_precision
from sgpmil.models.prevalence import ClassShares
from sgpmil.models.registry import ModelLike, build_model
from sgpmil.processes import compute_device, threads_for
from sgpmil.runs.seen_slides import SEEN, write_seen
from sgpmil.training.batches import sequential_batches
from sgpmil.training.callbacks import Callback
from sgpmil.training.fabric import (
    Fabric,
    Logger,
    deterministic,
    launch,
    start_fabric,
)
from sgpmil.training.fold_files import FoldFiles
from sgpmil.training.loop import TrainingLoop
from sgpmil.training.settings import TrainingSettings, resolve_training

MAX_INITIAL_INSTANCES = 50_000
"""Training instances looked at before the first step."""


def fit(
    train: BagDataset,
    *,
    val: BagDataset | None = None,
    model: ModelLike = "sgpmil",
    model_settings: Mapping[str, Any] | None = None,
    training: TrainingSettings | Mapping[str, Any] | None = None,
    folder: Path | str | None = None,
    resume: bool = False,
    on_epoch: Callable[[Mapping[str, int | float]], None] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    devices: int = 1,
    num_nodes: int = 1,
    strategy: str = "auto",
) -> MILModel:
    """Train a model and return it in evaluation mode, on the CPU.

    The `epoch` of the model is the one whose weights it has. The model remembers its slides
    (`MILModel.seen`), so that `sgpmil.predict` marks them and `sgpmil.evaluate` leaves those out
    that it was trained on.

    Args:
        train: Training bags, all labelled.
        val: Validation bags.
        model: A name of `sgpmil.list_models`, a class of models, or a model, which stays as it is:
            a copy of it is trained.
        model_settings: Settings of the model that differ from its defaults.
        training: Values that replace single ones of the model's own published training, such as
            ``{"epochs": 3}``, or all of them as `TrainingSettings`.
        folder: Folder for checkpoints and metrics; nothing is written without it.
        resume: Continue from the folder's last checkpoint, where there is one.
        on_epoch: Called with the metrics of each epoch.
        callbacks: Your own code at the start, after each epoch and at the end.
        loggers: Objects that record metrics, such as any logger of Lightning.
        devices: Devices of each machine. With several, each step's bags are divided over them, and
            the script that calls `fit` is started once for each device.
        num_nodes: Number of machines; start the script on each of them.
        strategy: Lightning Fabric's name for how the devices work together, such as ``ddp``.

    Raises:
        LabelError: A bag has no label, or there is only one class.
        TrainingError: The loss is not finite, validation slides are missing, or the GPU has not
            enough memory.
        SettingsError: A setting does not exist or is impossible.
        CheckpointError: The checkpoint to resume from is damaged or of another model.
        RunFolderError: The folder cannot be written.
    """
    for bags in (train, *(() if val is None else (val,))):
        require_dataset(bags)
    settings = resolve_training(model, training)
    fabric = start_fabric(settings.device, devices=devices, num_nodes=num_nodes, strategy=strategy)
    work = partial(
        fit_fold,
        train=train,
        val=val,
        model=model,
        model_settings=model_settings,
        settings=settings,
        folder=None if folder is None else Path(folder),
        resume=resume,
        on_epoch=on_epoch,
        callbacks=callbacks,
        loggers=loggers,
    )
    fitted: MILModel = launch(fabric, work, num_nodes=num_nodes)
    fitted.seen = SeenSlides.of_bags(train, val)
    if folder is not None and fabric.is_global_zero:
        write_seen(Path(folder) / SEEN, fitted.seen)
    return fitted


def refuse_more_devices_than_bags(num_devices: int, settings: TrainingSettings) -> None:
    """Refuse devices that would have no bag of a step.

    Raises:
        SettingsError: There are more devices than bags a step.
    """
    if settings.bags_per_step < num_devices:
        raise SettingsError(
            f"Expected at least as many bags a step as devices, but got {settings.bags_per_step} "
            f"for {num_devices}. Raise bags_per_step, or use fewer devices."
        )


def fit_fold(
    fabric: Fabric,
    train: BagDataset,
    val: BagDataset | None,
    *,
    model: ModelLike,
    model_settings: Mapping[str, Any] | None,
    settings: TrainingSettings,
    folder: Path | None,
    resume: bool,
    on_epoch: Callable[[Mapping[str, int | float]], None] | None = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> MILModel:
    """Train a model in one of the processes that Fabric has started; see `fit`."""
    if val is None and settings.validation == "optional":
        settings = replace(settings, select="last", patience=0)
    refuse_more_devices_than_bags(fabric.world_size, settings)
    network = untrained_model(
        train, val, model=model, model_settings=model_settings, training=settings
    )
    network.origin = FeatureOrigin.of(train)
    device = fabric.device
    precision: Any = resolve_precision(settings.precision, device)
    settings = replace(settings, precision=precision)
    train = where_it_fits(train, device)
    val = None if val is None else where_it_fits(val, device)
    place = folder if fabric.is_global_zero else None
    files = FoldFiles(place, settings.seed)
    with deterministic(), _few_threads(network, train, settings, device):
        sample = _sample(train, settings.seed).to(device)
        network.to(device).initialise(sample, seed=settings.seed)
        # Before training, which leaves it as it is: the sample is at hand.
        network.novelty.fit(sample, cases=train.case_ids, seed=settings.seed)
        if device.type == "cuda":  # folds side by side have a cache each, of which this is the most
            del sample
            torch.cuda.empty_cache()
        if settings.precision == "64":
            network.double()
        if fabric.world_size > 1:  # GPUs of different kinds round differently
            network.load_state_dict(fabric.broadcast(network.state_dict()))
        loop = TrainingLoop(
            network,
            train,
            val,
            settings,
            fabric,
            files,
            callbacks=callbacks,
            loggers=loggers,
            on_epoch=on_epoch,
        )
        try:
            loop.run(resume=resume)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"The GPU has not enough memory ({str(error).splitlines()[0]}) Train fewer folds "
                "at once (`folds_at_once=1`) or with fewer bags a step (`bags_per_step=1`); "
                "`resume=True` continues the run."
            ) from error
        except OSError as error:
            if place is None:
                raise
            raise _cannot_write(place, error) from error
        try:
            return _finish(loop)
        except OSError as error:
            if place is None:
                raise
            raise _cannot_write(place, error) from error


def _few_threads(
    network: MILModel, train: BagDataset, settings: TrainingSettings, device: torch.device
) -> AbstractContextManager[None]:
    if device.type != "cpu":
        return nullcontext()
    rows = settings.bags_per_step * sum(train.num_instances) / len(train)
    return threads_for(rows * sum(weights.numel() for weights in network.parameters()))


def _cannot_write(place: Path, error: OSError) -> RunFolderError:
    return RunFolderError(
        f"Expected to write to {place}, but got '{error.strerror or error}'. Free some space, or "
        "allow writing there; `resume=True` continues the run."
    )


def _finish(loop: TrainingLoop) -> MILModel:
    """Conclude the last model and the best, write both, and return the one that predicts."""
    network, files, best_epoch = loop.model, loop.files, loop.progress.best_epoch
    keep_best = loop.settings.select == "best"
    if files.folder is None and keep_best:
        network.load_state_dict(loop.best_weights)
        network.epoch = best_epoch
    _conclude(network, loop)
    files.save_model(network, "last")
    if files.folder is not None and (keep_best or best_epoch >= 0):
        chosen, info = load_model(files.folder / "best.safetensors", model=network)
        chosen.epoch = int(info.details["epoch"])
        _conclude(chosen, loop)
        files.save_model(chosen, "best")
        network = chosen if keep_best else network
    files.save_model(network, "checkpoint")
    return network


def _conclude(network: MILModel, loop: TrainingLoop) -> None:
    """Let a trained model, where it was trained, take what it needs from the training bags."""
    device = loop.fabric.device
    network.to(device).eval()
    with torch.no_grad():
        network.conclude(batch.to(device) for batch in sequential_batches(loop.train))
    network.cpu()


def untrained_model(
    train: BagDataset,
    val: BagDataset | None,
    *,
    model: ModelLike,
    model_settings: Mapping[str, Any] | None,
    training: TrainingSettings,
) -> MILModel:
    """Build the model of a fold, and find out what would keep it from being trained.

    Args:
        train: Training bags.
        val: Validation bags.
        model: A name of `sgpmil.list_models`, a class of models, or a model to copy.
        model_settings: Settings of the model that differ from its defaults.
        training: Training settings.

    Raises:
        LabelError: A bag has no label, or there is only one class.
        TrainingError: Validation slides are missing.
        SettingsError: A setting does not exist or is impossible, or there is no such device.
    """
    compute_device(training.device)
    _check_labels(train, val)
    chooses = training.select == "best" or training.patience > 0
    if chooses and not (val is None and training.validation == "optional"):
        _require_validation(val, training.monitor, train.target)
    torch.manual_seed(training.seed)
    network = build_model(
        model,
        in_dim=train.feature_dim,
        target=train.target,
        **dict(model_settings or {}),
    )
    network.shares = ClassShares.of_training(
        train.labels, train.target, training.prevalence, balanced=training.balanced_sampling
    )
    if network.uses_coordinates:
        for bags in (train, val):
            refuse_mixed_coordinates(network.name, bags)
    return network


def refuse_mixed_coordinates(model: str, bags: BagDataset | None) -> None:
    """Refuse slides of which some have coordinates, for a model that uses them.

    Raises:
        BagError: Some have, and some have not.
    """
    ids = () if bags is None else bags.slide_ids
    without = [s for s in ids if bags is not None and not bags.source.header(s).has_coords]
    if 0 < len(without) < len(ids):
        raise BagError(
            f"Expected coordinates of every slide, or of none, for {model}'s patch grid, but "
            f"{len(without)} of {len(ids)} have none (first: '{without[0]}'). Leave these out, or "
            'work without the grid: `model_settings={"spatial": False}`.'
        )


def _check_labels(train: BagDataset, val: BagDataset | None) -> None:
    for part, dataset in (("training", train), ("validation", val)):
        if dataset is None:
            continue
        unlabelled = [
            s for s, label in zip(dataset.slide_ids, dataset.labels, strict=True) if label is None
        ]
        if unlabelled:
            raise LabelError(
                f"Expected a label for every {part} slide, but {len(unlabelled)} of {len(dataset)} "
                f"have none (first: '{unlabelled[0]}'). Give a label table."
            )
    if len(set(train.labels)) < 2:
        raise LabelError(
            f"Expected training slides of at least two classes, but all {len(train)} are "
            f"'{train.target.decode(train.labels[0] or 0)}'. Check labels and splits."
        )


def _require_validation(val: BagDataset | None, monitor: str, target: Target) -> None:
    if val is not None and monitor == "auc" and len(set(val.labels)) < target.num_outputs:
        raise TrainingError(
            f"Expected validation slides of all {target.num_outputs} classes to monitor the AUC, "
            f"but they are of {len(set(val.labels))}. Monitor 'loss', or use other splits."
        )
    if val is None:
        raise TrainingError(
            "Expected validation slides to select the best epoch or to stop early, but the fold "
            "has none. Use select 'last' and patience 0, or splits with a validation part."
        )


def _sample(train: BagDataset, seed: int) -> BagBatch:
    """Take every training bag, of large ones a part of the instances."""
    generator = np.random.default_rng([seed, 0])
    share = min(1.0, MAX_INITIAL_INSTANCES / sum(train.num_instances))
    parts = []
    for bag in train:
        count = max(1, round(share * bag.num_instances))
        chosen = generator.permutation(bag.num_instances)[:count]
        rows = torch.from_numpy(np.sort(chosen))
        parts.append(
            Bag(
                features=bag.features[rows],
                slide_id=bag.slide_id,
                label=bag.label,
                coords=None if bag.coords is None else bag.coords[rows],
                patch_size=bag.patch_size,
            )
        )
    return BagBatch.pack(parts)
