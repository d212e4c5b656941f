"""Passes of single bags that a GPU records once as CUDA graphs and replays.

For models whose arithmetic depends on the size of a bag (landmarks, squares of tokens, pairs of
instances): a recording is of one bag, and nothing is filled up. A bag is computed plainly when it
first comes, recorded when it comes again, and replayed from then on, with bitwise the same result.
Forward and backward pass are recorded. They add to gradients that stay where they are, so any
optimiser may step with these.
"""

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.gpu.recording import Recorder, Recording
from sgpmil.gpu.resident import DeviceSource
from sgpmil.models.contract import Recordable
from sgpmil.shapes import Float
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import OptimiserSteps
from sgpmil.training.turns import yield_turn

_LOG = logging.getLogger(__name__)

_MOST_ROWS = 2**14
"""Rows of a bag beyond which it keeps a GPU busy without recording."""

_LEAST_FREE = 0.2
"""Share of a GPU's memory that must be free for a bag to be recorded."""


def recorded_bags(steps: OptimiserSteps, train: BagDataset) -> "RecordedBags | None":
    """Return the engine of recorded bags; None where model, settings or bags rule it out."""
    source, settings = train.source, steps.settings
    if not isinstance(source, DeviceSource) or not source.matrix.is_cuda:
        return None
    if settings.bags_per_step > 1 or settings.precision not in ("auto", "32", "bf16"):
        return None
    if steps.model.recordable is not Recordable.BAGS:
        return None
    return RecordedBags(steps, train, Recorder(source.matrix.device))


class RecordedBags:
    """Trains a model by the recorded passes of single bags.

    Args:
        steps: The model, its optimiser and settings.
        train: Training bags, on the device.
        recorder: Records the passes.
    """

    def __init__(self, steps: OptimiserSteps, train: BagDataset, recorder: Recorder) -> None:
        self.steps = steps
        self.train = train
        self._recorder = recorder
        recorder.begin_anew()  # memory of earlier recordings may not be free yet
        self._in_warmup = steps.model.in_warmup
        self._sizes = train.num_instances
        self._recordings: dict[int, Recording] = {}
        self._parameters: dict[int, tuple[nn.Parameter, ...]] = {}  # with gradients of a bag
        self._gradients = {
            p: torch.zeros_like(p) for p in steps.model.parameters() if p.requires_grad
        }
        self._given: dict[nn.Parameter, None] = {}  # since the last step
        self._may_record = True

    def can_take(self, batches: PackedBatches) -> bool:
        """Return whether every step of an epoch is of one bag."""
        return all(len(group) == 1 for group in batches.groups)

    def epoch(self, batches: PackedBatches) -> Float[Tensor, " _"]:
        """Train on each bag, and return the losses."""
        groups = batches.groups
        if self.steps.model.in_warmup != self._in_warmup:
            self._in_warmup = self.steps.model.in_warmup
            self._begin_anew()
        losses = torch.empty(len(groups), device=self._recorder.device)
        every = self.steps.settings.accumulate_steps
        for number, (bag,) in enumerate(groups):
            yield_turn()
            losses[number].copy_(self._loss(bag))
            passes = number % every + 1
            if passes == every or number == len(groups) - 1:
                self._step(passes)
        return losses

    def forget(self) -> None:
        """Drop the recordings, each of which refers to this object."""
        self._recordings.clear()
        self._parameters.clear()

    def _loss(self, bag: int) -> Float[Tensor, ""]:
        """Add the gradients of a bag, and return its loss."""
        if bag in self._parameters and bag not in self._recordings:
            self._record(bag)
        found = self._recordings.get(bag)
        if found is None:
            loss, self._parameters[bag] = self._compute(self._batch(bag))
        else:
            found.replay()
            loss = found.result
        self._given.update(dict.fromkeys(self._parameters[bag]))
        return loss

    def _step(self, passes: int) -> None:
        for parameter in self._given:
            parameter.grad = self._gradients[parameter]
        self.steps.step(passes)
        torch._foreach_zero_([self._gradients[parameter] for parameter in self._given])
        self._given.clear()

    def _batch(self, bag: int) -> BagBatch:
        batch = BagBatch.pack([self.train[bag]]).to(self._recorder.device, non_blocking=True)
        # Sent once: a recording cannot send anything to the GPU.
        return replace(batch, bounds=batch.segments.bounds)

    def _compute(self, batch: BagBatch) -> tuple[Float[Tensor, ""], tuple[nn.Parameter, ...]]:
        _, loss = self.steps.forward(batch)
        self.steps.backward(loss)
        parameters = tuple(p for p in self._gradients if p.grad is not None)
        gradients = [p.grad for p in parameters if p.grad is not None]
        torch._foreach_add_([self._gradients[p] for p in parameters], gradients)
        for parameter in parameters:
            parameter.grad = None
        return loss.total.detach(), parameters

    def _record(self, bag: int) -> None:
        """Record a bag's pass where that is possible; after a failure, try no other."""
        if not self._may_record or self._sizes[bag] > _MOST_ROWS:
            return
        if self._recorder.free_share() < _LEAST_FREE:
            _LOG.info("No more bags are recorded: the GPU's memory is nearly full.")
            self._may_record = False
            return
        batch = self._batch(bag)
        try:
            self._recordings[bag] = self._recorder.record(lambda: self._compute(batch)[0])
        except RuntimeError as error:
            _LOG.info("Bags are not recorded: %s", error)
            self._may_record = False
            self._begin_anew()
            self.steps.optimiser.zero_grad()

    def _begin_anew(self) -> None:
        self.forget()
        self._recorder.begin_anew()
