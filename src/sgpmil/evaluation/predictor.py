"""Predictions of a model, or of several together, for bags."""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.feature_origin import (
    FeatureOriginWarning,
    other_features,
    other_features_sentence,
)
from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import PredictionError
from sgpmil.evaluation.ensemble import mixture
from sgpmil.evaluation.novelty_warning import warn_where_most_are_unlike
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.seen_slides import mark_seen
from sgpmil.gpu.resident import DeviceSource
from sgpmil.models.contract import MILModel, ModelOutput, Recordable
from sgpmil.models.likelihood import class_log_odds, log_odds_moments, probabilities
from sgpmil.models.precision import dense_arithmetic, features_dtype, resolve_precision
from sgpmil.models.prevalence import Prevalence, expected_shares
from sgpmil.processes import threads_for
from sgpmil.shapes import Float

MAX_INSTANCES = {"cpu": 2**15, "cuda": 2**19}
"""Most instances packed into one batch; a larger bag makes a batch of its own."""

_INSTANCES_AT_ONCE = 2**15
"""Instances of bags that each of several models predicts before the next one does."""

_BYTES_PER_FEATURE = 40
"""Memory that an instance takes on its way through a model, for each of its features."""


def predict(
    model: MILModel | Sequence[MILModel],
    bags: Iterable[Bag],
    *,
    class_names: tuple[str, ...] | None = None,
    with_instances: bool = True,
    device: torch.device | str | None = None,
    precision: str = "auto",
    prevalence: Prevalence | None = None,
    novelty: bool = True,
    warn: bool = True,
    on_bag: Callable[[str], None] | None = None,
) -> PredictionTable:
    """Predict bags, labelled or not.

    A slide's prediction does not depend on the other bags, on their order or on batching. Where
    the bags are a data set with other class names or another order of them, its labels are
    translated by name.

    Slides that a model of `sgpmil.fit` was trained or validated on are marked (`Prediction.seen`).
    Several models predict together: their posteriors are mixed (`sgpmil.evaluation.ensemble`).

    Args:
        model: The model, or several of the same classes; they are left in evaluation mode.
        bags: Bags, or a data set.
        class_names: The model's class names; those of the data set, or of the model, where not
            given.
        with_instances: Whether to keep the scores of the instances.
        device: Device that computes; by default that of the model.
        precision: Arithmetic of the dense layers: ``32``, ``bf16``, or ``auto``, which is
            ``bf16`` on GPUs that have it.
        prevalence: Class shares among the bags, which the probabilities are for: ``training``,
            ``balanced``, the share of the second of two classes, or a share for each class; by
            default those that the model was trained to answer for.
        novelty: Whether to compare slides with the training slides, where the model can.
        warn: Whether to warn where most of the slides are unlike the training slides
            (`NoveltyWarning`), or their features are of another encoder, magnification or patch
            size (`FeatureOriginWarning`).
        on_bag: Called with each slide's name when it is done.

    Raises:
        PredictionError: A bag does not have the number of features the model was trained on.
        LabelError: A label of the data set is not among the class names.
        SettingsError: The prevalence does not fit the classes.
    """
    models = _several(model)
    target = models[0].target
    if class_names is not None:
        known = (target, bags.target) if isinstance(bags, BagDataset) else (target,)
        named = (found for found in known if found.names == tuple(class_names))
        target = next(named, ClassTarget(tuple(class_names)))
        bags = bags.with_target(target) if isinstance(bags, BagDataset) else bags
    elif isinstance(bags, BagDataset) and bags.target.names:
        target = bags.target
    if prevalence is not None and (given := expected_shares(prevalence, target)) is not None:
        prevalence = dict(zip(models[0].target.names, given, strict=True))  # may have other names
    found = iter_predictions(
        models,
        bags,
        with_instances=with_instances,
        device=device,
        precision=precision,
        prevalence=prevalence,
        novelty=novelty,
        on_bag=on_bag,
    )
    seen = SeenSlides.joined(one.seen for one in models)
    if seen:
        digests = bags.slide_digests() if isinstance(bags, BagDataset) else {}
        found = (mark_seen(each, seen, digests.get(each.slide_id, "")) for each in found)
    if warn and isinstance(bags, BagDataset):
        warn_of_other_features(models, bags)
    table = PredictionTable(tuple(found), target)
    if warn:
        warn_where_most_are_unlike(table, num_training_slides(models))
    return table


def warn_of_other_features(
    models: Sequence[MILModel], bags: BagDataset, stacklevel: int = 3
) -> None:
    """Warn where bags state another encoder, magnification or patch side than those of training."""
    found = other_features((model.origin for model in models), bags)
    if found:
        warnings.warn(other_features_sentence(found), FeatureOriginWarning, stacklevel=stacklevel)


def num_training_slides(models: Sequence[MILModel]) -> int:
    """Return the number of training slides that the p-values of novelty are of.

    Those of several models are twice their mean, so that the smallest possible one is that of half
    as many slides.
    """
    fewest = min(model.novelty.num_slides for model in models)
    return fewest if len(models) == 1 else max(0, (1 + fewest) // 2 - 1)


def iter_predictions(
    model: MILModel | Sequence[MILModel],
    bags: Iterable[Bag],
    *,
    with_instances: bool = True,
    device: torch.device | str | None = None,
    precision: str = "auto",
    prevalence: Prevalence | None = None,
    novelty: bool = True,
    on_bag: Callable[[str], None] | None = None,
) -> Iterator[Prediction]:
    """Predict bags one after another; see `predict`."""
    of_model = partial(
        _predictions_of_model,
        with_instances=with_instances,
        device=device,
        precision=precision,
        prevalence=prevalence,
        novelty=novelty,
    )
    models = _several(model)
    if len(models) == 1:
        yield from of_model(models[0], bags, on_bag=on_bag)
        return
    # Bags are read once, whatever the number of models.
    for some in _groups(bags, _INSTANCES_AT_ONCE):
        for each in zip(*[of_model(one, some) for one in models], strict=True):
            prediction = mixture(each)
            yield prediction
            if on_bag is not None:
                on_bag(prediction.slide_id)


def _several(model: MILModel | Sequence[MILModel]) -> tuple[MILModel, ...]:
    return (model,) if isinstance(model, MILModel) else tuple(model)


def _predictions_of_model(
    model: MILModel,
    bags: Iterable[Bag],
    *,
    with_instances: bool,
    device: torch.device | str | None,
    precision: str,
    prevalence: Prevalence | None,
    novelty: bool,
    on_bag: Callable[[str], None] | None = None,
) -> Iterator[Prediction]:
    # To walk through a model's modules takes as long as to predict a few slides.
    if any(module.training for module in model.modules()):
        model.eval()
    weights = next(model.parameters())
    if device is not None and not _is_on(weights, torch.device(device)):
        model.to(device)
        weights = next(model.parameters())
    found = "64" if weights.dtype == torch.float64 else resolve_precision(precision, weights.device)
    finished = partial(_finished, model=model, prevalence=prevalence, on_bag=on_bag)
    running: list[_Running] = []
    # A GPU computes a group while the one before it is summarised.
    ahead = 0 if weights.device.type == "cpu" else 1
    try:
        for group in _groups(bags, _most_instances(model, weights.device)):
            running.append(_forward(model, group, bags, found, with_instances, novelty))
            if len(running) > ahead:
                yield from finished(running.pop(0))
    except Exception:
        # What was computed before a bag that cannot be is not lost.
        for group_before in running:
            yield from finished(group_before)
        raise
    for last in running:
        yield from finished(last)


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
    """Bags and the model's output for them, which a GPU may not have computed yet.

    Args:
        bags: The bags.
        output: The model's output.
        single: Logits of a bag of each instance alone; None where no scores of instances are
            wanted.
        novelty: Novelty of each instance; None where the model cannot tell it.
    """

    bags: list[Bag]
    output: ModelOutput
    single: Float[torch.Tensor, "S T C"] | None
    novelty: Float[torch.Tensor, " T"] | None


@torch.no_grad()
def _forward(
    model: MILModel,
    group: list[Bag],
    bags: Iterable[Bag],
    precision: str,
    with_instances: bool,
    novelty: bool,
) -> _Running:
    for bag in group:
        if bag.feature_dim != model.in_dim:
            raise PredictionError(
                f"Expected bags of {model.in_dim} features, as the model was trained on, but "
                f"'{bag.slide_id}' has {bag.feature_dim}. Use embeddings of the same encoder."
            )
    device = next(model.parameters()).device
    is_plain = device.type == "cpu" or precision == "64" or model.recordable is not Recordable.STEPS
    with dense_arithmetic(precision, device), contextlib.ExitStack() as standardised:
        if device.type == "cpu":
            rows = sum(bag.num_instances for bag in group)
            weights = sum(one.numel() for one in model.parameters())
            standardised.enter_context(threads_for(rows * weights))
        novel = None
        if is_plain:
            batch = BagBatch.pack(group).to(device)
            if novelty and model.novelty.is_fitted:
                novel = model.novelty(batch.features)
        else:
            batch, matrix, starts = _on_device(group, bags, device)
            if novelty and model.novelty.is_fitted:
                novel = model.novelty.of_rows(matrix, starts, batch.segments)
            # Standardised in the pass over the features that takes the rows.
            dtype = features_dtype(model, precision)
            features = model.standardise.take(matrix, starts, batch.segments, dtype)
            batch = replace(batch, features=features)
            standardised.enter_context(model.standardise.done_before())
        output = model(batch)
        single = model.single_logits(batch, output) if with_instances else None
    return _Running(group, output, single, novel)


def _on_device(
    group: list[Bag], bags: Iterable[Bag], device: torch.device
) -> tuple[BagBatch, torch.Tensor, torch.Tensor]:
    """Pack bags on a GPU; return with them a matrix, and the first row of each bag in it."""
    source = bags.source if isinstance(bags, BagDataset) else None
    if isinstance(source, DeviceSource) and source.matrix.device == device:
        # They are there: no more is made of them than what their rows are taken into.
        batch = BagBatch.pack(group, source.matrix[:0]).to(device)
        matrix, starts = source.matrix, torch.tensor([source.start(b.slide_id) for b in group])
    else:
        batch = BagBatch.pack(group).to(device)
        matrix, starts = batch.features, batch.offsets[:-1]
    batch = replace(batch, bounds=batch.segments.bounds)
    return batch, matrix, starts.to(device, non_blocking=True)


def _finished(
    running: _Running,
    model: MILModel,
    prevalence: Prevalence | None,
    on_bag: Callable[[str], None] | None,
) -> Iterator[Prediction]:
    output, group, target = running.output, running.bags, model.target
    scores = None
    if running.single is not None:
        single = model.corrected(running.single, prevalence)
        scores = _scores(replace(running, single=single), target)
    by_place: dict[int, Prediction] = {}
    # Repeated samples say nothing, and of many small bags take much memory.
    for rows, logits in _different_samples(output):
        probs = probabilities(target, model.corrected(logits, prevalence)).cpu().numpy()
        if not np.isfinite(probs).all():
            raise _no_probabilities(group)
        some = None if scores is None else [scores[row] for row in rows]
        summarised = Prediction.from_batch([group[row] for row in rows], probs, some)
        by_place.update(zip(rows, summarised, strict=True))
    found = [by_place[row] for row in range(len(group))]
    if running.novelty is not None:
        slides = model.novelty.of_slides(running.novelty, torch.tensor(_bounds(group)))
        found = [
            replace(prediction, novel_share=slide.share, novelty_p=slide.p_value)
            for prediction, slide in zip(found, slides, strict=True)
        ]
    for prediction in found:
        yield prediction
        if on_bag is not None:
            on_bag(prediction.slide_id)


def _no_probabilities(group: Sequence[Bag]) -> PredictionError:
    """Return the error of probabilities that are not finite, of finite features.

    Raises:
        BagError: Features are not finite. A packed store checks them when it is written alone.
    """
    for bag in group:
        replace(bag, is_finite=False)
    largest = max(group, key=lambda bag: float(bag.features.abs().max()))
    return PredictionError(
        f"Expected probabilities of slides such as '{largest.slide_id}', but the model gives NaN; "
        f"its largest feature is {float(largest.features.abs().max()):g}. Check that the features "
        "and the model are of one encoder, and that the model's weights are finite."
    )


def _different_samples(
    output: ModelOutput,
) -> Iterator[tuple[list[int], Float[torch.Tensor, "_ S C"]]]:
    """Yield bags with as many different samples each, and these samples."""
    if output.num_different is None:
        yield list(range(len(output.logits))), output.logits
        return
    numbers = output.num_different.tolist()
    for number in sorted(set(numbers)):
        rows = [row for row, own in enumerate(numbers) if own == number]
        yield rows, output.logits[rows, :number]


def _bounds(group: list[Bag]) -> list[int]:
    return [0, *itertools.accumulate(bag.num_instances for bag in group)]


def _groups(bags: Iterable[Bag], max_instances: int) -> Iterator[list[Bag]]:
    group: list[Bag] = []
    count = 0
    for bag in bags:
        if not isinstance(bag, Bag):
            raise PredictionError(
                f"Expected a BagDataset or bags to predict, but got {type(bag).__name__}. Make "
                "them with sgpmil.read_bags(folder) or sgpmil.BagDataset.from_arrays(arrays)."
            )
        if group and count + bag.num_instances > max_instances:
            yield group
            group, count = [], 0
        group.append(bag)
        count += bag.num_instances
    if group:
        yield group


def _scores(running: _Running, target: Target) -> list[InstanceScores]:
    output, group, single = running.output, running.bags, running.single
    values = {
        "attention_mean": output.score,
        "attention_std": output.score_std,
        "evidence_mean": output.evidence,
        "evidence_std": output.evidence_std,
        "margin_std": output.margin_std,
        **({} if single is None else _single_scores(single, output.instance_logits_std, target)),
        "novelty": running.novelty,
    }
    arrays = {name: _array(value) for name, value in values.items() if value is not None}
    return [
        InstanceScores(
            **{name: array[start:end] for name, array in arrays.items()},
            coords=None if bag.coords is None else bag.coords.numpy(),
            patch_size=bag.patch_size,
            instance_labels=None if bag.instance_labels is None else bag.instance_labels.numpy(),
        )
        for bag, (start, end) in zip(group, itertools.pairwise(_bounds(group)), strict=True)
    ]


def _single_scores(
    logits: Float[torch.Tensor, "S T C"],
    logits_std: Float[torch.Tensor, "T C"] | None,
    target: Target,
) -> dict[str, torch.Tensor | None]:
    """Summarise what the model gives a bag of each instance alone: samples, or mean and std."""
    if logits_std is not None and len(logits) == 1:
        mean, std, expected = log_odds_moments(logits[0], logits_std)
        return {"single_mean": mean, "single_std": std, "single_prob": expected}
    log_odds = class_log_odds(logits)
    std, mean = torch.std_mean(log_odds, 0, correction=min(1, len(logits) - 1))
    # Of one sample, the probability follows from the log-odds.
    probs = None if len(logits) == 1 else probabilities(target, logits.transpose(0, 1)).mean(1)
    return {"single_mean": mean, "single_std": std, "single_prob": probs}


def _array(values: torch.Tensor) -> np.ndarray:
    return values.float().cpu().numpy()
