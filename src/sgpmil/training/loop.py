"""The training loop of one fold.

The learning rate and the random numbers of an epoch depend on the seed and the epoch's number
alone, so a resumed training ends with the same weights, bit by bit, as an uninterrupted one.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import TrainingError
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.prediction import Prediction, SlideName
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.models.contract import MILModel
from sgpmil.models.likelihood import probabilities
from sgpmil.training.batches import (
    PackedBatches,
    divide_step,
    epoch_batches,
    sequential_batches,
    store_reader,
)
from sgpmil.training.callbacks import Callback, FitProgress
from sgpmil.training.engines import Engine, OptimiserSteps, PlainEngine, ReplayEngine
from sgpmil.training.fabric import Fabric, Logger
from sgpmil.training.fold_files import FoldFiles
from sgpmil.training.optimisers import build_optimiser, load_optimiser, set_learning_rate
from sgpmil.training.recorded_bags import recorded_bags
from sgpmil.training.recorded_steps import recorded_steps
from sgpmil.training.settings import TrainingSettings, learning_rate
from sgpmil.training.turns import yield_turn


class TrainingLoop:
    """Trains a model on the bags of a fold.

    Args:
        model: The model, initialised, on the device of this process.
        train: Training bags.
        val: Validation bags, where there are any.
        settings: Training settings.
        fabric: The processes that train together.
        files: Files of the fold; only the first process has a folder.
        callbacks: Called at the start, after each epoch and at the end.
        loggers: Loggers that receive the metrics besides ``metrics.csv``.
        on_epoch: Called with the metrics of each epoch.
    """

    def __init__(
        self,
        model: MILModel,
        train: BagDataset,
        val: BagDataset | None,
        settings: TrainingSettings,
        fabric: Fabric,
        files: FoldFiles,
        *,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
        on_epoch: Callable[[Mapping[str, int | float]], None] | None = None,
    ) -> None:
        self.model = model
        self.train = train
        self.val = val
        self.settings = settings
        self.fabric = fabric
        self.files = files
        self.is_first = fabric.is_global_zero
        self.callbacks = callbacks if self.is_first else ()
        self.loggers = loggers if self.is_first else ()
        self.on_epoch = on_epoch if self.is_first else None
        optimiser = build_optimiser(settings, model)
        self.steps = OptimiserSteps(model, optimiser, settings, len(train), fabric)
        self.progress = FitProgress(model, settings, folder=files.folder)
        self.best_score = -math.inf
        self.best_weights: dict[str, Tensor] = {}
        self._reader = store_reader(train, pinned=fabric.device.type == "cuda")

    def run(self, *, resume: bool = False) -> None:
        """Train all epochs, or those that are left.

        Args:
            resume: Start after the last epoch that is on disk.

        Raises:
            TrainingError: A loss is not finite, or the model cannot compute a pass.
            CheckpointError: The checkpoint to resume from is damaged or of another model.
            OSError: A file of the fold cannot be written.
        """
        status = "failed"
        if resume:
            self._resume(self.fabric.broadcast(self.files.read_last()))
        engine = self._engine()
        try:
            self.files.start_metrics(self.progress.epoch + 1)
            for callback in self.callbacks:
                callback.on_fit_start(self.progress)
            for epoch in range(self.progress.epoch + 1, self.settings.epochs):
                if self._is_over():
                    break
                self._train_epoch(engine, epoch)
            for callback in self.callbacks:
                callback.on_fit_end(self.progress)
            status = "success"
        finally:
            engine.forget()
            for logger in self.loggers:
                logger.finalize(status)

    def _train_epoch(self, engine: Engine, epoch: int) -> None:
        rate = learning_rate(self.settings, epoch)
        set_learning_rate(self.steps.optimiser, rate, self.fabric.device)
        self.model.train()
        self.model.epoch = epoch
        self._prepare_model(epoch)
        batches = self._batches(epoch)
        self.steps.seed_epoch()
        try:
            losses = engine.epoch(batches)
        except TrainingError:
            self.files.save_model(self.model, "diverged")
            raise
        metrics = {"epoch": epoch, "learning_rate": rate}
        metrics |= self.validate() | {"train_loss": float(losses.mean())}
        is_best = self._is_best(metrics)
        self.progress.epoch, self.progress.metrics = epoch, metrics
        self.files.add_metrics(metrics)
        for logger in self.loggers:
            logger.log_metrics(dict(metrics), step=epoch)
        if is_best:
            self._keep_best()
        self.files.save_last(self._state())
        if self.on_epoch is not None:
            self.on_epoch(metrics)
        for callback in self.callbacks:
            callback.on_epoch_end(self.progress)
        self.progress.is_stopped = self.fabric.broadcast(self.progress.is_stopped)
        if self.progress.is_stopped:
            self.files.save_last(self._state())

    def _prepare_model(self, epoch: int) -> None:
        changed = False
        if self.is_first:
            device = self.fabric.device
            changed = self.model.start_epoch(
                epoch,
                epochs=self.settings.epochs,
                batches=(batch.to(device) for batch in sequential_batches(self.train)),
                num_bags=len(self.train),
                seed=self.settings.seed,
            )
        if self.fabric.world_size > 1 and self.fabric.broadcast(changed):
            self.model.load_state_dict(self.fabric.broadcast(self.model.state_dict()))

    def _batches(self, epoch: int) -> PackedBatches:
        batches = epoch_batches(
            self.train,
            seed=self.settings.seed,
            epoch=epoch,
            balanced=self.settings.balanced_sampling,
            bags_per_step=self.settings.bags_per_step,
            reader=self._reader,
        )
        if self.fabric.world_size == 1:
            return batches
        return batches.divided(self.fabric.global_rank, self.fabric.world_size)

    def _engine(self) -> Engine:
        plain = PlainEngine(self.steps)
        if self.fabric.world_size > 1:  # a recording cannot wait for other processes
            return plain
        recorded = recorded_steps(self.steps, self.train) or recorded_bags(self.steps, self.train)
        return plain if recorded is None else ReplayEngine(recorded, plain)

    @torch.inference_mode()
    def validate(self) -> dict[str, int | float]:
        """Return the metrics on the validation bags, with the loss on the scale of training.

        Metrics are of the probabilities that a prediction gives. The loss is the one that training
        minimises, for the class shares that it draws.
        """
        if self.val is None:
            return {}
        self.model.eval()
        total, predictions = 0.0, list[Prediction]()
        for batch in self._validation_batches():
            yield_turn()
            moved = batch.to(self.fabric.device, non_blocking=True)
            with _first_samples(self.model):
                output, loss = self.steps.forward(moved)
            total += float(loss.total) * moved.num_bags
            logits = self.model.corrected(output.logits)
            samples = probabilities(self.model.target, logits).cpu().numpy()
            labels = zip(batch.slide_ids, batch.labels.tolist(), strict=True)
            predictions += Prediction.from_batch([SlideName(s, s, y) for s, y in labels], samples)
        if self.fabric.world_size > 1:
            found: list[Any] = [None] * self.fabric.world_size
            torch.distributed.all_gather_object(found, (total, predictions))
            total = math.fsum(part for part, _ in found)
            by_name = {p.slide_id: p for _, part in found for p in part}
            predictions = [by_name[slide] for slide in self.val.slide_ids]
        table = PredictionTable(tuple(predictions), self.train.target)
        metrics: dict[str, int | float] = {"val_loss": total / len(self.val)}
        for key in ("balanced_accuracy", "auc"):
            metrics[f"val_{key}"] = METRICS[key].quick(table)
        # Sums of several GPUs may differ in the last digit; all must choose the same epoch.
        same: dict[str, int | float] = self.fabric.broadcast(metrics)
        return same

    def _validation_batches(self) -> Iterable[BagBatch]:
        """Return the validation bags of this process: each bag is in one of them."""
        assert self.val is not None  # noqa: S101 - asked before
        num_ranks, rank = self.fabric.world_size, self.fabric.global_rank
        if num_ranks == 1:
            return sequential_batches(self.val)
        own = divide_step(self.val.num_instances, num_ranks)[rank]
        slides = [self.val.slide_ids[position] for position in own]
        return sequential_batches(self.val.subset(slides)) if slides else ()

    def _is_best(self, metrics: Mapping[str, int | float]) -> bool:
        value = metrics.get(f"val_{self.settings.monitor}", math.nan)
        score = -value if self.settings.monitor == "loss" else value
        if not score > self.best_score:
            return False
        self.best_score, self.progress.best_epoch = score, int(metrics["epoch"])
        return True

    def _keep_best(self) -> None:
        """Keep the best model on disk, or in memory where nothing is written."""
        if self.files.folder is not None:
            self.files.save_model(self.model, "best")
        elif self.settings.select == "best":
            state = self.model.state_dict()
            self.best_weights = {name: v.detach().cpu().clone() for name, v in state.items()}

    def _is_over(self) -> bool:
        """Return whether a callback or early stopping ended the training."""
        if self.progress.is_stopped:
            return True
        num_stale = self.progress.epoch - self.progress.best_epoch
        is_stale = 0 < self.settings.patience <= num_stale
        return is_stale and self.progress.epoch + 1 >= self.settings.min_epochs

    def _state(self) -> dict[str, Any]:
        """Return everything that a resume needs, and nothing of recordings."""
        optimiser = self.steps.optimiser.state_dict()
        for group in optimiser["param_groups"]:
            group["lr"] = float(group["lr"])
            if "capturable" in group:
                group["capturable"] = False
        return {
            "epoch": self.progress.epoch,
            "model": self.model.state_dict(),
            "optimiser": optimiser,
            "gradient_scaler": self.steps.scaler.state_dict(),
            "best_score": self.best_score,
            "best_epoch": self.progress.best_epoch,
            "is_stopped": self.progress.is_stopped,
        }

    def _resume(self, state: Mapping[str, Any] | None) -> None:
        if state is None:
            return
        try:
            self.model.load_state_dict(state["model"])
            load_optimiser(self.steps.optimiser, state["optimiser"])
            if state["gradient_scaler"]:
                self.steps.scaler.load_state_dict(state["gradient_scaler"])
            self.best_score = float(state["best_score"])
            self.progress.best_epoch = operator.index(state["best_epoch"])
            self.progress.is_stopped = bool(state["is_stopped"])
            self.progress.epoch = self.model.epoch = operator.index(state["epoch"])
            if not -1 <= self.progress.best_epoch <= self.progress.epoch < self.settings.epochs:
                raise ValueError(f"epoch {self.progress.epoch} of {self.settings.epochs}")
        except Exception as error:  # a checkpoint of another model fails in many ways
            raise self.files.not_resumable(error) from error


@contextmanager
def _first_samples(model: MILModel) -> Iterator[None]:
    """Let a model predict by its first samples within the block, which is quicker."""
    before, model.is_exact = model.is_exact, False
    try:
        yield
    finally:
        model.is_exact = before
