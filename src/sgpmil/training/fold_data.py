"""The batches of a fold, as Lightning asks for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.evaluation.device import compute_device
from sgpmil.training.batches import PackedBatches, epoch_batches, sequential_loader, store_reader
from sgpmil.training.lightning_package import lightning
from sgpmil.training.settings import TrainingSettings

__all__ = ["FoldData"]


class FoldData(lightning.LightningDataModule):
    """The batches of a fold.

    Args:
        train: Training bags.
        val: Validation bags, where there are any.
        settings: How the model is trained.
    """

    def __init__(
        self, train: BagDataset, val: BagDataset | None, settings: TrainingSettings
    ) -> None:
        super().__init__()
        self.train = train
        self.val = val
        self.settings = settings
        on_gpu = compute_device(settings.device).type == "cuda"
        self._reader = store_reader(train, pinned=on_gpu)

    def train_dataloader(self) -> Any:
        """Return what draws the batches of an epoch when it begins."""
        return DataLoader(_Epoch(self._draw), batch_size=None)

    def _draw(self) -> PackedBatches:
        return epoch_batches(
            self.train,
            seed=self.settings.seed,
            epoch=0 if self.trainer is None else self.trainer.current_epoch,
            balanced=self.settings.balanced_sampling,
            bags_per_step=self.settings.bags_per_step,
            reader=self._reader,
        )

    def val_dataloader(self) -> Any:
        """Return the validation bags in order."""
        if self.val is None:
            return []
        return sequential_loader(self.val)

    def transfer_batch_to_device(
        self, batch: BagBatch | PackedBatches, device: torch.device, dataloader_idx: int
    ) -> BagBatch | PackedBatches:
        """Move a batch; those of an epoch are moved one by one when their turn comes."""
        return batch.to(device, non_blocking=True) if isinstance(batch, BagBatch) else batch


class _Epoch(Dataset[PackedBatches]):
    """An epoch as one item, drawn when it is asked for."""

    def __init__(self, draw: Callable[[], PackedBatches]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> PackedBatches:
        if index != 0:
            raise IndexError(index)
        return self.draw()
