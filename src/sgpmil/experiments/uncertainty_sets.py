r"""Data sets of the uncertainty study, drawn anew from each seed.

Every set has bags to train on, to validate (temperatures) and to test on, and *shifted* test bags
with instances such as training never had.

=========================  =======================================================================
``digits``, ``needle``     bags of MNIST images as raw pixels; a positive bag has one or two images
                           of the target digit. Of a shifted bag, 30 % of the instances are other
                           digits than those of training. Images to train and validate on are
                           MNIST's training images, those to test on its test images.
``digits-b``, ``needle-b`` the same with other digits, 14×14 pixels and other sizes of bags: sets
                           that no design was chosen on
``planted-0.5`` …          instances of 20 Gaussian clusters; in positive bags .5, .3, .2 or .1 %
                           of them are shifted in one direction. Of a shifted bag, 30 % are of
                           clusters that training never had.
``planted-full-0.3`` …     the same at a size for a GPU
``phantoms``               synthetic slides; see `sgpmil.experiments.uncertainty_phantoms`
``colon``                  colon nuclei; the seed chooses the fold
=========================  =======================================================================
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import SettingsError
from sgpmil.experiments.mnist import read_mnist
from sgpmil.shapes import Bool, Float, Int

UNSEEN_SHARE = 0.3
"""Share of a shifted bag's instances that are unlike training."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Bags with the true class of every instance.

    Args:
        bags: The bags; their instance labels tell targets (1) from others (0).
        classes: Class of each instance, an array a bag; empty where unknown.
        unseen: Whether training has no instance of its kind, an array a bag.
    """

    bags: BagDataset
    classes: tuple[Int[np.ndarray, " _"], ...]
    unseen: tuple[Bool[np.ndarray, " _"], ...]


@dataclass(frozen=True, slots=True, eq=False)
class UncertaintySet:
    """A data set of one seed.

    Args:
        name: Its name.
        seed: Seed of its bags.
        train: Training bags.
        val: Validation bags.
        test: Test bags like those of training.
        shifted: Test bags with instances unlike those of training, by the kind of shift.
    """

    name: str
    seed: int
    train: BagDataset
    val: BagDataset
    test: Part
    shifted: Mapping[str, Part]


@dataclass(frozen=True)
class SetSource:
    """Source of a data set.

    Args:
        about: Description in a sentence or two.
        draw: Draws the set of a seed; takes its name and what `uncertainty_set` is given.
        design: Description of its bags; results of another description are not mixed with it.
        independent: Whether seeds draw training and test bags of their own. Where they divide
            the same bags, runs are not independent.
        place: Its path in the folder of data; empty where it needs none.
    """

    about: str
    draw: "Callable[[str, DrawOptions], UncertaintySet]"
    design: object = None
    independent: bool = True
    place: str = ""


@dataclass(frozen=True)
class DrawOptions:
    """Seed, place and size of a set that is drawn.

    Args:
        seed: Seed of everything that is drawn.
        data: Folder that holds ``mnist/`` and ``colon/``.
        cache: Folder in which the features of phantoms are kept.
        quick: Whether to draw few and small bags, to try the study.
    """

    seed: int
    data: Path
    cache: Path
    quick: bool = False


def uncertainty_set(
    name: str,
    seed: int,
    *,
    data: Path | str = "data",
    cache: Path | str = "runs/cache",
    quick: bool = False,
) -> UncertaintySet:
    """Draw a data set of the study.

    Args:
        name: A name of `UNCERTAINTY_SETS`.
        seed: Seed of everything that is drawn.
        data: Folder that holds ``mnist/`` and ``colon/``.
        cache: Folder in which the features of phantoms are kept.
        quick: Whether to draw few and small bags, to try the study.

    Raises:
        SettingsError: There is no such set, or the seed is negative.
        BagError: The data are missing or damaged.
    """
    if name not in UNCERTAINTY_SETS:
        raise SettingsError(
            f"Expected a data set among {', '.join(UNCERTAINTY_SETS)}, but got '{name}'."
        )
    if seed < 0:
        raise SettingsError(f"Expected a seed of 0 or more, but got {seed}.")
    options = DrawOptions(seed, Path(data), Path(cache), quick)
    return UNCERTAINTY_SETS[name].draw(name, options)


def set_fingerprint(name: str, data: Path) -> str:
    """Return a digest that changes with the description of a set, or with the files it is of.

    A file counts as unchanged while its size stays the same.
    """
    source = UNCERTAINTY_SETS[name]
    place = data / source.place if source.place else None
    return content_digest((source.design, UNSEEN_SHARE), place)


def content_digest(description: object, place: Path | None = None) -> str:
    """Return a digest of a description, and of the names and sizes of the files in a folder."""
    files = sorted(place.rglob("*")) if place is not None else []
    sizes = [
        (str(f.relative_to(place)), f.stat().st_size)
        for f in files
        if place is not None and f.is_file()
    ]
    content = repr(
        (description, sizes) if not isinstance(description, tuple) else (*description, sizes)
    )
    return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class DigitDesign:
    """Contents of bags of MNIST images.

    Args:
        target: Digit that makes a bag positive.
        others: Other digits of training.
        unseen: Digits of shifted bags alone.
        sizes: Smallest and largest number of images of a bag.
        counts: Numbers of bags to train on, to validate, to test, and shifted.
        halved: Whether images have 14×14 pixels rather than 28×28.
    """

    target: int
    others: tuple[int, ...]
    unseen: tuple[int, ...]
    sizes: tuple[int, int]
    counts: tuple[int, int, int, int]
    halved: bool = False


DIGIT_DESIGNS = {
    "digits": DigitDesign(9, (0, 1, 2, 3, 4), (5, 6, 7, 8), (8, 12), (200, 200, 1000, 1000)),
    "needle": DigitDesign(9, (0, 1, 2, 3, 4), (5, 6, 7, 8), (60, 60), (300, 200, 500, 500)),
    "digits-b": DigitDesign(
        3, (1, 2, 5, 6, 7), (0, 4, 8, 9), (10, 20), (200, 200, 1000, 1000), halved=True
    ),
    "needle-b": DigitDesign(
        5, (0, 2, 4, 7, 9), (1, 3, 6, 8), (40, 80), (300, 200, 500, 500), halved=True
    ),
}


_QUICK_COUNTS = (24, 12, 16, 16)


def _draw_digits(name: str, options: DrawOptions) -> UncertaintySet:
    design = DIGIT_DESIGNS[name]
    if options.quick:
        design = replace(design, counts=_QUICK_COUNTS)
    return digit_set(name, options.seed, design, options.data / "mnist")


def digit_set(name: str, seed: int, design: DigitDesign, folder: Path) -> UncertaintySet:
    """Deal MNIST's images into the bags of a design.

    No image is twice in a bag, and none is in two of the parts train, val and test. Where a part
    has too few images of a digit, its bags share some.

    Raises:
        BagError: A file of MNIST is missing or damaged.
    """
    generator = np.random.default_rng([seed, 1])
    train_pool, test_pool = _mnist(folder, design.halved)
    num_train, num_val, num_test, num_shifted = design.counts
    division = generator.permutation(len(train_pool.digits))
    cut = round(len(division) * num_train / (num_train + num_val))
    deal = partial(_deal, design=design, generator=generator)
    train = deal("train", num_train, train_pool.rows(division[:cut]))
    val = deal("val", num_val, train_pool.rows(division[cut:]))
    test = deal("test", num_test, test_pool)
    shifted = {}
    if num_shifted:
        shifted["unseen"] = deal("unseen", num_shifted, test_pool, share=UNSEEN_SHARE)
    return UncertaintySet(name, seed, train.bags, val.bags, test, shifted)


@dataclass(frozen=True, eq=False)
class _Pool:
    """Images that a part is dealt from."""

    pixels: NDArray[np.uint8]
    digits: NDArray[np.uint8]

    def rows(self, chosen: Int[np.ndarray, " n"]) -> "_Pool":
        return _Pool(self.pixels[chosen], self.digits[chosen])


@lru_cache(maxsize=2)
def _mnist(folder: Path, halved: bool) -> tuple[_Pool, _Pool]:
    train, test = (read_mnist(folder, part) for part in ("train", "test"))
    return _Pool(_flat(train[0], halved), train[1]), _Pool(_flat(test[0], halved), test[1])


def _flat(images: NDArray[np.uint8], halved: bool) -> NDArray[np.uint8]:
    """Return images as rows of pixels, if asked for the means of squares of four."""
    if halved:
        side = images.shape[1] // 2
        images = images.reshape(-1, side, 2, side, 2).mean((2, 4)).round().astype(np.uint8)
    return images.reshape(len(images), -1)


class _Deck:
    """Images of some digits, dealt without repeats until all are used, then shuffled anew."""

    def __init__(self, pool: _Pool, digits: Sequence[int], generator: np.random.Generator) -> None:
        self.rows = np.flatnonzero(np.isin(pool.digits, digits))
        self.generator = generator
        self.left = generator.permutation(self.rows)

    def take(self, count: int) -> Int[np.ndarray, " k"]:
        if len(self.left) < count:
            self.left = self.generator.permutation(self.rows)
        taken, self.left = np.split(self.left, [count])
        return taken


def _deal(
    part: str,
    count: int,
    pool: _Pool,
    *,
    design: DigitDesign,
    generator: np.random.Generator,
    share: float = 0.0,
) -> Part:
    kinds = ((design.target,), design.others, design.unseen)
    decks = [_Deck(pool, digits, generator) for digits in kinds]
    features, classes = [], []
    for number in range(count):
        size = int(generator.integers(design.sizes[0], design.sizes[1] + 1))
        targets = int(generator.integers(1, 3)) if number % 2 else 0
        new = round(share * size)
        counts = (targets, size - targets - new, new)
        taken = [deck.take(k) for deck, k in zip(decks, counts, strict=True)]
        rows = generator.permutation(np.concatenate(taken))
        features.append(pool.pixels[rows].astype(np.float32) / 255)
        classes.append(pool.digits[rows].astype(np.int64))
    return _part(
        part,
        features,
        classes,
        targets=[found == design.target for found in classes],
        unseen=[np.isin(found, design.unseen) for found in classes],
        class_names=(f"no {design.target}", f"has a {design.target}"),
    )


def _part(
    part: str,
    features: Sequence[Float[np.ndarray, "_ D"]],
    classes: Sequence[Int[np.ndarray, " _"]],
    *,
    targets: Sequence[Bool[np.ndarray, " _"]],
    unseen: Sequence[Bool[np.ndarray, " _"]],
    class_names: tuple[str, str],
) -> Part:
    """Make a part of arrays; a bag with a target is positive."""
    bags = BagDataset.from_arrays(
        features,
        [int(found.any()) for found in targets],
        slide_ids=[f"{part}-{number:05d}" for number in range(len(features))],
        class_names=class_names,
        instance_labels=[found.astype(np.int64) for found in targets],
    )
    return Part(bags, tuple(classes), tuple(unseen))


@dataclass(frozen=True)
class PlantedDesign:
    """Contents of bags with planted instances.

    Args:
        share: Share of a positive bag's instances that are shifted.
        dim: Number of features.
        sizes: Smallest and largest number of instances of a bag.
        counts: Numbers of bags to train on, to validate, to test, and shifted.
    """

    share: float
    dim: int = 256
    sizes: tuple[int, int] = (600, 1400)
    counts: tuple[int, int, int, int] = (150, 50, 100, 100)


_CLUSTERS, _NEW_CLUSTERS = 20, 5
_SPREAD = 0.5
_SHIFT = 0.625
"""Length of the shift over the root of the number of features: a little above the spread of a
cluster, so that it is lost in a bag's mean."""

PLANTED_DESIGNS = {
    **{f"planted-{percent}": PlantedDesign(percent / 100) for percent in (0.5, 0.3, 0.2, 0.1)},
    **{
        f"planted-full-{percent}": PlantedDesign(
            percent / 100, 1024, (1000, 4000), (300, 50, 100, 100)
        )
        for percent in (0.3, 0.2, 0.1)
    },
}


def _draw_planted(name: str, options: DrawOptions) -> UncertaintySet:
    design = PLANTED_DESIGNS[name]
    if options.quick:
        design = replace(design, counts=_QUICK_COUNTS, sizes=(20, 60), dim=32)
    return planted_set(name, options.seed, design)


def planted_set(name: str, seed: int, design: PlantedDesign) -> UncertaintySet:
    """Draw bags of clusters with planted instances."""
    generator = np.random.default_rng([seed, 2])
    centres = _normal(generator, (_CLUSTERS + _NEW_CLUSTERS, design.dim))
    direction = generator.standard_normal(design.dim)
    direction *= _SHIFT * design.dim**0.5 / np.linalg.norm(direction)
    deal = partial(_plant, design=design, centres=centres, shift=direction, generator=generator)
    num_train, num_val, num_test, num_shifted = design.counts
    train, val = deal("train", num_train).bags, deal("val", num_val).bags
    test, unseen = deal("test", num_test), deal("unseen", num_shifted, unseen=UNSEEN_SHARE)
    return UncertaintySet(name, seed, train, val, test, {"unseen": unseen})


def _plant(
    part: str,
    count: int,
    *,
    design: PlantedDesign,
    centres: Float[np.ndarray, "K D"],
    shift: Float[np.ndarray, " D"],
    generator: np.random.Generator,
    unseen: float = 0.0,
) -> Part:
    features, classes, targets = [], [], []
    for number in range(count):
        size = int(generator.integers(design.sizes[0], design.sizes[1] + 1))
        shares = generator.dirichlet(np.ones(_CLUSTERS))
        cluster = generator.choice(_CLUSTERS, size, p=shares)
        order = generator.permutation(size)
        is_target = np.zeros(size, dtype=bool)
        if number % 2:
            is_target[order[: max(1, round(design.share * size))]] = True
        new = order[size - round(unseen * size) :]
        cluster[new] = _CLUSTERS + generator.integers(_NEW_CLUSTERS, size=len(new))
        values = centres[cluster] + _normal(generator, (size, design.dim))
        values[is_target] += shift.astype(np.float32)
        features.append(values)
        classes.append(cluster)
        targets.append(is_target)
    return _part(
        part,
        features,
        classes,
        targets=targets,
        unseen=[found >= _CLUSTERS for found in classes],
        class_names=("background", "planted"),
    )


def _normal(generator: np.random.Generator, shape: tuple[int, int]) -> Float[np.ndarray, "n D"]:
    return np.float32(_SPREAD) * generator.standard_normal(shape, dtype=np.float32)


def _draw_colon(name: str, options: DrawOptions) -> UncertaintySet:
    """Take the seed's fold; there are no shifted bags."""
    from sgpmil.experiments.model_study import colon_bags

    bags, folds = colon_bags(options.data / "colon")
    fold = folds[options.seed % len(folds)]
    train, val, test = (bags.subset(ids).in_memory() for ids in (fold.train, fold.val, fold.test))
    return UncertaintySet(name, options.seed, train, val, Part(test, (), ()), {})


@dataclass(frozen=True)
class PoolDesign:
    """Slides of a pool of phantoms.

    Args:
        parts: Numbers of slides to train on, to validate and to test.
        shifted: Number of slides of each shift.
        size: Width and height of a slide in pixels of .5 microns.
        tumour_share: Share of the tissue of positive slides that is tumour.
    """

    parts: tuple[int, int, int] = (60, 30, 40)
    shifted: int = 24
    size: tuple[int, int] = (2048, 1536)
    tumour_share: float = 0.08


PHANTOM_DESIGN = PoolDesign()


def _draw_phantoms(name: str, options: DrawOptions) -> UncertaintySet:
    from sgpmil.experiments.uncertainty_phantoms import draw_phantom_set

    return draw_phantom_set(name, options)


def _sources(
    designs: Mapping[str, object],
    draw: Callable[[str, DrawOptions], UncertaintySet],
    about: str,
    place: str = "",
) -> dict[str, SetSource]:
    return {name: SetSource(about, draw, design, place=place) for name, design in designs.items()}


UNCERTAINTY_SETS: dict[str, SetSource] = {
    **_sources(
        DIGIT_DESIGNS,
        _draw_digits,
        "Bags of MNIST images; positive bags have one or two of the target digit. Unseen: 30 % of "
        "the instances are digits that training never had.",
        place="mnist",
    ),
    **_sources(
        PLANTED_DESIGNS,
        _draw_planted,
        "Instances of 20 clusters; in positive bags the percentage in the name is shifted. Unseen: "
        "30 % are of clusters that training never had.",
    ),
    "phantoms": SetSource(
        "Synthetic slides; positive ones have a tumour. Tissue: 30 % is a kind that training never "
        "had; stain and scanner: all of the slide is of another stain or scanner.",
        _draw_phantoms,
        PHANTOM_DESIGN,
        independent=False,
    ),
    "colon": SetSource(
        "Colon nuclei; the seed chooses one of five folds, and the training.",
        _draw_colon,
        independent=False,
        place="colon",
    ),
}
