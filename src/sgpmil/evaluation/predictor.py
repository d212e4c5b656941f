"""A model and bags become predictions."""

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import PredictionError
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.models.contract import MILModel, ModelOutput

__all__ = ["iter_predictions", "predict"]

MAX_INSTANCES = 32_768
"""Instances packed into one batch; a larger bag makes a batch of its own."""


def predict(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    class_names: tuple[str, ...] | None = None,
    with_instances: bool = True,
    device: torch.device | str | None = None,
    on_bag: Callable[[str], None] | None = None,
) -> PredictionTable:
    """Predict bags, labelled or not.

    A slide's prediction does not depend on the other bags, on their order or on batching. Where
    the bags are a data set with other class names or another order of them, its labels are
    translated by name.

    Args:
        model: The model; it is left in evaluation mode.
        bags: Bags, or a data set.
        class_names: The model's class names; those of the data set, or numbers, where not given.
        with_instances: Whether to keep the scores of the instances.
        device: Where to compute; where the model is, by default.
        on_bag: Called with each slide's name when it is done.

    Raises:
        PredictionError: A bag does not have the number of features the model was trained on.
        LabelError: A label of the data set is not among the class names.
    """
    if isinstance(bags, BagDataset) and class_names is not None:
        bags = bags.with_classes(class_names)
    own_names = bags.class_names if isinstance(bags, BagDataset) else ()
    names = class_names or own_names or tuple(str(c) for c in range(model.num_classes))
    found = iter_predictions(
        model, bags, with_instances=with_instances, device=device, on_bag=on_bag
    )
    return PredictionTable(tuple(found), names)


def iter_predictions(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    with_instances: bool = True,
    device: torch.device | str | None = None,
    on_bag: Callable[[str], None] | None = None,
) -> Iterator[Prediction]:
    """Predict bags one after another; see `predict`."""
    model.eval()
    if device is not None:
        model.to(device)
    for group in _groups(bags):
        for prediction in _predict_group(model, group, with_instances):
            yield prediction
            if on_bag is not None:
                on_bag(prediction.slide_id)


@torch.no_grad()
def _predict_group(model: MILModel, group: list[Bag], with_instances: bool) -> list[Prediction]:
    for bag in group:
        if bag.feature_dim != model.in_dim:
            raise PredictionError(
                f"Expected bags of {model.in_dim} features, as the model was trained on, but "
                f"'{bag.slide_id}' has {bag.feature_dim}. Use embeddings of the same encoder."
            )
    batch = BagBatch.pack(group).to(next(model.parameters()).device)
    output = model(batch)
    bounds = batch.offsets.tolist()
    probs = output.probs.double().cpu().numpy()
    scores = _scores(output, group, bounds) if with_instances else [None] * len(group)
    return [
        Prediction.from_samples(bag.slide_id, bag.case_id, bag.label, probs[b], scores[b])
        for b, bag in enumerate(group)
    ]


def _groups(bags: Iterable[Bag]) -> Iterator[list[Bag]]:
    group: list[Bag] = []
    count = 0
    for bag in bags:
        if group and count + bag.num_instances > MAX_INSTANCES:
            yield group
            group, count = [], 0
        group.append(bag)
        count += bag.num_instances
    if group:
        yield group


def _scores(output: ModelOutput, group: list[Bag], bounds: list[int]) -> list[InstanceScores]:
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
