"""Training steps that a GPU records once as CUDA graphs and replays.

A step on a GPU is some two hundred small kernels. Launching them one by one takes several times as
long as running them; a CUDA graph launches all of them at once, but for one number of bags and
rows. So each step is filled up to one of a few numbers of rows by an extra bag that the loss
ignores. Where all training bags have one size, nothing is filled up, and models can be recorded
whose arithmetic depends on the size of a bag. A small *plan* on the device says which rows of the
resident features a step takes; the plans of an epoch are sent there together. Nothing waits for the
GPU until the epoch ends.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.segments import Segments
from sgpmil.gpu.adam import AdamStep
from sgpmil.gpu.programs import runs_triton
from sgpmil.gpu.recording import Recorder, Recording
from sgpmil.gpu.resident import DeviceSource
from sgpmil.models.contract import MILModel, Recordable
from sgpmil.models.embedding import InstanceLinear
from sgpmil.models.precision import features_dtype
from sgpmil.shapes import Float
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import NotRecordableError, OptimiserSteps, TrainingState
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.turns import yield_turn

_LOG = logging.getLogger(__name__)

_LEAST_ROWS = 256
_FINE_ROWS = 2048
_MANY_ROWS = 2**15
MOST_ROWS = 2**18
"""Most rows of a recorded step; the backward pass of larger ones computes parts again."""


def filled_rows(rows: int) -> int:
    """Return the number of rows that a recorded step is filled up to.

    The time of a small step does not depend on its rows. Of larger ones a twentieth is filler, of
    the largest a tenth: recording one more size takes as long as dozens of steps.

    Example:
        >>> [filled_rows(n) for n in (1, 300, 1500, 2200, 80_000)]
        [256, 384, 2048, 2304, 92800]
    """
    steps_per_doubling = 8 if _FINE_ROWS < rows <= _MANY_ROWS else 2 if rows <= _FINE_ROWS else 4
    doublings = math.log2(max(rows, _LEAST_ROWS) / _LEAST_ROWS)
    # The small number keeps an exact size from being rounded up to the next.
    found = _LEAST_ROWS * 2 ** (
        math.ceil(steps_per_doubling * doublings - 1e-9) / steps_per_doubling
    )
    return max(rows, 128 * math.ceil(found / 128 - 1e-9))


def recorded_steps(steps: OptimiserSteps, train: BagDataset) -> "RecordedSteps | None":
    """Return the engine of recorded steps; None where model, settings or bags rule it out."""
    possible = can_record(steps.model, steps.settings, train)
    return RecordedSteps(steps, train) if possible else None


def can_record(model: MILModel, settings: TrainingSettings, train: BagDataset) -> bool:
    """Return whether steps of a model can be recorded."""
    is_recordable = model.recordable is Recordable.STEPS or (
        # One bag a step is left to `sgpmil.training.recorded_bags`.
        needs_one_size(model) and has_one_size(train) and settings.bags_per_step > 1
    )
    return (
        isinstance(train.source, DeviceSource)
        and runs_triton(train.source.matrix)
        and is_recordable
        and settings.precision in ("auto", "32", "bf16")
        and settings.optimiser in ("adamw", "adam")
        and settings.accumulate_steps == 1
    )


def needs_one_size(model: MILModel) -> bool:
    """Return whether steps of a model can be recorded where all bags have one size, and only then.

    Coordinates are not part of a recorded step.
    """
    return model.recordable is Recordable.BAGS and not model.uses_coordinates


def has_one_size(train: BagDataset) -> bool:
    """Return whether all bags have as many instances."""
    return len(set(train.num_instances)) == 1


@dataclass(frozen=True)
class _Step:
    """A recorded step.

    Args:
        recording: The CUDA graph, whose result is the loss.
        plan: Memory in which it finds the rows that it takes.
        table: Memory in which it finds the addresses of its gradients.
    """

    recording: Recording
    plan: Tensor
    table: Tensor


class RecordedSteps:
    """Trains a model by recorded steps.

    Args:
        steps: The model, its optimiser and settings.
        train: Training bags, on the device.
    """

    def __init__(self, steps: OptimiserSteps, train: BagDataset) -> None:
        if not isinstance(train.source, DeviceSource):
            raise TypeError("Expected bags on a device.")
        self.steps = steps
        self.matrix = train.source.matrix
        self._starts = [train.source.start(slide_id) for slide_id in train.slide_ids]
        self._sizes = list(train.num_instances)
        self._labels = [-1 if label is None else label for label in train.labels]
        self._recorded: dict[tuple[int, int], _Step] = {}
        self._halves = HalfWeights(steps.model if steps.settings.precision == "bf16" else None)
        self._adam: AdamStep | None = None
        self._recorder = Recorder(self.matrix.device)
        self._is_filled = not needs_one_size(steps.model)
        self._in_warmup = steps.model.in_warmup

    def can_take(self, batches: PackedBatches) -> bool:
        """Return whether every step of an epoch is small enough to be recorded."""
        return max(sum(self._sizes[i] for i in group) for group in batches.groups) <= MOST_ROWS

    def epoch(self, batches: PackedBatches) -> Float[Tensor, " _"]:
        """Take a step with each batch, and return the losses.

        Raises:
            NotRecordableError: A step of bags of one size cannot be recorded.
        """
        groups = batches.groups
        if self.steps.model.in_warmup != self._in_warmup:
            self._in_warmup = self.steps.model.in_warmup
            self.forget()
            self._recorder.begin_anew()
        adam = self._adam or self._prepare(groups[0])
        self._halves.refresh()
        plans = [self._plan(group) for group in groups]
        device = self.matrix.device
        flat = torch.tensor([number for plan in plans for number in plan.numbers])
        sent = flat.pin_memory().to(device, non_blocking=True)
        losses = torch.empty(len(groups), device=device)
        start = 0
        for number, plan in enumerate(plans):
            yield_turn()
            end = start + len(plan.numbers)
            self._step(adam, plan, sent[start:end], losses[number])
            start = end
        return losses

    def forget(self) -> None:
        """Drop the recordings, each of which refers to this object."""
        self._recorded.clear()

    def _step(self, adam: AdamStep, plan: "_Plan", numbers: Tensor, loss: Tensor) -> None:
        key = plan.num_bags, plan.num_rows
        found = self._recorded.get(key)
        if found is None:
            found = self._recorded[key] = self._record(adam, plan, numbers)
        found.plan.copy_(numbers)
        found.recording.replay()
        loss.copy_(found.recording.result)

    def _plan(self, group: Sequence[int]) -> "_Plan":
        sizes = [self._sizes[i] for i in group]
        starts, labels = [self._starts[i] for i in group], [self._labels[i] for i in group]
        return _Plan.of(sizes, starts, labels, is_filled=self._is_filled)

    def _prepare(self, group: Sequence[int]) -> AdamStep:
        """Make the optimiser ready: its state must exist before a step is recorded."""
        optimiser, device = self.steps.optimiser, self.matrix.device
        groups = optimiser.param_groups
        rates = torch.tensor([float(part["lr"]) for part in groups], device=device)
        for part, rate in zip(groups, rates.unbind(), strict=True):
            part["capturable"] = True
            part["lr"] = rate  # a view: the recorded step reads all of them
        state = TrainingState(self.steps)
        plan = self._plan(group)
        with self._recorder.aside():
            self._compute(plan, torch.tensor(plan.numbers, device=device))
            self.steps.step()
        state.restore()
        if not isinstance(optimiser, (torch.optim.Adam, torch.optim.AdamW)):
            raise TypeError(f"Expected Adam or AdamW, but got {type(optimiser).__name__}.")
        clip = self.steps.settings.gradient_clip
        self._adam = AdamStep(optimiser, rates, clip, self._halves.by_parameter)
        return self._adam

    def _record(self, adam: AdamStep, plan: "_Plan", numbers: Tensor) -> _Step:
        static, table = numbers.clone(), adam.table()

        def step() -> Tensor:
            with self._halves.in_use():
                loss = self._compute(plan, static)
            adam.launch(table)
            return loss

        # A table of zeros moves no weights; models whose bags are recorded also keep statistics.
        before = None if self._is_filled else TrainingState(self.steps)
        with self._recorder.aside():
            step()
        if before is not None:
            before.restore()
        adam.forget_gradients()  # those of each recording are its own
        try:
            recording = self._recorder.record(step)
        except RuntimeError as error:
            if self._is_filled or isinstance(error, torch.OutOfMemoryError):
                raise
            _LOG.info("Steps are not recorded: %s", error)
            raise NotRecordableError from error
        adam.fill(table)
        adam.forget_gradients()
        return _Step(recording, static, table)

    def _compute(self, plan: "_Plan", numbers: Tensor) -> Float[Tensor, ""]:
        model, settings = self.steps.model, self.steps.settings
        num_parts = len(plan.offsets) - 1
        bounds, starts, labels = numbers.split([num_parts + 1, num_parts, plan.num_bags])
        segments = Segments(plan.offsets, bounds)
        dtype = features_dtype(model, settings.precision)
        features = model.standardise.take(self.matrix, starts, segments, dtype)
        batch = BagBatch(
            features,
            plan.offsets,
            labels,
            slide_ids=("",) * num_parts,
            bounds=bounds,
        )
        with model.standardise.done_before():
            _, loss = self.steps.forward(batch)
        self.steps.backward(loss)
        return loss.total.detach()


@dataclass(frozen=True)
class _Plan:
    """The rows that a step takes.

    Args:
        num_bags: Bags of the step, without one that fills it up.
        offsets: First row of each bag, that one included, and the end of the last.
        numbers: Offsets, first rows in the resident features, and labels: what is sent.
    """

    num_bags: int
    offsets: Tensor
    numbers: list[int]

    @property
    def num_rows(self) -> int:
        """Rows of the step, filled up."""
        return self.numbers[len(self.offsets) - 1]

    @staticmethod
    def of(
        sizes: Sequence[int], starts: Sequence[int], labels: Sequence[int], *, is_filled: bool
    ) -> "_Plan":
        """Plan a step of bags of some sizes, which start at some rows."""
        ends = list(accumulate(sizes))
        filler = [filled_rows(ends[-1])] if is_filled else []
        offsets = [0, *ends, *filler]
        numbers = [*offsets, *starts, *(0 for _ in filler), *labels]
        return _Plan(len(sizes), torch.tensor(offsets), numbers)


class HalfWeights:
    """Copies of the linear layers' parameters in half precision, which the optimiser updates.

    Under autocast every step casts the weights and casts their gradients back, two small kernels a
    tensor. In recorded steps the layers use copies, whose gradients are what autocast's would be
    before they are cast.

    Args:
        model: The model whose `InstanceLinear` layers are copied; None for none.
    """

    def __init__(self, model: MILModel | None) -> None:
        modules = () if model is None else model.modules()
        self._layers = [module for module in modules if isinstance(module, InstanceLinear)]
        self.by_parameter: dict[Tensor, Tensor] = {
            p: p.detach().bfloat16().requires_grad_(p.requires_grad)
            for layer in self._layers
            for p in layer.parameters()
        }

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters again, after a resume or plain steps changed them."""
        for parameter, half in self.by_parameter.items():
            half.copy_(parameter)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute with the copies while the block runs."""
        before = [dict(layer._parameters) for layer in self._layers]
        for layer in self._layers:
            for name, parameter in layer._parameters.items():
                if parameter is not None:
                    layer._parameters[name] = self.by_parameter[parameter]  # type: ignore[assignment]
        try:
            yield
        finally:
            for layer, parameters in zip(self._layers, before, strict=True):
                layer._parameters.update(parameters)
