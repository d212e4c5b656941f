"""Fit one model to the bags of one fold."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import CheckpointError, RunFolderError, TrainingError
from sgpmil.evaluation.device import compute_device
from sgpmil.gpu.resident import where_it_fits
from sgpmil.models.checkpoint import load_model, save_model
from sgpmil.models.contract import MILModel
from sgpmil.models.precision import resolve_precision
from sgpmil.models.registry import ModelLike
from sgpmil.training.batches import sequential_loader
from sgpmil.training.callbacks import (
    LAST,
    KeepBestWeights,
    KeepCheckpoints,
    ReportEpoch,
    StopEarly,
    WriteMetrics,
)
from sgpmil.training.defaults import resolve_training
from sgpmil.training.fold_data import FoldData
from sgpmil.training.lightning_module import LightningModel
from sgpmil.training.lightning_package import lightning
from sgpmil.training.settings import Precision, TrainingSettings
from sgpmil.training.trainer import lightning_trainer, quiet_and_deterministic
from sgpmil.training.untrained import untrained_model

__all__ = ["fit"]

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
    on_epoch: Callable[[Mapping[str, float]], None] | None = None,
) -> MILModel:
    """Train a model and return it in evaluation mode, on the CPU.

    Its `epoch` is the one whose weights it has.

    Args:
        train: Training bags, all labelled.
        val: Validation bags.
        model: A name of `sgpmil.list_models`, a class of models, or a model, which stays as it is:
            a copy of it is trained.
        model_settings: Settings of the model that differ from its defaults.
        training: How to train: values that replace those of the model's own published training,
            such as ``{"epochs": 3}``, or all of them as `TrainingSettings`.
        folder: Where checkpoints and curves are written; nothing is written without it.
        resume: Go on from the folder's last checkpoint, where there is one.
        on_epoch: Called with the metrics of each epoch.

    Raises:
        LabelError: A bag has no label, or there is only one class.
        TrainingError: The loss is not finite, validation slides are missing, or the GPU has not
            enough memory.
        SettingsError: A setting does not exist or is impossible.
        CheckpointError: The checkpoint to resume from is damaged or of another model.
        RunFolderError: The folder cannot be written.
    """
    settings = resolve_training(model, training)
    if val is None and settings.validation == "optional":
        settings = replace(settings, select="last", patience=0)
    network = untrained_model(
        train, val, model=model, model_settings=model_settings, training=settings
    )
    device = compute_device(settings.device)
    settings = replace(settings, precision=_precision(settings, device))
    train = where_it_fits(train, device)
    val = None if val is None else where_it_fits(val, device)
    with quiet_and_deterministic():
        network.to(device).initialise(_sample(train, settings.seed).to(device), seed=settings.seed)
    if settings.precision == "64":
        network.double()
    place = None if folder is None else Path(folder)
    data = FoldData(train, val, settings)
    module = LightningModel(
        network,
        settings,
        num_bags=len(train),
        class_names=train.class_names,
        on_divergence=lambda: _save(network, place, "diverged", data),
    )
    best: KeepBestWeights | KeepCheckpoints = (
        KeepBestWeights() if place is None else KeepCheckpoints(place, {"seed": settings.seed})
    )
    callbacks: list[lightning.Callback] = []
    if settings.patience:
        callbacks.append(StopEarly(settings.patience, settings.min_epochs))
    if place is not None:
        callbacks.append(WriteMetrics(place))
    if place is not None or settings.select == "best":
        callbacks.append(best)
    if on_epoch is not None:
        callbacks.append(ReportEpoch(on_epoch))
    last = None if place is None else place / LAST
    with lightning_trainer(settings, callbacks, place) as trainer:
        interrupted = resume and last is not None and last.exists()
        if interrupted and last is not None:
            _check_resumable(last, module)
        try:
            trainer.fit(
                module,
                datamodule=data,
                ckpt_path=last if interrupted else None,
                weights_only=True,
            )
        except SystemExit as error:
            # Lightning turns Ctrl-C into an exit, and a request to terminate into a good one.
            if isinstance(error.__context__, KeyboardInterrupt) or not error.code:
                raise KeyboardInterrupt from error
            raise
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"The GPU has not enough memory ({str(error).splitlines()[0]}) Train fewer folds "
                "at once (--folds-at-once 1) or with fewer bags a step (--bags-per-step 1); "
                "--resume goes on with the run."
            ) from error
        except OSError as error:
            if place is None:
                raise
            raise RunFolderError(f"Could not write to {place}: {error}.") from error
        finally:
            module.forget_recordings()
        return _finish(network, best, data, place)


def _precision(settings: TrainingSettings, device: torch.device) -> Precision:
    found: Precision = resolve_precision(settings.precision, device)  # type: ignore[assignment]
    return found


def _finish(
    network: MILModel,
    best: KeepBestWeights | KeepCheckpoints,
    data: FoldData,
    folder: Path | None,
) -> MILModel:
    """Conclude the last model and the best, write both, and return the one that is kept."""
    keep_best = data.settings.select == "best"
    if isinstance(best, KeepBestWeights) and keep_best:
        network.load_state_dict(best.weights)
        network.epoch = best.best_epoch
    _conclude(network, data)
    _save(network, folder, "last", data)
    if folder is not None and (keep_best or best.best_epoch >= 0):
        chosen, info = load_model(folder / "best.safetensors", model=network)
        chosen.epoch = int(info.details["epoch"])
        _conclude(chosen, data)
        _save(chosen, folder, "best", data)
        network = chosen if keep_best else network
    _save(network, folder, "checkpoint", data)
    return network


def _conclude(network: MILModel, data: FoldData) -> None:
    """Let a trained model, where it was trained, take what it needs from the training bags."""
    device = compute_device(data.settings.device)
    network.to(device).eval()
    batches = sequential_loader(data.train)
    with torch.no_grad():
        network.conclude(batch.to(device) for batch in batches)
    network.cpu()


def _save(network: MILModel, folder: Path | None, name: str, data: FoldData) -> None:
    if folder is not None:
        save_model(
            network,
            folder / f"{name}.safetensors",
            class_names=data.train.class_names,
            details={"seed": data.settings.seed, "epoch": network.epoch},
        )


def _check_resumable(last: Path, module: LightningModel) -> None:
    """Refuse a damaged checkpoint, or one of another model, before training starts from it."""
    try:
        # weights_only: a checkpoint from elsewhere must not run code.
        content = torch.load(last, map_location="cpu", weights_only=True)
        module.load_state_dict(content["state_dict"])
    except Exception as error:  # a damaged file fails in many ways
        raise CheckpointError(
            f"Expected a checkpoint of this model to resume from in {last}, but could not load it "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). "
            "Delete that file to train the fold again from its start."
        ) from error


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
