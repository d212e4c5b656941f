"""An optimiser step: forward, backward, clip, step, with nothing of a framework between them."""

from dataclasses import replace

import torch
from torch import nn

from sgpmil.bags.bag import BagBatch
from sgpmil.models.contract import Loss, MILModel, ModelOutput
from sgpmil.models.precision import dense_arithmetic
from sgpmil.training.settings import TrainingSettings

__all__ = ["OptimiserSteps"]


class OptimiserSteps:
    """Trains a model, pass by pass.

    Args:
        model: The model.
        optimiser: Its optimiser.
        settings: How it is trained.
        num_bags: Number of training bags.
    """

    def __init__(
        self,
        model: MILModel,
        optimiser: torch.optim.Optimizer,
        settings: TrainingSettings,
        num_bags: int,
    ) -> None:
        self.model = model
        self.optimiser = optimiser
        self.settings = settings
        self.num_bags = num_bags
        # Gradients in float16 vanish unless the loss is made larger for the while.
        self.scaler = torch.amp.GradScaler(enabled=settings.precision == "16")

    def forward(self, batch: BagBatch) -> tuple[ModelOutput, Loss]:
        """Pass a batch through the model, and compute its loss.

        Bags beyond the labels have no part in the loss: they fill a recorded step up.
        """
        with dense_arithmetic(self.settings.precision, batch.features.device):
            output = self.model(batch)
            if len(batch.labels) < batch.num_bags:
                output = replace(output, logits=output.logits[: len(batch.labels)])
            return output, self.model.loss(output, batch.labels, self.num_bags)

    def backward(self, loss: Loss) -> None:
        """Add the gradient of a pass, as its share in the mean over the passes of a step."""
        self.scaler.scale(loss.total / self.settings.accumulate_steps).backward()

    def step(self) -> None:
        """Take a step with the gradients of the passes since the last."""
        if self.settings.gradient_clip:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()
