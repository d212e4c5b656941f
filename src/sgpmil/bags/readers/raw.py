"""The arrays of one bag file, as every reader returns them.

A `RawBag` may be empty or hold NaN, so that an inspection can count such slides. `to_bag` refuses
them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgpmil.bags.bag import Bag
from sgpmil.bags.readers.stored_values import FARTHEST, whole_coordinates
from sgpmil.errors import BagError
from sgpmil.shapes import Float, Int


@dataclass(frozen=True, slots=True)
class BagHeader:
    """Size and description of a bag, known without reading its features.

    Args:
        num_instances: Number of instances; 0 for a slide without tissue.
        feature_dim: Number of features; 0 where an empty slide does not store it.
        dtype: Data type on disk, as numpy names it.
        encoder: Name of the patch encoder, where stored.
        magnification: Magnification the instances were cut at, where stored.
        patch_size: Side of an instance in level-0 pixels, where stored.
        has_coords: Whether coordinates are stored.
        has_instance_labels: Whether instance labels are stored.
    """

    num_instances: int
    feature_dim: int
    dtype: str
    encoder: str | None = None
    magnification: float | None = None
    patch_size: int | None = None
    has_coords: bool = False
    has_instance_labels: bool = False


@dataclass(frozen=True, slots=True)
class RawBag:
    """The arrays of one bag file.

    Args:
        features: Embedding of each instance, as float32.
        coords: Top-left corner of each instance (x, y).
        patch_size: Side of an instance in the unit of the coordinates.
        instance_labels: Class of each instance.
    """

    features: Float[Tensor, "N D"]
    coords: Int[Tensor, "N 2"] | None = None
    patch_size: int | None = None
    instance_labels: Int[Tensor, " N"] | None = None

    def to_bag(self, slide_id: str, path: Path) -> Bag:
        """Make a bag of the arrays.

        Raises:
            EmptyBagError: There are no instances.
            BagError: A feature is NaN or infinite; the message names the file.
        """
        try:
            return Bag(
                features=self.features,
                slide_id=slide_id,
                coords=self.coords,
                patch_size=self.patch_size,
                instance_labels=self.instance_labels,
            )
        except BagError as error:
            raise type(error)(f"{path}: {error}") from None


@runtime_checkable
class Reader(Protocol):
    """A reader of one format of bag files."""

    def read(self, path: Path) -> RawBag:
        """Read the arrays of a bag."""
        ...

    def peek(self, path: Path) -> BagHeader:
        """Read the size and description of a bag, without its features where possible."""
        ...


def bag_shape(shape: Sequence[int], path: Path) -> tuple[int, int]:
    """Return the number of instances and features that a stored shape stands for.

    A leading axis of length one is a batch axis. An empty slide may be stored as shape (0,); its
    number of features is then unknown and returned as 0.

    Raises:
        BagError: The shape is not that of a bag.

    Example:
        >>> bag_shape((1, 20, 512), Path("a.h5"))
        (20, 512)
    """
    sizes = tuple(int(size) for size in shape)
    if len(sizes) == 3 and sizes[0] == 1:
        return sizes[1], sizes[2]
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    if sizes == (0,):
        return 0, 0
    hint = "This is a slide embedding. " if len(sizes) == 1 else ""
    raise BagError(
        f"Expected features of shape (instances, features), but got shape {sizes} ({path}). "
        f"{hint}Give a file of patch embeddings."
    )


def as_features(array: NDArray[Any] | Tensor, path: Path) -> Float[Tensor, "N D"]:
    """Convert stored features to a float32 matrix.

    Raises:
        BagError: The array is not numeric, or its shape is not that of a bag.
    """
    if isinstance(array, Tensor):
        refuse_no_numbers(array, path)
    num_instances, feature_dim = bag_shape(array.shape, path)
    if isinstance(array, Tensor):
        if array.is_complex() or array.dtype == torch.bool or array.layout != torch.strided:
            raise _not_numeric(str(array.dtype), path)
        return array.detach().to("cpu", torch.float32).reshape(num_instances, feature_dim)
    if array.dtype.kind not in "fiu":
        raise _not_numeric(str(array.dtype), path)
    if array.dtype == np.float16 and array.dtype.isnative and array.flags.writeable:
        # torch is several times as fast as NumPy at this.
        return torch.from_numpy(array).float().reshape(num_instances, feature_dim)
    # A float64 beyond float32's range becomes infinite, which `Bag` refuses with its row.
    with np.errstate(over="ignore"):
        matrix = np.ascontiguousarray(array, dtype=np.float32)
    # torch warns of memory it must not write to, and big-endian is none of its types.
    if not matrix.flags.writeable:
        matrix = matrix.copy()
    return torch.from_numpy(matrix.reshape(num_instances, feature_dim))


def refuse_no_numbers(tensor: Tensor, path: Path) -> None:
    """Refuse a stored tensor without numbers of its own in memory.

    Raises:
        BagError: It is nested, sparse, quantised, without data (meta), or one row that claims to be
            many.
    """
    kinds = {
        "a nested tensor": tensor.is_nested,
        "a quantised tensor": tensor.is_quantized,
        "a tensor without data": tensor.is_meta,
        "a sparse tensor": tensor.layout not in (torch.strided, torch.jagged),
    }
    found = next((kind for kind, is_so in kinds.items() if is_so), "")
    if not found:
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes > tensor.untyped_storage().nbytes():
            found = f"{tensor.numel()} numbers that are stored as fewer"
    if found:
        raise BagError(
            f"Expected features as a matrix of numbers, but got {found} ({path}). Save them as an "
            "ordinary tensor of float32 or float16."
        )


def as_coords(
    array: NDArray[Any], num_instances: int, path: Path, scale: float = 1.0
) -> Int[Tensor, "N 2"]:
    """Convert stored coordinates to whole numbers, rounding where they are not.

    Raises:
        BagError: The coordinates are not finite numbers, or not two for each instance.
    """
    return torch.from_numpy(whole_coordinates(array, num_instances, path, scale))


def as_instance_labels(array: NDArray[Any], num_instances: int, path: Path) -> Int[Tensor, " N"]:
    """Convert stored instance labels to whole numbers.

    Raises:
        BagError: The labels are not whole numbers, or not one for each instance.
    """
    if array.shape != (num_instances,):
        raise BagError(
            f"Expected {num_instances} instance labels, one for each instance, but got shape "
            f"{array.shape} ({path}). Write one label an instance."
        )
    # A larger number would become another one as a 64-bit integer; no set has as many classes.
    whole = array.dtype.kind in "iub" or (
        array.dtype.kind == "f" and bool((np.isfinite(array) & (array == np.rint(array))).all())
    )
    if not whole or (array.size and not -FARTHEST <= array.min() <= array.max() <= FARTHEST):
        raise BagError(
            f"Expected whole numbers within ±{FARTHEST} as instance labels, but got others of "
            f"{array.dtype} ({path}). Store the index of each instance's class."
        )
    return torch.from_numpy(np.array(array, dtype=np.int64, order="C"))


def _not_numeric(dtype: str, path: Path) -> BagError:
    return BagError(
        f"Expected real numbers as features, but got {dtype} ({path}). "
        "Store the embeddings as float32 or float16."
    )
