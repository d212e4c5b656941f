"""The model of a fold before it is trained, and what would keep it from being trained."""

from collections.abc import Mapping
from typing import Any

import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import BagError, LabelError, TrainingError
from sgpmil.evaluation.device import compute_device
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import ModelLike, build_model
from sgpmil.training.settings import TrainingSettings

__all__ = ["refuse_mixed_coordinates", "untrained_model"]


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
        training: How it is to be trained.

    Raises:
        LabelError: A bag has no label, or there is only one class.
        TrainingError: Validation slides are missing.
        SettingsError: A setting does not exist or is impossible, or there is no such device.
    """
    compute_device(training.device)
    _check_labels(train, val)
    chooses = training.select == "best" or training.patience > 0
    if chooses and not (val is None and training.validation == "optional"):
        _require_validation(val, training.monitor, train.num_classes)
    torch.manual_seed(training.seed)
    network = build_model(
        model,
        in_dim=train.feature_dim,
        num_classes=train.num_classes,
        **dict(model_settings or {}),
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
            "work without the grid: --set model.settings.spatial=false."
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
            f"'{train.class_names[train.labels[0] or 0]}'. Check labels and splits."
        )


def _require_validation(val: BagDataset | None, monitor: str, num_classes: int) -> None:
    if val is not None and monitor == "auc" and len(set(val.labels)) < num_classes:
        raise TrainingError(
            f"Expected validation slides of all {num_classes} classes to monitor the AUC, but "
            f"they are of {len(set(val.labels))}. Monitor 'loss', or use other splits."
        )
    if val is None:
        raise TrainingError(
            "Expected validation slides to select the best epoch or to stop early, but the fold "
            "has none. Use select 'last' and patience 0, or splits with a validation part."
        )
