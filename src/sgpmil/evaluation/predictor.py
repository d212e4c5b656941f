"""Predictions of a model for bags."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.gpu.resident import DeviceSource
from sgpmil.models.contract import MILModel, ModelOutput, Recordable
from sgpmil.models.likelihood import probabilities
from sgpmil.models.precision import dense_arithmetic, features_dtype, resolve_precision

MAX_INSTANCES = {"cpu": 2**15, "cuda": 2**19}
"""Most instances packed into one batch; a larger bag makes a batch of its own."""

_BYTES_PER_FEATURE = 40
"""Memory that an instance takes on its way through a model, for each of its features."""


def predict(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    class_names: tuple[str, ...] | None = None,
    with_instances: bool = True,
    device: torch.device | str | None = None,
    precision: str = "auto",
    on_bag: Callable[[str], None] | None = None,
) -> PredictionTable:
    """Predict bags, labelled or not.

    A slide's prediction does not depend on the other bags, on their order or on batching. Where
    the bags are a data set with other class names or another order of them, its labels are
    translated by name.

    Args:
        model: The model; it is left in evaluation mode.
        bags: Bags, or a data set.
        class_names: The model's class names; those of the data set, or of the model, where not
            given.
        with_instances: Whether to keep the scores of the instances.
        device: Device that computes; by default that of the model.
        precision: Arithmetic of the dense layers: ``32``, ``bf16``, or ``auto``, which is
            ``bf16`` on GPUs that have it.
        on_bag: Called with each slide's name when it is done.

    Raises:
        PredictionError: A bag does not have the number of features the model was trained on.
        LabelError: A label of the data set is not among the class names.
    """
    target = model.target
    if class_names is not None:
        target = ClassTarget(class_names)
        bags = bags.with_target(target) if isinstance(bags, BagDataset) else bags
    elif isinstance(bags, BagDataset) and bags.target.names:
        target = bags.target
    found = iter_predictions(
        model,
        bags,
        with_instances=with_instances,
        device=device,
        precision=precision,
        on_bag=on_bag,
    )
    return PredictionTable(tuple(found), target)


def iter_predictions(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    with_instances: bool = True,
    device: torch.device | str | None = None,
    precision: str = "auto",
    on_bag: Callable[[str], None] | None = None,
) -> Iterator[Prediction]:
    """Predict bags one after another; see `predict`."""
    # To walk through a model's modules takes as long as to predict a few slides.
    if any(module.training for module in model.modules()):
        model.eval()
    weights = next(model.parameters())
    if device is not None and not _is_on(weights, torch.device(device)):
        model.to(device)
        weights = next(model.parameters())
    found = "64" if weights.dtype == torch.float64 else resolve_precision(precision, weights.device)
    running: list[_Running] = []
    # A GPU computes a group while the one before it is summarised.
    ahead = 0 if weights.device.type == "cpu" else 1
    try:
        for group in _groups(bags, _most_instances(model, weights.device)):
            running.append(_Running(group, _forward(model, group, bags, found)))
            if len(running) > ahead:
                yield from _finished(running.pop(0), model.target, with_instances, on_bag)
    except Exception:
        # What was computed before a bag that cannot be is not lost.
        for group_before in running:
            yield from _finished(group_before, model.target, with_instances, on_bag)
        raise
    for last in running:
        yield from _finished(last, model.target, with_instances, on_bag)


def _is_on(weights: torch.Tensor, device: torch.device) -> bool:
    same_index = device.index in (None, weights.device.index)
    return weights.device.type == device.type and same_index


def _most_instances(model: MILModel, device: torch.device) -> int:
    most = MAX_INSTANCES[device.type]
    if device.type == "cpu":
        return most
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(most, free // (_BYTES_PER_FEATURE * model.in_dim)))


@dataclass(frozen=True, slots=True)
class _Running:
    """Bags and the model's output for them, which a GPU may not have computed yet."""

    bags: list[Bag]
    output: ModelOutput


@torch.no_grad()
def _forward(model: MILModel, group: list[Bag], bags: Iterable[Bag], precision: str) -> ModelOutput:
    for bag in group:
        if bag.feature_dim != model.in_dim:
            raise PredictionError(
                f"Expected bags of {model.in_dim} features, as the model was trained on, but "
                f"'{bag.slide_id}' has {bag.feature_dim}. Use embeddings of the same encoder."
            )
    device = next(model.parameters()).device
    with dense_arithmetic(precision, device):
        if device.type == "cpu" or precision == "64" or model.recordable is not Recordable.STEPS:
            return model(BagBatch.pack(group).to(device))
        batch = _standardised(model, group, bags, precision)
        with model.standardise.done_before():
            return model(batch)


def _standardised(
    model: MILModel, group: list[Bag], bags: Iterable[Bag], precision: str
) -> BagBatch:
    """Pack bags on a GPU, and standardise them in the same pass over their features."""
    device = next(model.parameters()).device
    source = bags.source if isinstance(bags, BagDataset) else None
    if isinstance(source, DeviceSource) and source.matrix.device == device:
        # They are there: no more is made of them than what their rows are taken into.
        batch = BagBatch.pack(group, source.matrix[:0]).to(device)
        matrix, starts = source.matrix, torch.tensor([source.start(b.slide_id) for b in group])
    else:
        batch = BagBatch.pack(group).to(device)
        matrix, starts = batch.features, batch.offsets[:-1]
    segments = batch.segments
    starts = starts.to(device, non_blocking=True)
    dtype = features_dtype(model, precision)
    features = model.standardise.take(matrix, starts, segments, dtype)
    return replace(batch, features=features, bounds=segments.bounds)


def _finished(
    running: _Running,
    target: Target,
    with_instances: bool,
    on_bag: Callable[[str], None] | None,
) -> Iterator[Prediction]:
    output, group = running.output, running.bags
    probs = probabilities(target, output.logits).cpu().numpy()
    scores = _scores(output, group) if with_instances else None
    for prediction in Prediction.from_batch(group, probs, scores):
        yield prediction
        if on_bag is not None:
            on_bag(prediction.slide_id)


def _groups(bags: Iterable[Bag], max_instances: int) -> Iterator[list[Bag]]:
    group: list[Bag] = []
    count = 0
    for bag in bags:
        if group and count + bag.num_instances > max_instances:
            yield group
            group, count = [], 0
        group.append(bag)
        count += bag.num_instances
    if group:
        yield group


def _scores(output: ModelOutput, group: list[Bag]) -> list[InstanceScores]:
    bounds = [0, *itertools.accumulate(bag.num_instances for bag in group)]
    attention, attention_std = _array(output.score), _array(output.score_std)
    evidence = None if output.evidence is None else _array(output.evidence)
    evidence_std = None if output.evidence_std is None else _array(output.evidence_std)
    margin_std = None if output.margin_std is None else _array(output.margin_std)
    return [
        InstanceScores(
            attention_mean=attention[start:end],
            attention_std=attention_std[start:end],
            evidence_mean=None if evidence is None else evidence[start:end],
            evidence_std=None if evidence_std is None else evidence_std[start:end],
            margin_std=None if margin_std is None else margin_std[start:end],
            coords=None if bag.coords is None else bag.coords.numpy(),
            patch_size=bag.patch_size,
            instance_labels=None if bag.instance_labels is None else bag.instance_labels.numpy(),
        )
        for bag, (start, end) in zip(group, itertools.pairwise(bounds), strict=True)
    ]


def _array(values: torch.Tensor) -> np.ndarray:
    return values.float().cpu().numpy()
