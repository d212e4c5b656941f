"""How many folds of a cross-validation are trained side by side on one GPU."""

import torch
from torch import nn

from sgpmil.bags.dataset import BagDataset
from sgpmil.gpu.resident import free_memory
from sgpmil.models.contract import MILModel
from sgpmil.training.recorded_steps import MOST_ROWS, can_record, filled_rows
from sgpmil.training.settings import TrainingSettings

__all__ = ["MOST_AT_ONCE", "default_folds_at_once"]

MOST_AT_ONCE = 8
"""Folds for which torch has streams enough: each needs two of either priority, of 32."""

_VALUE_BYTES = 32
"""Memory that each output of a layer for an instance takes in a step; half of it was measured."""

_PARAMETER_BYTES = 64
"""Memory of a parameter: its value, its moments, and its gradients of many recordings."""


def default_folds_at_once(
    model: MILModel, settings: TrainingSettings, bags: BagDataset, device: torch.device
) -> int:
    """Say how many folds are trained at once, unless told otherwise.

    That pays where steps are recorded for all bags of a size: others keep one core of the computer
    busy, or the GPU by themselves.

    Args:
        model: The model.
        settings: How it is trained.
        bags: All bags; on the device already if they fit.
        device: Where it is trained.
    """
    largest = sum(sorted(bags.num_instances)[-settings.bags_per_step :])
    if not can_record(model, settings, bags) or largest > MOST_ROWS:
        return 1
    if settings.logger == "wandb":  # it writes all folds of a process into one run
        return 1
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    width = model.in_dim + sum(layer.out_features for layer in layers)
    need = filled_rows(largest) * width * _VALUE_BYTES + model.num_parameters() * _PARAMETER_BYTES
    return max(1, min(MOST_AT_ONCE, free_memory(device) // need))
