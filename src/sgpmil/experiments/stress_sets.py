r"""Bags for stress: large bags with few targets, wrong labels, few bags.

=======================  =========================================================================
``witness-1`` …          1,000 to 20,000 instances a bag, log-uniform, of 1024 features; in
                         positive bags 1, .3, .2 or .1 % of the instances are shifted in one
                         direction
``digits-20`` …          20 to 500 training bags of 8 to 12 MNIST images; positive bags have one
                         or two nines
``digits-200-noise-5`` … the same with 200 training bags; 5, 10 or 20 % of the training and
                         validation bags have the other label
``camelyon``             bags in the form of CAMELYON16: 216 + 54 + 129 bags of 200 to 12,000
                         instances, log-normal; .1 to 20 % of the instances of positive bags
                         are shifted
=======================  =========================================================================

An instance of ``witness`` and ``camelyon`` is one of 20 Gaussian clusters. Each part (training,
validation, test) has a pool of background instances of its own, from which its bags are dealt:
bags share instances as slides share tissue, and a set is drawn in seconds.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np

from sgpmil.bags.dataset import BagDataset
from sgpmil.experiments.design_study import DrawnSet
from sgpmil.experiments.uncertainty_sets import (
    DIGIT_DESIGNS,
    DigitDesign,
    Part,
    UncertaintySet,
    digit_set,
)
from sgpmil.shapes import Float


@dataclass(frozen=True)
class PooledDesign:
    """Contents of bags that are dealt from pools of instances.

    Args:
        rates: Smallest and largest share of a positive bag's instances that are shifted,
            log-uniform between.
        sizes: Smallest and largest number of instances of a bag.
        law: Distribution of the sizes: ``uniform`` in the logarithm, or ``normal`` in it.
        counts: Numbers of bags to train on, to validate and to test.
        positive: Share of positive bags.
        dim: Number of features.
        pool: Number of background instances of a part.
        clusters: Number of clusters of background instances.
        spread: Standard deviation of a feature within a cluster, and of the clusters' centres.
        shift: Length of the shift over the root of the number of features.
    """

    rates: tuple[float, float]
    sizes: tuple[int, int] = (1000, 20_000)
    law: Literal["uniform", "normal"] = "uniform"
    counts: tuple[int, int, int] = (100, 30, 60)
    positive: float = 0.5
    dim: int = 1024
    pool: int = 40_000
    clusters: int = 20
    spread: float = 0.5
    shift: float = 0.625


WITNESS_PERCENT = (1.0, 0.3, 0.2, 0.1)
"""Percentages of shifted instances in positive bags."""

TRAINING_BAGS = (20, 50, 100, 200, 500)
"""Numbers of training bags of digits."""

NOISE_PERCENT = (0, 5, 10, 20)
"""Percentages of bags with the other label."""

NOISE_BAGS = 200
"""Training bags of the sets with wrong labels."""

CAMELYON = PooledDesign(
    rates=(0.001, 0.2),
    sizes=(200, 12_000),
    law="normal",
    counts=(216, 54, 129),
    positive=0.4,
)
_LOG_MEDIAN, _LOG_SD = np.log(2200.0), 0.6
"""Mean and standard deviation of the logarithm of the sizes of the law ``normal``."""

_QUICK_DIGITS = (12, 24)
"""Most training bags, and test bags, of a quick study."""


def witness_set(percent: float, *, quick: bool = False) -> DrawnSet:
    """Return the set of large bags with a percentage of shifted instances."""
    design = PooledDesign(rates=(percent / 100, percent / 100))
    about = f"Bags of 1,000 to 20,000 instances; {percent:g} % of a positive bag's are shifted."
    return _pooled(f"witness-{percent:g}", design, about, quick)


def camelyon_set(*, quick: bool = False) -> DrawnSet:
    """Return the set of bags in the form of CAMELYON16."""
    about = "Planted bags in the form of CAMELYON16: 216 + 54 + 129 bags of 1024 features."
    return _pooled("camelyon", CAMELYON, about, quick)


def digits_set(
    data: Path, num_train: int = NOISE_BAGS, noise: int = 0, *, quick: bool = False
) -> DrawnSet:
    """Return the set of bags of MNIST images.

    Args:
        data: Folder that holds ``mnist/``.
        num_train: Number of training bags.
        noise: Percentage of training and validation bags with the other label.
        quick: Whether to draw few bags, to try a study.
    """
    counts = (min(num_train, _QUICK_DIGITS[0]), 12, _QUICK_DIGITS[1], 0) if quick else None
    design = replace(DIGIT_DESIGNS["digits"], counts=counts or (num_train, 100, 500, 0))
    name = f"digits-{num_train}" + (f"-noise-{noise}" if noise else "")
    wrong = f"; {noise} % of the training and validation labels are wrong" if noise else ""
    return DrawnSet(
        name,
        partial(_draw_digits, name, design, noise / 100, data.absolute() / "mnist"),
        f"{num_train} training bags of MNIST images{wrong}.",
        (design, noise),
        data / "mnist",
    )


def _draw_digits(
    name: str, design: DigitDesign, noise: float, folder: Path, seed: int
) -> UncertaintySet:
    drawn = digit_set(name, seed, design, folder)
    if not noise:
        return drawn
    train, val = (with_wrong_labels(bags, noise, seed) for bags in (drawn.train, drawn.val))
    return replace(drawn, train=train, val=val)


def with_wrong_labels(bags: BagDataset, share: float, seed: int) -> BagDataset:
    """Give a share of the bags of two classes the other label; at least one bag of each stays."""
    generator = np.random.default_rng([seed, 4])
    labels = [int(label or 0) for label in bags.labels]
    for row in generator.permutation(len(labels))[: round(share * len(labels))]:
        labels[row] = 1 - labels[row]
    if len(set(labels)) == 1:
        labels[0] = 1 - labels[0]
    return replace(bags, labels=tuple(labels))


def _pooled(name: str, design: PooledDesign, about: str, quick: bool) -> DrawnSet:
    if quick:
        design = replace(design, sizes=(20, 60), counts=(24, 12, 16), dim=32, pool=400)
    return DrawnSet(name, partial(pooled_set, name, design), about, design)


def pooled_set(name: str, design: PooledDesign, seed: int) -> UncertaintySet:
    """Draw bags whose instances are dealt from pools.

    Example:
        >>> design = PooledDesign((0.1, 0.1), (20, 40), counts=(4, 2, 2), dim=8, pool=100)
        >>> drawn = pooled_set("small", design, seed=0)
        >>> len(drawn.train), drawn.train.feature_dim, drawn.train.labels
        (4, 8, (0, 1, 0, 1))
    """
    generator = np.random.default_rng([seed, 3])
    centres = _normal(generator, (design.clusters, design.dim), design.spread)
    direction = generator.standard_normal(design.dim)
    direction *= design.shift * design.dim**0.5 / np.linalg.norm(direction)
    parts = [
        _deal(part, count, design, centres, direction.astype(np.float32), generator)
        for part, count in zip(("train", "val", "test"), design.counts, strict=True)
    ]
    return UncertaintySet(name, seed, parts[0], parts[1], Part(parts[2], (), ()), {})


def _deal(
    part: str,
    count: int,
    design: PooledDesign,
    centres: Float[np.ndarray, "K D"],
    shift: Float[np.ndarray, " D"],
    generator: np.random.Generator,
) -> BagDataset:
    # Row r of the pool is of cluster r % K, so that rows of a cluster are found by arithmetic.
    each = design.pool // design.clusters
    cluster = np.arange(each * design.clusters) % design.clusters
    pool = centres[cluster] + _normal(generator, (len(cluster), design.dim), design.spread)
    features, labels, targets = [], [], []
    for number in range(count):
        size = bag_size(design, generator)
        shares = generator.dirichlet(np.ones(design.clusters))
        own = generator.choice(design.clusters, size, p=shares)
        rows = own + design.clusters * generator.integers(each, size=size)
        values = pool[rows]
        # Positive bags are spread evenly: bag n is one where n · share passes a whole number.
        is_positive = int((number + 1) * design.positive) > int(number * design.positive)
        is_target = np.zeros(size, dtype=np.int64)
        low, high = np.log(design.rates)
        rate = float(np.exp(generator.uniform(low, high)))
        if is_positive:
            is_target[generator.permutation(size)[: max(1, round(rate * size))]] = 1
            values[is_target == 1] += shift
        features.append(values)
        labels.append(int(is_positive))
        targets.append(is_target)
    return BagDataset.from_arrays(
        features,
        labels,
        slide_ids=[f"{part}-{number:05d}" for number in range(count)],
        class_names=("background", "planted"),
        instance_labels=targets,
    )


def bag_size(design: PooledDesign, generator: np.random.Generator) -> int:
    """Draw the number of instances of a bag."""
    low, high = design.sizes
    if design.law == "uniform":
        return round(float(np.exp(generator.uniform(np.log(low), np.log(high)))))
    drawn = float(np.exp(generator.normal(_LOG_MEDIAN, _LOG_SD)))
    return round(min(max(drawn, low), high))


def _normal(
    generator: np.random.Generator, shape: tuple[int, int], spread: float
) -> Float[np.ndarray, "n D"]:
    return np.float32(spread) * generator.standard_normal(shape, dtype=np.float32)
