"""Engines: the optimiser steps of an epoch.

The training loop hands an engine the batches of an epoch and gets their losses back. `PlainEngine`
computes pass by pass. On one GPU, `sgpmil.training.recorded_steps` and
`sgpmil.training.recorded_bags` replay CUDA graphs; `ReplayEngine` puts one of them before the plain
engine, which takes over where a recording fails.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.errors import TrainingError
from sgpmil.gp.noise import PartNoise
from sgpmil.gpu.recording import seed_torch
from sgpmil.models.contract import Loss, MILModel, ModelOutput
from sgpmil.models.precision import dense_arithmetic
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float
from sgpmil.training.batches import PackedBatches, StepPart, read_ahead
from sgpmil.training.fabric import Fabric
from sgpmil.training.settings import TrainingSettings, default_training
from sgpmil.training.turns import release_turn, yield_turn

_CHECK_EVERY_ON_GPU = 50
"""Steps between checks of the loss on a GPU, where each check waits for the device."""

_LARGE_RATE = 100
"""Factor of a model's own learning rate above which the rate is the likely cause of a bad loss."""


class NotRecordableError(RuntimeError):
    """A step turned out to be one that a GPU cannot record."""


@runtime_checkable
class Engine(Protocol):
    """Trains a model for an epoch."""

    def can_take(self, batches: PackedBatches) -> bool:
        """Return whether the engine can train on these batches."""
        ...

    def epoch(self, batches: PackedBatches) -> Float[Tensor, " _"]:
        """Train on the batches of an epoch and return the loss of each.

        Raises:
            TrainingError: A loss or a weight is not finite, or the model cannot compute a pass.
        """
        ...

    def forget(self) -> None:
        """Free the GPU memory that recordings hold."""
        ...


class OptimiserSteps:
    """Forward, backward, clip and step of a model.

    Args:
        model: The model.
        optimiser: Its optimiser.
        settings: Its training settings.
        num_bags: Number of training bags, over which the KL divergence is spread.
        fabric: The processes that divide a step among them; None for one process.
    """

    def __init__(
        self,
        model: MILModel,
        optimiser: torch.optim.Optimizer,
        settings: TrainingSettings,
        num_bags: int,
        fabric: Fabric | None = None,
    ) -> None:
        self.model = model
        self.optimiser = optimiser
        self.settings = settings
        self.num_bags = num_bags
        self.fabric = fabric if fabric is not None and fabric.world_size > 1 else None
        # Gradients in float16 vanish unless the loss is scaled up for the backward pass.
        self.scaler = torch.amp.GradScaler(enabled=settings.precision == "16")

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(self.model.parameters()).device

    def seed_epoch(self) -> None:
        """Seed from the epoch alone, so that a resume repeats it.

        Processes that divide a step draw the same numbers, of which each takes its part, unless
        the model draws for each row: then the rows of two processes would get the same.
        """
        is_alone = self.fabric is None or not draws_by_row(self.model)
        rank = 0 if is_alone or self.fabric is None else self.fabric.global_rank
        seed_torch(epoch_seed(self.settings.seed, self.model.epoch, rank), self.device)

    def forward(self, batch: BagBatch, part: StepPart | None = None) -> tuple[ModelOutput, Loss]:
        """Pass a batch through the model and compute its loss.

        Bags beyond the labels have no part in the loss: they fill up a recorded step.

        Args:
            batch: The bags.
            part: Their part in the step, where several processes divide it.
        """
        with dense_arithmetic(self.settings.precision, batch.features.device):
            if part is not None and isinstance(self.model, SGPMIL):
                output = self.model(batch, PartNoise(part.sizes, part.own))
            else:
                output = self.model(batch)
            if len(batch.labels) < batch.num_bags:
                output = replace(output, logits=output.logits[: len(batch.labels)])
            return output, self.model.loss(output, batch.labels, self.num_bags)

    def backward(self, loss: Loss, share: float = 1.0) -> None:
        """Add the gradient of a pass, as its part in the mean over the passes of a full step.

        Args:
            loss: The loss of the pass.
            share: Share of the pass's bags that this process has.
        """
        total = loss.total if share == 1.0 else share * loss.total
        self.scaler.scale(total / self.settings.accumulate_steps).backward()

    def step(self, passes: int | None = None) -> None:
        """Step with the gradients of the passes since the last step.

        Args:
            passes: Their number, where it is not `accumulate_steps`: the last step of an epoch may
                have fewer.
        """
        if self.fabric is not None:
            self._sum_gradients(self.fabric)
        if passes is not None and passes < self.settings.accumulate_steps:
            gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
            torch._foreach_mul_(gradients, self.settings.accumulate_steps / passes)
        if self.settings.gradient_clip:
            self.scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad()

    def _sum_gradients(self, fabric: Fabric) -> None:
        """Add up the processes' gradients, each of which counts for its share of the bags.

        By hand, in one message: a wrapper for data parallelism averages over processes, not over
        bags, and expects every process to use every parameter in every pass.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        summed: Any = fabric.all_reduce(flat, reduce_op="sum")
        parts = summed.split([gradient.numel() for gradient in gradients])
        for gradient, values in zip(gradients, parts, strict=True):
            gradient.copy_(values.view_as(gradient))


class PlainEngine:
    """Trains pass by pass.

    Args:
        steps: The model, its optimiser and settings.
    """

    def __init__(self, steps: OptimiserSteps) -> None:
        self.steps = steps

    def can_take(self, batches: PackedBatches) -> bool:
        """Return True: a plain pass takes any bags."""
        return True

    def forget(self) -> None:
        """Do nothing: plain passes keep nothing."""

    def epoch(self, batches: PackedBatches) -> Float[Tensor, " _"]:
        """Train on the batches of an epoch and return the loss of each."""
        steps, losses, last = self.steps, [], len(batches) - 1
        for number, batch in enumerate(read_ahead(batches, steps.device)):
            yield_turn()
            part = None if batches.parts is None else batches.parts[number]
            loss = self.loss(batch, number, part)
            losses.append(loss.total.detach())
            steps.backward(loss, 1.0 if part is None else part.share)
            passes = number % steps.settings.accumulate_steps + 1
            if passes == steps.settings.accumulate_steps or number == last:
                steps.step(passes)
        # Before the epoch is checkpointed: a resume must be able to continue.
        name = first_weights_not_finite(steps.model)
        if name is not None:
            cause = f"a step of this epoch was too large for '{name}': lower the learning rate."
            raise self._stopped("The weights are not finite", last, batch, cause)
        found = torch.stack(losses)
        if steps.fabric is None:
            return found
        shares = found.new_tensor(batches.shares)
        summed: Any = steps.fabric.all_reduce(shares * found, reduce_op="sum")
        return summed

    def loss(self, batch: BagBatch, number: int, part: StepPart | None = None) -> Loss:
        """Compute the loss of a batch.

        Raises:
            TrainingError: The model cannot compute it, or it is not finite.
        """
        try:
            output, loss = self.steps.forward(batch, part)
        except TrainingError as error:
            raise self._stopped("A step failed", number, batch, str(error)) from error
        is_checked = batch.features.device.type == "cpu" or number % _CHECK_EVERY_ON_GPU == 0
        if is_checked and not torch.isfinite(loss.total):
            terms = ", ".join(f"{name} {term.item():g}" for name, term in loss.terms.items())
            usual = default_training(self.steps.model.name).learning_rate
            cause = f"{likely_cause(self.steps.model, batch, output, loss)}."
            is_large = self.steps.settings.learning_rate > _LARGE_RATE * usual
            if is_large and torch.isfinite(batch.features).all():
                rate = self.steps.settings.learning_rate
                cause = f"the learning rate {rate:g} is too large; the model's own is {usual:g}."
            raise self._stopped(f"The loss is not finite ({terms})", number, batch, cause)
        return loss

    def _stopped(self, what: str, number: int, batch: BagBatch, cause: str) -> TrainingError:
        settings, epoch = self.steps.settings, self.steps.model.epoch
        passes = -(-self.steps.num_bags // settings.bags_per_step)
        steps = -(-passes // settings.accumulate_steps)
        step = epoch * steps + number // settings.accumulate_steps
        return TrainingError(
            f"{what} in epoch {epoch + 1}, step {step}, bags {', '.join(batch.slide_ids)}. "
            f"Likely cause: {cause}"
        )


class ReplayEngine:
    """Trains by recorded work, and plainly where that is not possible.

    A recording needs more memory than a plain step. An epoch of replays that runs out of memory,
    that cannot be recorded, or that ends with a loss or a weight that is not finite, is taken back
    and repeated plainly: with other noise it may succeed, or it fails where the plain engine can
    say why.

    Args:
        recorded: The engine that replays.
        plain: The engine that does not.
    """

    def __init__(self, recorded: Engine, plain: PlainEngine) -> None:
        self.recorded: Engine | None = recorded
        self.plain = plain

    def can_take(self, batches: PackedBatches) -> bool:
        """Return True: what cannot be replayed is computed."""
        return True

    def epoch(self, batches: PackedBatches) -> Float[Tensor, " _"]:
        """Train on the batches of an epoch and return the loss of each."""
        if self.recorded is None or not self.recorded.can_take(batches):
            return self.plain.epoch(batches)
        steps = self.plain.steps
        before = TrainingState(steps)
        losses: Tensor | None = None
        with suppress(torch.OutOfMemoryError, NotRecordableError):
            losses = self.recorded.epoch(batches)
        if losses is None:
            steps.optimiser.zero_grad()
            self.forget()  # plain steps take less
        else:
            with release_turn():
                if steps.device.type == "cuda":
                    torch.cuda.current_stream(steps.device).synchronize()
            if torch.isfinite(losses).all() and first_weights_not_finite(steps.model) is None:
                return losses
        before.restore()
        steps.seed_epoch()
        return self.plain.epoch(batches)

    def forget(self) -> None:
        """Free the GPU memory that recordings hold."""
        if self.recorded is not None:
            self.recorded.forget()
            self.recorded = None
        if self.plain.steps.device.type == "cuda":
            torch.cuda.empty_cache()  # torch keeps the memory of a recording for that recording


class TrainingState:
    """A copy of the weights and of the optimiser's state, to return to.

    Args:
        steps: The model and its optimiser.
    """

    def __init__(self, steps: OptimiserSteps) -> None:
        self.steps = steps
        tensors = self._tensors()
        with torch.no_grad():
            copies = [torch.empty_like(tensor) for tensor in tensors]
            torch._foreach_copy_(copies, tensors)  # all at once: there are dozens of small ones
        self._values = list(zip(tensors, copies, strict=True))

    def restore(self) -> None:
        """Put everything back; state that did not exist becomes zero, as it begins."""
        with torch.no_grad():
            known = {id(tensor) for tensor, _ in self._values}
            for tensor in self._tensors():
                if id(tensor) not in known:
                    tensor.zero_()
            for tensor, value in self._values:
                tensor.copy_(value)

    def _tensors(self) -> list[Tensor]:
        model, optimiser = self.steps.model, self.steps.optimiser
        state = [v for part in optimiser.state.values() for v in part.values()]
        return [*model.parameters(), *model.buffers(), *(v for v in state if isinstance(v, Tensor))]


def epoch_seed(seed: int, epoch: int, rank: int = 0) -> int:
    """Return the seed of an epoch; processes that share a step draw different numbers."""
    entropy = [seed, epoch, rank] if rank else [seed, epoch]
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def draws_by_row(model: MILModel) -> bool:
    """Return whether training draws for each row of a batch, as dropout does."""
    dropouts = (m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
    attentions = (m for m in model.modules() if isinstance(m, nn.MultiheadAttention))
    has_dropout = any(m.p > 0 for m in dropouts) or any(m.dropout > 0 for m in attentions)
    return has_dropout or (model.takes_noise and not isinstance(model, SGPMIL))


def first_weights_not_finite(model: MILModel) -> str | None:
    """Name the first weights that hold NaN or infinity."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    # One question to the device in place of one a parameter.
    sums = torch.stack(torch._foreach_norm(parameters, 1))
    if torch.isfinite(sums).all():
        return None
    # Of weights that are finite, the sum may not be.
    bad = (name for name, p in zip(names, parameters, strict=True) if not torch.isfinite(p).all())
    return next(bad, None)


def likely_cause(model: MILModel, batch: BagBatch, output: ModelOutput, loss: Loss) -> str:
    """Name the first quantity that is not finite, from the input to the loss."""
    if not torch.isfinite(batch.features).all():
        return "the bag's features hold NaN or infinity"
    name = first_weights_not_finite(model)
    if name is not None:
        return f"the weights '{name}' are not finite since an earlier step: lower the learning rate"
    if not torch.isfinite(output.attention).all():
        cause = "features of an extreme scale (keep the standardisation on)"
        if hasattr(model.settings, "jitter"):
            cause += " or too small a jitter"
        return f"the attention is not finite: {cause}"
    if not torch.isfinite(output.logits).all():
        return (
            "the logits overflow: use precision 32 or bf16, or a pooling that does not grow "
            "with the bag"
        )
    bad = [name for name, term in loss.terms.items() if not torch.isfinite(term)]
    return f"the loss term '{', '.join(bad)}' overflows: lower the learning rate"
