"""How many folds of a cross-validation are trained side by side on one GPU."""

import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.models.contract import MILModel
from sgpmil.training.recording import can_record, filled_rows
from sgpmil.training.settings import TrainingSettings

__all__ = ["MOST_AT_ONCE", "default_folds_at_once"]

MOST_AT_ONCE = 8
"""Folds for which torch has streams enough: each needs two of either priority, of 32."""

_ROW_BYTES = 2**16
"""Memory of a GPU that an instance of a step may take, more than any recordable model needs."""


def default_folds_at_once(
    model: MILModel, settings: TrainingSettings, bags: BagDataset, device: torch.device
) -> int:
    """Say how many folds are trained at once, unless told otherwise.

    That pays where steps are recorded: others keep one core of the computer busy, and gain nothing
    from a GPU that waits for it.

    Args:
        model: The model.
        settings: How it is trained.
        bags: All bags; on the device already if they fit.
        device: Where it is trained.
    """
    if not can_record(model, settings, bags):
        return 1
    free, _ = torch.cuda.mem_get_info(device)
    largest = sum(sorted(bags.num_instances)[-settings.bags_per_step :])
    fitting = free // (2 * _ROW_BYTES * filled_rows(largest))
    return max(1, min(MOST_AT_ONCE, fitting))
