r"""Bags of MNIST images, read from its idx files.

A bag is positive when it contains the target digit. Half of the bags of every part are positive.
A digit is the target with probability .1, so the number $k$ of targets in a bag of $n$ is binomial,
and in a positive bag it is binomial given $k \ge 1$:

$$ p(k) = \frac{\binom{n}{k}\, .1^k\, .9^{n-k}}{1 - .9^n}, \qquad k = 1, \dots, n. $$

Negative bags contain none. Bags to train and validate on hold MNIST's training images, and no image
is in both parts. Bags to test on hold its test images.
"""

import gzip
import math
import struct
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError
from sgpmil.models.embedding import DIGIT_SIDE
from sgpmil.shapes import Bool, Float, Int

_UNSIGNED_BYTES = 0x08


def read_idx_images(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of images (images, rows, columns).

    Raises:
        BagError: The file is missing, damaged, truncated or not of images.
    """
    return _read_idx(path, 3, "images")


def read_idx_labels(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped idx file of labels.

    Raises:
        BagError: The file is missing, damaged, truncated or not of labels.
    """
    return _read_idx(path, 1, "labels")


def _read_idx(path: Path, num_axes: int, what: str) -> NDArray[np.uint8]:
    try:
        with gzip.open(path) as file:
            content = file.read()
    except FileNotFoundError as error:
        raise BagError(
            f"Expected MNIST's {what} in {path}, but there is no such file. Give the folder with "
            "the four gzipped idx files."
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise BagError(
            f"Expected MNIST's {what} as a gzipped idx file in {path}, but it is damaged or "
            f"truncated ({error}). Download it again."
        ) from error
    header = 4 + 4 * num_axes
    magic = (_UNSIGNED_BYTES << 8) + num_axes
    found = int.from_bytes(content[:4], "big")
    if len(content) < header or found != magic:
        raise BagError(
            f"Expected an idx file of {what} (magic number {magic}) in {path}, but got magic "
            f"number {found}. Check that it is not another of MNIST's files."
        )
    shape = struct.unpack(f">{num_axes}I", content[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != expected:
        raise BagError(
            f"Expected {expected} bytes of {what} for the sizes {shape} in {path}, but got "
            f"{len(content) - header}: it is truncated or damaged. Download it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """Write a gzipped idx file.

    Raises:
        OSError: It cannot be written.
    """
    magic = (_UNSIGNED_BYTES << 8) + values.ndim
    header = struct.pack(f">{1 + values.ndim}I", magic, *values.shape)
    path.write_bytes(gzip.compress(header + np.ascontiguousarray(values).tobytes()))


MNIST_FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
"""Names of the files of images and labels."""

TARGET_SHARE = 0.1
PIXEL_MEAN, PIXEL_STD = 0.1307, 0.3081  # of MNIST's training images


class RepeatedImageWarning(UserWarning):
    """A part has too few images, so its bags share some."""


def mnist_bags(
    folder: Path,
    *,
    digit: int = 9,
    bag_size: int = 9,
    num_train: int = 1000,
    num_val: int = 200,
    num_test: int = 1000,
    seed: int = 0,
) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Deal MNIST's images into bags, and return the fold that divides the bags.

    An image is in one bag only, unless a part has too few; then bags of that part share images,
    with a warning, and still none is twice in a bag.

    Returns:
        Bags whose instances are 784 pixels of about zero mean and unit variance, on a square
        grid, and a single fold.

    Raises:
        BagError: A file is missing or damaged, or there are too few images for a bag.
    """
    generator = np.random.default_rng(seed)
    bags: dict[str, list[Bag]] = {"train": [], "val": [], "test": []}
    for source, wanted in (
        ("train", {"train": num_train, "val": num_val}),
        ("test", {"test": num_test}),
    ):
        images, digits = read_mnist(folder, source)
        shares = _share_out(digits == digit, list(wanted.values()), generator)
        for (part, count), (targets, others) in zip(wanted.items(), shares, strict=True):
            dealer = _Dealer(part, targets, others, bag_size, generator)
            for number in range(count):
                rows, is_target = dealer.deal(positive=number % 2 == 1)
                bags[part].append(_bag(f"{part}-{number:05d}", images[rows], is_target))
    together = [bag for part in bags.values() for bag in part]
    ids = tuple(bag.slide_id for bag in together)
    dataset = BagDataset(
        source=MemorySource(together),
        slide_ids=ids,
        case_ids=ids,
        labels=tuple(bag.label for bag in together),
        target=ClassTarget((f"no {digit}", f"has a {digit}")),
    )
    parts = {part: tuple(bag.slide_id for bag in found) for part, found in bags.items()}
    return dataset, (Fold("0", **parts),)


class _Dealer:
    """Deals the images of one part into bags.

    Args:
        part: Name of the part.
        targets: Rows of the images of the target digit.
        others: Rows of the other images.
        bag_size: Images of a bag.
        generator: Generator of random numbers.
    """

    def __init__(
        self,
        part: str,
        targets: Int[np.ndarray, " t"],
        others: Int[np.ndarray, " o"],
        bag_size: int,
        generator: np.random.Generator,
    ) -> None:
        self.part = part
        self.bag_size = bag_size
        self.generator = generator
        self.images = {True: targets, False: others}
        self.left = {kind: generator.permutation(rows) for kind, rows in self.images.items()}
        self.counts = np.arange(1, bag_size + 1)
        weights = [
            math.comb(bag_size, k) * TARGET_SHARE**k * (1 - TARGET_SHARE) ** (bag_size - k)
            for k in self.counts.tolist()
        ]
        self.probabilities = np.array(weights) / sum(weights)

    def deal(self, *, positive: bool) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Return the rows of a bag's images, and which of them are the target digit."""
        count = int(self.generator.choice(self.counts, p=self.probabilities)) if positive else 0
        rows = np.concatenate([self._take(True, count), self._take(False, self.bag_size - count)])
        order = self.generator.permutation(self.bag_size)
        return rows[order], (order < count).astype(np.int64)

    def _take(self, is_target: bool, count: int) -> Int[np.ndarray, " k"]:
        images = self.images[is_target]
        if len(images) < count:
            raise BagError(
                f"Expected at least {count} images {'of' if is_target else 'other than'} the "
                f"target digit for a bag of '{self.part}', but got {len(images)}. Make smaller "
                "bags, or use all of MNIST."
            )
        if len(self.left[is_target]) < count:
            warnings.warn(
                f"There are not enough images for all bags of '{self.part}': some are in several "
                "of its bags.",
                RepeatedImageWarning,
                stacklevel=4,
            )
            self.left[is_target] = self.generator.permutation(images)
        taken, self.left[is_target] = np.split(self.left[is_target], [count])
        return taken


def _share_out(
    is_target: Bool[np.ndarray, " n"], bags: Sequence[int], generator: np.random.Generator
) -> list[tuple[Int[np.ndarray, " t"], Int[np.ndarray, " o"]]]:
    """Divide the rows of images among parts, in proportion to their numbers of bags."""
    ends = np.cumsum(bags)[:-1] / max(1, sum(bags))
    kinds = []
    for kind in (is_target, ~is_target):
        rows = generator.permutation(np.flatnonzero(kind))
        kinds.append(np.split(rows, np.round(ends * len(rows)).astype(int)))
    return list(zip(*kinds, strict=True))


def read_mnist(folder: Path, source: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read MNIST's images and their digits.

    Args:
        folder: Folder of the four files.
        source: ``train`` or ``test``.

    Raises:
        BagError: A file is missing or damaged, or the two do not belong together.
    """
    image_file, label_file = (folder / name for name in MNIST_FILES[source])
    images, labels = read_idx_images(image_file), read_idx_labels(label_file)
    if len(images) != len(labels):
        raise BagError(
            f"Expected a label for each of the {len(images)} images of {image_file}, but got "
            f"{len(labels)} in {label_file}. Take both files from the same place."
        )
    if images.shape[1:] != (DIGIT_SIDE, DIGIT_SIDE):
        raise BagError(
            f"Expected images of {DIGIT_SIDE}×{DIGIT_SIDE} pixels in {image_file}, but got "
            f"{images.shape[1]}×{images.shape[2]}."
        )
    return images, labels


def _bag(name: str, images: NDArray[np.uint8], is_target: Int[np.ndarray, " n"]) -> Bag:
    columns = math.ceil(math.sqrt(len(images)))
    grid = [(k % columns, k // columns) for k in range(len(images))]
    return Bag(
        features=torch.from_numpy(pixels(images)),
        slide_id=name,
        label=int(is_target.any()),
        coords=DIGIT_SIDE * torch.tensor(grid),
        patch_size=DIGIT_SIDE,
        instance_labels=torch.from_numpy(is_target),
    )


def pixels(images: NDArray[np.uint8]) -> Float[np.ndarray, "n p"]:
    """Return images as rows of pixels, of about zero mean and unit variance over all of MNIST."""
    scaled = images.reshape(len(images), -1).astype(np.float32) / 255
    return ((scaled - PIXEL_MEAN) / PIXEL_STD).astype(np.float32)
