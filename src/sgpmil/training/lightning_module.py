"""The bridge between a model and Lightning: no maths, only the steps of a loop."""

from collections.abc import Callable
from typing import Any

import lightning
import numpy as np
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import TrainingError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.slide_metrics import slide_metrics
from sgpmil.models.contract import Loss, MILModel, ModelOutput
from sgpmil.training.batches import epoch_loader, sequential_loader, store_reader
from sgpmil.training.divergence import first_weights_not_finite, likely_cause
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.schedule import learning_rate
from sgpmil.training.settings import TrainingSettings

__all__ = ["FoldData", "LightningModel"]

_CHECK_EVERY_ON_GPU = 50
"""Steps between checks of the loss on a GPU, where each one waits for the device."""


class LightningModel(lightning.LightningModule):
    """Trains a model.

    Args:
        model: The model.
        settings: How it is trained.
        num_bags: Number of training bags, over which the KL divergence is spread.
        class_names: Class names.
        on_divergence: Called before training stops because the loss is not finite.
    """

    def __init__(
        self,
        model: MILModel,
        settings: TrainingSettings,
        num_bags: int,
        class_names: tuple[str, ...],
        on_divergence: Callable[[], object] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.settings = settings
        self.num_bags = num_bags
        self.class_names = class_names
        self.on_divergence = on_divergence
        self.train_loss: list[torch.Tensor] = []
        self.val_loss: list[tuple[torch.Tensor, int]] = []
        self.val_predictions: list[Prediction] = []
        self.epoch_metrics: dict[str, float] = {}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser of the settings."""
        return build_optimiser(self.settings, self.model)

    def on_train_epoch_start(self) -> None:
        """Set the learning rate from the epoch alone, so that a resume repeats."""
        rate = learning_rate(self.settings, self.current_epoch)
        for group in self.trainer.optimizers[0].param_groups:
            group["lr"] = rate
        self.model.epoch = self.current_epoch
        self.train_loss.clear()
        self.epoch_metrics = {"epoch": self.current_epoch, "learning_rate": rate}

    def on_train_batch_start(self, batch: BagBatch, batch_idx: int) -> None:
        """Set the random state from the epoch alone, so that a resume repeats.

        Not at the epoch's start: how often Lightning starts a loader, which draws a number, is
        another in a resumed epoch.
        """
        if batch_idx == 0:
            torch.manual_seed(_epoch_seed(self.settings.seed, self.current_epoch))

    def training_step(self, batch: BagBatch, batch_idx: int) -> torch.Tensor:
        """Compute the loss of a packed batch."""
        try:
            output = self.model(batch)
            loss = self.model.loss(output, batch.labels, self.num_bags)
        except TrainingError as error:
            raise self._stopped("A step failed", self.global_step, batch, str(error)) from error
        if self.device.type == "cpu" or batch_idx % _CHECK_EVERY_ON_GPU == 0:
            self._check(loss, output, batch)
        self.train_loss.append(loss.total.detach())
        return loss.total

    def on_train_batch_end(self, outputs: Any, batch: BagBatch, batch_idx: int) -> None:
        """Look at the weights before the epoch is checkpointed: a resume must be able to go on."""
        del outputs, batch_idx
        if not self.trainer.is_last_batch:
            return
        name = first_weights_not_finite(self.model)
        if name is not None:
            cause = f"a step of this epoch was too large for '{name}': lower the learning rate."
            raise self._stopped("The weights are not finite", self.global_step - 1, batch, cause)

    def validation_step(self, batch: BagBatch, batch_idx: int) -> None:
        """Predict a packed batch, and score it on the scale of the training loss."""
        output = self.model(batch)
        loss = self.model.loss(output, batch.labels, self.num_bags)
        self.val_loss.append((loss.total, batch.num_bags))
        labels = batch.labels.tolist()
        # Not in half precision, in which a softmax is far from summing to 1.
        samples = output.logits.cpu().double().softmax(-1).numpy()
        for b, probs in enumerate(samples):
            name = batch.slide_ids[b]
            self.val_predictions.append(Prediction.from_samples(name, name, labels[b], probs))

    def on_validation_epoch_end(self) -> None:
        """Judge the epoch."""
        table = PredictionTable(tuple(self.val_predictions), self.class_names)
        metrics = slide_metrics(table)
        total = sum(float(loss) * count for loss, count in self.val_loss)
        self.epoch_metrics |= {
            "val_loss": total / sum(count for _, count in self.val_loss),
            "val_balanced_accuracy": metrics.balanced_accuracy,
            "val_auc": metrics.auc,
        }
        self.val_predictions.clear()
        self.val_loss.clear()

    def _check(self, loss: Loss, output: ModelOutput, batch: BagBatch) -> None:
        if torch.isfinite(loss.total):
            return
        terms = ", ".join(f"{name} {term.item():g}" for name, term in loss.terms.items())
        cause = f"{likely_cause(self.model, batch, output, loss)}."
        raise self._stopped(f"The loss is not finite ({terms})", self.global_step, batch, cause)

    def _stopped(self, what: str, step: int, batch: BagBatch, cause: str) -> TrainingError:
        if self.on_divergence is not None:
            self.on_divergence()
        return TrainingError(
            f"{what} at epoch {self.current_epoch}, step {step}, "
            f"bags {', '.join(batch.slide_ids)}. Likely cause: {cause}"
        )


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
        self._reader = store_reader(train)

    def train_dataloader(self) -> Any:
        """Draw the batches of the current epoch."""
        epoch = 0 if self.trainer is None else self.trainer.current_epoch
        return epoch_loader(
            self.train,
            seed=self.settings.seed,
            epoch=epoch,
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
        self, batch: BagBatch, device: torch.device, dataloader_idx: int
    ) -> BagBatch:
        """Move a batch."""
        return batch.to(device, non_blocking=True)


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
