r"""Measures of a trained design on a set of the uncertainty study.

Keys of `measure`, with ``@shift`` for shifted bags:

========================================  ========================================================
``auc``, ``balanced_accuracy``, ``ace``,  slides; see `sgpmil.evaluation.metrics`
``nll``
``temperature``, ``ace_t``, ``nll_t``     after temperature scaling, fitted on the validation bags.
                                          It changes neither the ranking of two classes nor the
                                          predicted class, so the others stay as they are.
``errors_*``                              AUROC of finding wrong predictions by an uncertainty:
                                          ``max`` ($1 - \max_c p_c$), ``std`` (posterior standard
                                          deviation), ``mi`` (mutual information)
``aurc_*``                                area under the risk-coverage curve of the same
``auc@…``, ``nll@…``, ``nll_t@…``         shifted bags
``novelty_patch@…``                       AUROC of a patch's novelty: patches unlike training
                                          against all patches of the test bags
``novelty_slide@…``, ``found@…``          AUROC of a slide's novelty, shifted against test bags, and
                                          the share of shifted bags found when 5 % of the test bags
                                          are
``flag@…``, ``false_alarms``              share of shifted bags, and of test bags, with a p-value up
                                          to .05
``residual_patch@…``                      the same AUROC by the residual variance of the process
``attention``, ``evidence``, ``single``,  mean AUC of a score in positive bags, and the largest of
``best``                                  the three
``process_share``                         standard deviation over test patches of the process's
                                          part $B_i^\top m$ of the attention logit, divided by that
                                          of the whole mean
``variance_ratio``                        mean over test patches of posterior variance divided by
                                          prior variance
``prototypes``, ``inducing``              inducing points with the highest kernel value for at
                                          least one test patch, and their number
``nmi``, ``nmi_kmeans``                   normalised mutual information of the true class of a test
                                          patch with that inducing point, and with as many k-means
                                          clusters of the raw training features
``seconds_per_epoch``                     median, with all members of an ensemble
========================================  ========================================================
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgpmil.evaluation.metrics import get_metric, instance_auc
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.ranking import auroc, sensitivity_at_specificity
from sgpmil.evaluation.uncertainty.measures import (
    UncertaintyMeasure,
    error_auroc,
    selective_prediction,
)
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
from sgpmil.experiments.uncertainty_designs import Trained
from sgpmil.experiments.uncertainty_sets import Part, UncertaintySet
from sgpmil.gp.sparse import Posterior
from sgpmil.models.contract import MILModel
from sgpmil.models.process_use import process_use
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Bool, Float, Int

_UNCERTAINTIES: dict[str, UncertaintyMeasure] = {
    "max": "max_probability",
    "std": "std",
    "mi": "mutual_information",
}
_SLIDE_METRICS = ("auc", "balanced_accuracy", "ace", "nll")
_FLAG = 0.05
"""p-value up to which a slide is flagged as unlike training."""
_MOST_FOR_KMEANS = 20_000
_ROWS = 2**15

Columns = dict[str, float | None]


def measure(trained: Trained, data: UncertaintySet) -> Columns:
    """Measure a trained design on a set.

    Returns:
        The values by key, in the order of the module's table; None where one is not defined.
    """
    val, test = trained.predict(data.val), trained.predict(data.test.bags)
    shifted = {name: trained.predict(part.bags) for name, part in data.shifted.items()}
    found: dict[str, float] = {
        **slide_columns(val, test, shifted),
        **novelty_columns(test, shifted, data),
        **instance_columns(test),
        **process_columns(trained.model, data),
    }
    if trained.seconds_per_epoch is not None:
        found["seconds_per_epoch"] = trained.seconds_per_epoch
    return {key: None if math.isnan(value) else float(value) for key, value in found.items()}


def slide_columns(
    val: PredictionTable, test: PredictionTable, shifted: Mapping[str, PredictionTable]
) -> dict[str, float]:
    """Measure predictions of slides, before and after temperature scaling."""
    temperature = fit_temperature(val)
    scaled = temperature.apply(test)
    found = {key: get_metric(key)(test) for key in _SLIDE_METRICS}
    found["temperature"] = temperature.value
    found |= {f"{key}_t": get_metric(key)(scaled) for key in ("ace", "nll")}
    for short, name in _UNCERTAINTIES.items():
        found[f"errors_{short}"] = error_auroc(test, name)
    for short, name in _UNCERTAINTIES.items():
        found[f"aurc_{short}"] = selective_prediction(test, name).aurc
    for shift, table in shifted.items():
        found[f"auc@{shift}"] = get_metric("auc")(table)
        found[f"nll@{shift}"] = get_metric("nll")(table)
        found[f"nll_t@{shift}"] = get_metric("nll")(temperature.apply(table))
    return found


def novelty_columns(
    test: PredictionTable, shifted: Mapping[str, PredictionTable], data: UncertaintySet
) -> dict[str, float]:
    """Measure how well novelty finds patches and slides unlike training, where the model has it."""
    usual = _novelty(test)
    if usual is None:
        return {}
    p_values = _novelty_p(test)
    found = {"false_alarms": _flagged(p_values)}
    for shift, table in shifted.items():
        values, p_shifted = _novelty(table), _novelty_p(table)
        if values is not None:
            unseen = data.shifted[shift].unseen
            found[f"novelty_patch@{shift}"] = unseen_auroc(values, unseen, usual)
            scores, is_shifted = _against(-p_values, -p_shifted)
            found[f"novelty_slide@{shift}"] = auroc(scores, is_shifted)
            found[f"found@{shift}"] = sensitivity_at_specificity(scores, is_shifted, 1 - _FLAG)
            found[f"flag@{shift}"] = _flagged(p_shifted)
    return found


def _novelty_p(table: PredictionTable) -> Float[np.ndarray, " n"]:
    return np.array([p.novelty_p for p in table.predictions])


def _flagged(p_values: Float[np.ndarray, " n"]) -> float:
    return math.nan if np.isnan(p_values).any() else float((p_values <= _FLAG).mean())


def _novelty(table: PredictionTable) -> list[Float[np.ndarray, " _"]] | None:
    """Return the novelty of each slide's patches, where the predictions have it."""
    values = [None if p.instances is None else p.instances.novelty for p in table.predictions]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def unseen_auroc(
    shifted: Sequence[Float[np.ndarray, " _"]],
    unseen: Sequence[Bool[np.ndarray, " _"]],
    test: Sequence[Float[np.ndarray, " _"]],
) -> float:
    """Compute the AUROC of patches unlike training against all patches of the test bags.

    Args:
        shifted: Score of each patch of each shifted bag.
        unseen: Whether each of these patches is unlike training.
        test: Score of each patch of each test bag.
    """
    new = np.concatenate([v[mask] for v, mask in zip(shifted, unseen, strict=True)])
    return auroc(*_against(np.concatenate(test), new))


def _against(
    usual: Float[np.ndarray, " u"], new: Float[np.ndarray, " v"]
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    return np.concatenate([usual, new]), np.arange(len(usual) + len(new)) >= len(usual)


def instance_columns(table: PredictionTable) -> dict[str, float]:
    """Measure how well each score finds the target instances of positive bags."""
    areas: dict[str, float] = {}
    for kind in CLASS_SCORES:
        values = [instance_auc(one, kind) for one in table.predictions if one.label]
        known = [value for value in values if not math.isnan(value)]
        areas[kind] = float(np.mean(known)) if known else math.nan
    defined = [value for value in areas.values() if not math.isnan(value)]
    return {**areas, "best": max(defined, default=math.nan)}


@torch.no_grad()
def process_columns(model: MILModel, data: UncertaintySet) -> dict[str, float]:
    """Measure what the Gaussian process does at the patches of the test bags.

    Returns:
        The columns; none for a model without a process.
    """
    if not isinstance(model, SGPMIL):
        return {}
    model.eval()
    found: dict[str, float] = {}
    residuals, nearest = [], []

    def posteriors() -> Iterator[Posterior]:
        for rows in _patches(data.test):
            posterior, points = process_at(model, rows)
            residuals.append(posterior.residual_variance)
            nearest.append(points)
            yield posterior

    use = process_use(posteriors())
    found["process_share"] = use.share
    found["variance_ratio"] = use.variance_ratio
    prototypes = torch.cat(nearest).cpu().numpy()
    found["prototypes"] = len(np.unique(prototypes))
    found["inducing"] = model.settings.num_inducing
    found |= _cluster_columns(prototypes, model.settings.num_inducing, data)
    of_test = torch.cat(residuals).cpu().numpy()
    for shift, part in data.shifted.items():
        values = [process_at(model, rows)[0].residual_variance for rows in _patches(part)]
        new = torch.cat(values).cpu().numpy()[np.concatenate(part.unseen)]
        found[f"residual_patch@{shift}"] = auroc(*_against(of_test, new))
    return found


def process_at(
    model: SGPMIL, features: Float[Tensor, "T D"]
) -> tuple[Posterior, Int[Tensor, " T"]]:
    """Return the posterior at patches, and the inducing point of highest kernel value of each."""
    features = features.to(next(model.parameters()).device)
    inputs, whitening = model.gp_inputs(features), model.whitening()
    covariance = whitening.covariance.between(whitening.points, inputs)
    return model.gp.posterior(inputs, whitening), covariance.argmax(0)


def _patches(part: Part) -> Iterator[Float[Tensor, "T D"]]:
    """Yield the features of a part's instances in their order, some bags at a time."""
    group: list[Tensor] = []
    for bag in part.bags:
        group.append(bag.features.float())
        if sum(map(len, group)) >= _ROWS:
            yield torch.cat(group)
            group = []
    if group:
        yield torch.cat(group)


def _cluster_columns(
    prototypes: Int[np.ndarray, " T"], num_clusters: int, data: UncertaintySet
) -> dict[str, float]:
    """Compare nearest inducing points, and clusters of the raw features, with the true classes."""
    from sklearn.metrics import normalized_mutual_info_score

    if not data.test.classes:
        return {}
    classes = np.concatenate(data.test.classes)
    clusters = kmeans_of_features(data, num_clusters)
    return {
        "nmi": float(normalized_mutual_info_score(classes, prototypes)),
        "nmi_kmeans": float(normalized_mutual_info_score(classes, clusters)),
    }


def kmeans_of_features(data: UncertaintySet, num_clusters: int) -> Int[np.ndarray, " T"]:
    """Cluster the raw features of training patches, and return the cluster of each test patch."""
    from sklearn.cluster import MiniBatchKMeans

    generator = np.random.default_rng(data.seed)
    features = np.concatenate([bag.features.numpy() for bag in data.train]).astype(np.float32)
    rows = generator.permutation(len(features))[:_MOST_FOR_KMEANS]
    kmeans: Any = MiniBatchKMeans(
        min(num_clusters, len(rows)), random_state=data.seed, n_init=1, batch_size=4096
    ).fit(features[rows])
    return np.concatenate([kmeans.predict(rows.numpy()) for rows in _patches(data.test)])
