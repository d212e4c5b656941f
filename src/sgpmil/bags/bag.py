"""Bags, and batches of bags packed end to end.

A slide is a *bag* of instances (patch embeddings) with one label. A batch of bags is one long
matrix of instances and the offsets at which each bag begins, so that every dense layer is one
large matrix product and nothing is wasted on padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from sgpmil.bags.readers.stored_values import FARTHEST
from sgpmil.bags.segments import Segments
from sgpmil.bags.target import Label
from sgpmil.errors import BagError, EmptyBagError
from sgpmil.notebook import counted
from sgpmil.shapes import Float, Int

NO_LABEL = -1
"""The label of a bag in a `BagBatch` whose label is unknown."""


@dataclass(frozen=True, slots=True)
class Bag:
    """The instances of one slide.

    Args:
        features: Embedding of each instance, in half precision where a packed store has it so.
        slide_id: Name of the slide, unique in a data set.
        case_id: Patient the slide belongs to; the slide's own name where unknown.
        label: Label as the data set's target has it (a class index), or None where unknown.
        coords: Top-left corner of each instance in level-0 pixels (x, y).
        patch_size: Side of an instance in level-0 pixels.
        instance_labels: Class of each instance, where known (evaluation only).
        is_finite: Whether the features are known to be finite, so that they are not checked.

    Raises:
        EmptyBagError: There are no instances.
        BagError: A shape is wrong, a feature is NaN or infinite, or the patch side is no side.

    Example:
        >>> Bag(torch.ones(3, 2), slide_id="a").num_instances
        3
    """

    features: Float[Tensor, "N D"]
    slide_id: str
    case_id: str = ""
    label: Label | None = None
    coords: Int[Tensor, "N 2"] | None = None
    patch_size: int | None = None
    instance_labels: Int[Tensor, " N"] | None = None
    is_finite: bool = field(default=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.case_id:
            object.__setattr__(self, "case_id", self.slide_id)
        _check_shapes(self)
        if not self.is_finite:
            _check_finite(self)
            object.__setattr__(self, "is_finite", True)

    def __repr__(self) -> str:
        facts = [
            "" if self.case_id == self.slide_id else f"patient '{self.case_id}'",
            "" if self.label is None else f"label {self.label}",
            "" if self.coords is None else "coordinates",
            "" if self.patch_size is None else f"patches of {self.patch_size} px",
            "" if self.instance_labels is None else "instance labels",
        ]
        size = f"{counted(self.num_instances, 'instance')} × {counted(self.feature_dim, 'feature')}"
        return f"Bag({', '.join(filter(None, [repr(self.slide_id), size, *facts]))})"

    @property
    def num_instances(self) -> int:
        """Number of instances N."""
        return self.features.shape[0]

    @property
    def feature_dim(self) -> int:
        """Number of features D of an instance."""
        return self.features.shape[1]

    def labelled(self, label: Label | None, case_id: str) -> "Bag":
        """Return the same bag under another label and case."""
        return replace(self, label=label, case_id=case_id)


@dataclass(frozen=True, slots=True)
class BagBatch:
    """Bags packed end to end: bag b holds rows ``offsets[b]`` to ``offsets[b + 1]``.

    Args:
        features: Instances of all bags.
        offsets: First row of each bag, and the end of the last. They stay in main memory, so that
            cutting a batch into bags does not wait for the GPU.
        labels: Label of each bag; `NO_LABEL` where unknown.
        slide_ids: Name of each bag's slide.
        coords: Top-left corners in level-0 pixels, where every bag has them.
        patch_sizes: Side of an instance in level-0 pixels, a value a bag; 0 where unknown.
        bounds: The offsets on the device of the features; copied there where not given.

    Example:
        >>> bags = [Bag(torch.ones(3, 2), "a", label=0), Bag(torch.ones(1, 2), "b", label=1)]
        >>> BagBatch.pack(bags).offsets
        tensor([0, 3, 4])
    """

    features: Float[Tensor, "T D"]
    offsets: Int[Tensor, " _"]
    labels: Int[Tensor, " B"]
    slide_ids: tuple[str, ...]
    coords: Int[Tensor, "T 2"] | None = None
    patch_sizes: Int[Tensor, " B"] | None = None
    bounds: Int[Tensor, " _"] | None = None

    @staticmethod
    def pack(bags: Sequence[Bag], features: Float[Tensor, "T D"] | None = None) -> "BagBatch":
        """Pack bags end to end.

        Args:
            bags: The bags.
            features: Their features, where they lie end to end already.

        Raises:
            BagError: There are no bags, or their feature dimensions differ.
        """
        if not bags:
            raise BagError("Expected at least one bag to pack, but got none.")
        dims = {bag.feature_dim for bag in bags}
        if len(dims) > 1:
            odd = next(bag for bag in bags if bag.feature_dim != bags[0].feature_dim)
            raise BagError(
                f"Expected every bag to have the {bags[0].feature_dim} features of "
                f"'{bags[0].slide_id}', but '{odd.slide_id}' has {odd.feature_dim}. "
                "Use embeddings of one encoder."
            )
        sizes = torch.tensor([bag.num_instances for bag in bags])
        coords = [bag.coords for bag in bags if bag.coords is not None]
        patch_sizes = [bag.patch_size or 0 for bag in bags]
        return BagBatch(
            features=_end_to_end(bags) if features is None else features,
            offsets=torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]),
            labels=torch.tensor([NO_LABEL if bag.label is None else bag.label for bag in bags]),
            slide_ids=tuple(bag.slide_id for bag in bags),
            coords=torch.cat(coords) if len(coords) == len(bags) else None,
            patch_sizes=torch.tensor(patch_sizes) if any(patch_sizes) else None,
        )

    def __repr__(self) -> str:
        num, dim = self.features.shape
        size = f"{counted(num, 'instance')} × {counted(dim, 'feature')}"
        return f"BagBatch({counted(self.num_bags, 'bag')}, {size}, {self.features.device})"

    @property
    def num_bags(self) -> int:
        """Number of bags B."""
        return len(self.slide_ids)

    @property
    def segments(self) -> Segments:
        """The rows of each bag."""
        if self.bounds is None:
            return Segments.of(self.offsets, self.features.device)
        return Segments(self.offsets, self.bounds)

    @property
    def sizes(self) -> Int[Tensor, " B"]:
        """Number of instances of each bag, on the device of the features."""
        return self.segments.sizes

    @property
    def bag_index(self) -> Int[Tensor, " T"]:
        """Position of the bag that each instance belongs to."""
        return self.segments.index

    def to(
        self,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
    ) -> "BagBatch":
        """Move to a device; `dtype` applies to the features alone."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            features=self.features.to(device=device, dtype=dtype, non_blocking=non_blocking),
            labels=self.labels.to(device, non_blocking=non_blocking),
            coords=moved(self.coords),
            patch_sizes=moved(self.patch_sizes),
            bounds=moved(self.bounds),
        )

    def alone(self, start: int, end: int) -> "BagBatch":
        """Take instances ``start`` to ``end``, each as an unlabelled bag of its own."""
        owner = self.bag_index[start:end]
        names = [self.slide_ids[b] for b in owner.tolist()]
        return BagBatch(
            features=self.features[start:end],
            offsets=torch.arange(len(names) + 1),
            labels=torch.full_like(owner, NO_LABEL),
            slide_ids=tuple(names),
            coords=None if self.coords is None else self.coords[start:end],
            patch_sizes=None if self.patch_sizes is None else self.patch_sizes[owner],
        )

    def bags(self) -> list[Bag]:
        """Take the batch apart again (without cases and instance labels)."""
        bounds = self.offsets.tolist()
        labels = self.labels.tolist()
        return [
            Bag(
                features=self.features[start:end],
                slide_id=slide_id,
                label=None if labels[b] == NO_LABEL else labels[b],
                coords=None if self.coords is None else self.coords[start:end],
                patch_size=None if self.patch_sizes is None else int(self.patch_sizes[b]) or None,
            )
            for b, (slide_id, start, end) in enumerate(
                zip(self.slide_ids, bounds[:-1], bounds[1:], strict=True)
            )
        ]


def _end_to_end(bags: Sequence[Bag]) -> Float[Tensor, "T D"]:
    if len(bags) == 1:  # not copied: it may be larger than the free memory
        return bags[0].features
    return torch.cat([bag.features for bag in bags])


def _check_shapes(bag: Bag) -> None:
    shape = tuple(bag.features.shape)
    if len(shape) != 2:
        raise BagError(
            f"Expected the features of '{bag.slide_id}' as a matrix (instances, features), "
            f"but got shape {shape}."
        )
    if shape[0] == 0:
        raise EmptyBagError(f"Expected at least one instance in '{bag.slide_id}', but got none.")
    if shape[1] == 0:
        raise BagError(f"Expected at least one feature in '{bag.slide_id}', but got none.")
    if bag.patch_size is not None and not 1 <= bag.patch_size <= FARTHEST:
        raise BagError(
            f"Expected the side of a patch of '{bag.slide_id}' as pixels, 1 or more and at most "
            f"{FARTHEST}, but got {bag.patch_size}."
        )
    if bag.coords is not None and tuple(bag.coords.shape) != (shape[0], 2):
        raise BagError(
            f"Expected coordinates of shape ({shape[0]}, 2) for the {shape[0]} instances of "
            f"'{bag.slide_id}', but got {tuple(bag.coords.shape)}."
        )
    if bag.instance_labels is not None and tuple(bag.instance_labels.shape) != (shape[0],):
        raise BagError(
            f"Expected {shape[0]} instance labels for '{bag.slide_id}', "
            f"but got shape {tuple(bag.instance_labels.shape)}."
        )


def _check_finite(bag: Bag) -> None:
    # A sum is NaN or infinite if one entry is: one pass, no mask of the bag's size. Sums of large
    # entries may overflow too; the mask then decides.
    if torch.isfinite(bag.features.sum(dim=1)).all():
        return
    rows = (~torch.isfinite(bag.features)).any(dim=1).nonzero().flatten()
    if len(rows) == 0:
        return
    raise BagError(
        f"Expected finite features in '{bag.slide_id}', but {len(rows)} of "
        f"{bag.num_instances} instances hold NaN or infinity (first: row {int(rows[0])}). "
        'Extract the slide again, or leave it out (`on_bad="skip"` where bags are read).'
    )
