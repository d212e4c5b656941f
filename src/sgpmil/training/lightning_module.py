"""The bridge between a model and Lightning: no maths, only the steps of a loop.

To Lightning an epoch is one batch: what it does between two batches (hooks, transfers, counters)
costs about a third of a millisecond, as long as a step on a GPU may take. It keeps the epochs, the
validation, the checkpoints and the callbacks.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import TrainingError
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction import Prediction, SlideName
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.gpu.recording import seed_torch
from sgpmil.models.contract import Loss, MILModel, ModelOutput
from sgpmil.models.precision import dense_arithmetic
from sgpmil.training.batches import PackedBatches, read_ahead
from sgpmil.training.divergence import first_weights_not_finite, likely_cause
from sgpmil.training.lightning_package import SIGTERMException, lightning
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.recorded_bags import RecordedBags, recorded_bags
from sgpmil.training.recorded_steps import RecordedSteps, recorded_steps
from sgpmil.training.schedule import learning_rate
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.steps import OptimiserSteps
from sgpmil.training.training_state import TrainingState
from sgpmil.training.turns import give_way, resting

__all__ = ["LightningModel"]

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
        self.automatic_optimization = False
        self.model = model
        self.settings = settings
        self.num_bags = num_bags
        self.class_names = class_names
        self.on_divergence = on_divergence
        self.train_loss: list[torch.Tensor] = []
        self.val_loss: list[tuple[torch.Tensor, int]] = []
        self.val_predictions: list[Prediction] = []
        self.epoch_metrics: dict[str, float] = {}
        self._steps: OptimiserSteps | None = None
        self._scaler_state: dict[str, Any] = {}
        self._recorded: RecordedSteps | RecordedBags | None = None
        self._looked_for_recording = False

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser of the settings."""
        return build_optimiser(self.settings, self.model)

    def on_train_epoch_start(self) -> None:
        """Set the learning rate from the epoch alone, so that a resume repeats."""
        rate = learning_rate(self.settings, self.current_epoch)
        for group in self.trainer.optimizers[0].param_groups:
            if isinstance(group["lr"], torch.Tensor):  # recorded steps read it there
                group["lr"].fill_(rate)
            elif self.device.type == "cuda":  # as the tensor would be, whoever comes first
                group["lr"] = float(torch.tensor(rate))
            else:
                group["lr"] = rate
        self.model.epoch = self.current_epoch
        self.train_loss.clear()
        self.epoch_metrics = {"epoch": self.current_epoch, "learning_rate": rate}

    def training_step(self, batches: PackedBatches, batch_idx: int) -> None:
        """Train on the batches of an epoch."""
        del batch_idx
        steps = self._optimiser_steps()
        self._seed_epoch()
        if self._replay(steps, batches):
            return
        last = len(batches) - 1
        for number, batch in enumerate(read_ahead(batches, self.device)):
            self._stop_if_asked()
            steps.backward(self.training_pass(steps, batch, number))
            if (number + 1) % self.settings.accumulate_steps == 0 or number == last:
                steps.step()
        self._check_weights(batch, last)

    def _replay(self, steps: OptimiserSteps, batches: PackedBatches) -> bool:
        """Train on an epoch by recorded steps; say whether that was possible."""
        if not self._looked_for_recording:
            self._looked_for_recording = True
            train = batches.dataset
            self._recorded = recorded_steps(steps, train) or recorded_bags(steps, train)
        if self._recorded is None or not self._recorded.can_take(batches.groups):
            return False
        before = TrainingState(steps)
        losses: torch.Tensor | None = None
        with suppress(torch.OutOfMemoryError):
            losses = self._recorded.epoch(batches.groups, self._stop_if_asked)
        if losses is None:
            steps.optimiser.zero_grad()
            self._recorded = None  # plain steps take less; torch frees the rest when it needs it
        else:
            with resting():
                _wait_for(self.device)
            if torch.isfinite(losses).all() and first_weights_not_finite(self.model) is None:
                self.train_loss.extend(losses.unbind())
                return True
        # Step by step, with other noise, the epoch may succeed; or it fails where it can say why.
        before.restore()
        self._seed_epoch()
        return False

    def forget_recordings(self) -> None:
        """Free what recorded steps hold of a GPU's memory."""
        self._recorded, self._steps = None, None

    def _seed_epoch(self) -> None:
        """Seed from the epoch alone, so that a resume repeats."""
        seed_torch(_epoch_seed(self.settings.seed, self.current_epoch), self.device)

    def _stop_if_asked(self) -> None:
        if self.trainer.received_sigterm:
            raise SIGTERMException
        give_way()

    def training_pass(self, steps: OptimiserSteps, batch: BagBatch, number: int) -> Loss:
        """Compute the loss of a packed batch, the epoch's next.

        Raises:
            TrainingError: The model cannot compute it, or it is not finite.
        """
        try:
            output, loss = steps.forward(batch)
        except TrainingError as error:
            raise self._stopped("A step failed", number, batch, str(error)) from error
        if self.device.type == "cpu" or number % _CHECK_EVERY_ON_GPU == 0:
            self._check(loss, output, batch, number)
        self.train_loss.append(loss.total.detach())
        return loss

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep what float16 gradients are scaled by, and nothing of recordings."""
        for state in checkpoint["optimizer_states"]:
            for group in state["param_groups"]:
                group["lr"] = float(group["lr"])
                if "capturable" in group:
                    group["capturable"] = False
        checkpoint["gradient_scaler"] = self._optimiser_steps().scaler.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take it up again, once there is an optimiser."""
        self._scaler_state = checkpoint.get("gradient_scaler", {})

    def _optimiser_steps(self) -> OptimiserSteps:
        if self._steps is None:
            optimiser = self.optimizers(use_pl_optimizer=False)
            if not isinstance(optimiser, torch.optim.Optimizer):
                raise TypeError(f"Expected one optimiser, but got {type(optimiser).__name__}.")
            self._steps = OptimiserSteps(self.model, optimiser, self.settings, self.num_bags)
            if self._scaler_state:
                self._steps.scaler.load_state_dict(self._scaler_state)
        return self._steps

    def _check_weights(self, batch: BagBatch, number: int) -> None:
        """Look at the weights before the epoch is checkpointed: a resume must be able to go on."""
        name = first_weights_not_finite(self.model)
        if name is not None:
            cause = f"a step of this epoch was too large for '{name}': lower the learning rate."
            raise self._stopped("The weights are not finite", number, batch, cause)

    def validation_step(self, batch: BagBatch, batch_idx: int) -> None:
        """Predict a packed batch, and score it on the scale of the training loss."""
        give_way()
        with dense_arithmetic(self.settings.precision, batch.features.device):
            output = self.model(batch)
            loss = self.model.loss(output, batch.labels, self.num_bags)
        self.val_loss.append((loss.total, batch.num_bags))
        # Not in half precision, in which a softmax is far from summing to 1.
        samples = output.logits.double().softmax(-1).cpu().numpy()
        labels = batch.labels.tolist()
        slides = [SlideName(s, s, label) for s, label in zip(batch.slide_ids, labels, strict=True)]
        self.val_predictions.extend(Prediction.from_batch(slides, samples))

    def on_validation_epoch_end(self) -> None:
        """Judge the epoch."""
        table = PredictionTable(tuple(self.val_predictions), self.class_names)
        total = sum(float(loss) * count for loss, count in self.val_loss)
        self.epoch_metrics |= {
            "val_loss": total / sum(count for _, count in self.val_loss),
            **{f"val_{key}": METRICS[key].quick(table) for key in ("balanced_accuracy", "auc")},
        }
        self.val_predictions.clear()
        self.val_loss.clear()

    def _check(self, loss: Loss, output: ModelOutput, batch: BagBatch, number: int) -> None:
        if torch.isfinite(loss.total):
            return
        terms = ", ".join(f"{name} {term.item():g}" for name, term in loss.terms.items())
        cause = f"{likely_cause(self.model, batch, output, loss)}."
        raise self._stopped(f"The loss is not finite ({terms})", number, batch, cause)

    def _stopped(self, what: str, number: int, batch: BagBatch, cause: str) -> TrainingError:
        """Say what happened at the epoch's pass of that number."""
        passes = -(-self.num_bags // self.settings.bags_per_step)
        steps = -(-passes // self.settings.accumulate_steps)
        step = self.current_epoch * steps + number // self.settings.accumulate_steps
        if self.on_divergence is not None:
            self.on_divergence()
        return TrainingError(
            f"{what} at epoch {self.current_epoch}, step {step}, "
            f"bags {', '.join(batch.slide_ids)}. Likely cause: {cause}"
        )


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def _epoch_seed(seed: int, epoch: int) -> int:
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
