"""All of MNIST's digits, dealt into bags of nine: the bags of the SGPMIL paper's table.

Every digit is in one bag, and none twice: 60,000 make 6,666 bags to train on, and 10,000 make 1,111
to test on. A bag is positive when it holds the target digit, so six in ten are, and a positive one
holds 1.5 of them on average. To choose settings, 50,000 of the training digits are dealt into bags
to train on, and the other 10,000 into bags to validate on; the test digits are not read then.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import atomic_path, content_digest
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.mnist import MNIST_FILES, pixels, read_mnist, write_idx
from sgpmil.shapes import Bool, Float, Int

HeldOut = Literal["test", "validation"]
"""Bags that a model is measured on."""

BAG_SIZE = 9
_NUM_VALIDATION = 10_000
_SHARE_HELD_OUT = 6
"""Training bags for each bag that a model is measured on."""
_DIGITS = 10
_TRAIN_IMAGES = 60_000
_IMAGES = 70_000
_OPENML = ("mnist_784", 1)


@dataclass(frozen=True)
class DealtBags:
    """Bags to train on and bags to measure on.

    Args:
        train: Bags to train on.
        held_out: Bags to measure on.
    """

    train: BagDataset
    held_out: BagDataset


def deal_digits(
    folder: Path,
    *,
    digit: int = 9,
    seed: int = 0,
    held_out: HeldOut = "test",
    max_bags: int | None = None,
) -> DealtBags:
    """Shuffle all digits and deal them into bags of nine.

    Args:
        folder: Folder of MNIST's four gzipped idx files.
        digit: The digit that makes a bag positive.
        seed: Seed of the dealing, of both parts.
        held_out: ``test`` measures on the test digits; ``validation`` on 10,000 of the training
            digits, the same for every seed, and reads no test digit.
        max_bags: Most training bags, and a sixth as many to measure on; all where None.

    Raises:
        BagError: A file is missing or damaged, or there are too few digits for a bag of each class.
        SettingsError: There is no such digit, or fewer than six bags are asked for.
    """
    check_deal(digit, max_bags)
    images, digits = read_mnist(folder, "train")
    if held_out == "test":
        parts = [("train", images, digits), ("test", *read_mnist(folder, "test"))]
    else:
        # The last ones, as far as there are that many.
        count = min(_NUM_VALIDATION, len(digits) // _SHARE_HELD_OUT)
        parts = [
            ("train", images[:-count], digits[:-count]),
            ("validation", images[-count:], digits[-count:]),
        ]
    generator = np.random.default_rng(seed)
    target = ClassTarget((f"no {digit}", f"has a {digit}"))
    most = (max_bags, None if max_bags is None else max_bags // _SHARE_HELD_OUT)
    train, other = (
        _deal(name, pixels(shown), labels == digit, target, generator, limit)
        for (name, shown, labels), limit in zip(parts, most, strict=True)
    )
    return DealtBags(train, other)


def check_deal(digit: int, max_bags: int | None) -> None:
    """Refuse a digit that does not exist, and too few bags.

    Raises:
        SettingsError: There is no such digit, or fewer than six bags are asked for.
    """
    if not 0 <= digit < _DIGITS:
        raise SettingsError(f"Expected a digit from 0 to 9 (`digit`), but got {digit}.")
    if max_bags is not None and max_bags < _SHARE_HELD_OUT:
        raise SettingsError(
            f"Expected at least {_SHARE_HELD_OUT} bags (`max_bags`), but got {max_bags}."
        )


def _deal(
    name: str,
    images: Float[np.ndarray, "n p"],
    is_target: Bool[np.ndarray, " n"],
    target: ClassTarget,
    generator: np.random.Generator,
    max_bags: int | None,
) -> BagDataset:
    order = generator.permutation(len(images))
    num_bags = len(order) // BAG_SIZE
    if max_bags is not None:
        num_bags = min(num_bags, max_bags)
    order = order[: num_bags * BAG_SIZE]
    features = torch.from_numpy(images[order])
    labels = torch.from_numpy(is_target[order].astype(np.int64))
    if not 0 < int(labels.unflatten(0, (-1, BAG_SIZE)).amax(1).sum()) < num_bags:
        raise BagError(
            f"Expected bags with and without the digit of '{target.names[1]}' among the {num_bags} "
            f"bags of '{name}', but there is one kind alone. Use all of MNIST."
        )
    bags = [
        Bag(
            features=features[start : start + BAG_SIZE],
            slide_id=f"{name}-{number:04d}",
            label=int(labels[start : start + BAG_SIZE].any()),
            instance_labels=labels[start : start + BAG_SIZE],
            is_finite=True,  # made of bytes
        )
        for number, start in enumerate(range(0, len(order), BAG_SIZE))
    ]
    ids = tuple(bag.slide_id for bag in bags)
    return BagDataset(
        source=MemorySource(bags),
        slide_ids=ids,
        case_ids=ids,
        labels=tuple(bag.label for bag in bags),
        target=target,
    )


def digits_fingerprint(folder: Path, held_out: HeldOut) -> str:
    """Return a text that changes when the files of the digits do.

    Raises:
        BagError: A file is missing.
    """
    sources = ("train", "test") if held_out == "test" else ("train",)
    paths = [folder / name for source in sources for name in MNIST_FILES[source]]
    for path in paths:
        if not path.is_file():
            raise BagError(
                f"Expected MNIST in {folder}, but there is no {path.name}. Put the four gzipped "
                "idx files there, or fetch them with `fetch=True`."
            )
    return " ".join(content_digest(path)[:16] for path in paths)


def fetch_mnist(folder: Path) -> None:
    """Fetch MNIST through scikit-learn's OpenML loader and write its four files.

    Nothing is fetched where they are already.

    Raises:
        BagError: It cannot be fetched, or what came is not MNIST, or it cannot be written.
    """
    names = [name for pair in MNIST_FILES.values() for name in pair]
    if all((folder / name).is_file() for name in names):
        return
    from sklearn.datasets import fetch_openml

    try:
        found = fetch_openml(_OPENML[0], version=_OPENML[1], as_frame=False, parser="liac-arff")
    except Exception as error:
        raise BagError(
            f"Expected to fetch MNIST from OpenML, but got '{' '.join(str(error).split())}'. Check "
            f"the network, or put the four gzipped idx files into {folder}."
        ) from error
    images, digits = np.asarray(found.data), np.asarray(found.target)
    if images.shape != (_IMAGES, 784) or digits.shape != (_IMAGES,):
        raise BagError(
            f"Expected the {_IMAGES} images of MNIST from OpenML, but got an array of "
            f"{images.shape}. Put the four gzipped idx files into {folder}."
        )
    # OpenML has the training images first.
    rows: dict[str, Int[np.ndarray, " n"]] = {
        "train": np.arange(_TRAIN_IMAGES),
        "test": np.arange(_TRAIN_IMAGES, _IMAGES),
    }
    for source, (image_file, label_file) in MNIST_FILES.items():
        for name, values in (
            (image_file, images[rows[source]].reshape(-1, 28, 28)),
            (label_file, digits[rows[source]]),
        ):
            try:
                with atomic_path(folder / name) as path:
                    write_idx(path, values.astype(np.uint8))
            except OSError as error:
                raise BagError(
                    f"Expected to write to {folder}, but got '{error.strerror or error}'. Free "
                    "some space, or allow writing there."
                ) from error
