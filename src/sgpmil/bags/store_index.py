"""The index of a packed store: which rows belong to which slide, and where they came from."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from sgpmil.bags.readers import BagHeader
from sgpmil.bags.target import Target, read_target

__all__ = ["LeftOutSlide", "PackedSlide", "StoreIndex"]

_KIND = "sgpmil-packed-bags"
_VERSION = 2


@dataclass(frozen=True, slots=True)
class PackedSlide:
    """One slide of a packed store.

    Args:
        slide_id: Name of the slide.
        case_id: Patient it comes from.
        label: Class index, where known.
        num_instances: Number of its rows.
        patch_size: Side of an instance in level-0 pixels, where known.
        encoder: Name of the patch encoder, where known.
        magnification: Magnification of the instances, where known.
        has_coords: Whether its rows of coordinates mean anything.
        has_instance_labels: Whether its rows of instance labels mean anything.
        stamp: What its source said of its content when it was packed.
    """

    slide_id: str
    case_id: str
    label: int | None
    num_instances: int
    patch_size: int | None
    encoder: str | None
    magnification: float | None
    has_coords: bool
    has_instance_labels: bool
    stamp: str

    def header(self, feature_dim: int, dtype: str) -> BagHeader:
        """Return what a bag file of this slide would say of itself."""
        return BagHeader(
            self.num_instances,
            feature_dim,
            dtype,
            encoder=self.encoder,
            magnification=self.magnification,
            patch_size=self.patch_size,
            has_coords=self.has_coords,
            has_instance_labels=self.has_instance_labels,
        )


@dataclass(frozen=True, slots=True)
class LeftOutSlide:
    """A slide that was not packed because it could not be used."""

    slide_id: str
    stamp: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreIndex:
    """The index of a packed store.

    Args:
        dtype: Data type of the features: "float16" or "float32".
        feature_dim: Number of features of an instance.
        target: What the labels are.
        slides: Slides in the order of their rows.
        left_out: Slides that could not be used.
    """

    dtype: str
    feature_dim: int
    target: Target
    slides: tuple[PackedSlide, ...]
    left_out: tuple[LeftOutSlide, ...] = ()

    @property
    def num_rows(self) -> int:
        """Number of instances of all slides."""
        return sum(slide.num_instances for slide in self.slides)

    def to_json(self) -> str:
        """Write the index as JSON."""
        content = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        return json.dumps(content | {"target": self.target.to_json()}, indent=1)

    @staticmethod
    def from_json(text: str) -> "StoreIndex":
        """Read an index.

        Raises:
            ValueError: It is not such an index, or of a later version.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("kind") != _KIND:
            raise ValueError("not the index of a packed store")
        if content.get("version") not in range(1, _VERSION + 1):
            raise ValueError(f"version {content.get('version')} instead of {_VERSION}")
        try:
            index = StoreIndex(
                dtype=str(content["dtype"]),
                feature_dim=int(content["feature_dim"]),
                target=read_target(content),
                slides=tuple(_slide(entry) for entry in content["slides"]),
                left_out=tuple(LeftOutSlide(**entry) for entry in content["left_out"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or wrong: {error}") from error
        if index.dtype not in ("float16", "float32") or not index.slides:
            raise ValueError(f"{len(index.slides)} slides of type {index.dtype}")
        return index


def _slide(entry: dict[str, Any]) -> PackedSlide:
    slide = PackedSlide(**entry)
    if not isinstance(slide.num_instances, int) or slide.num_instances < 1:
        raise ValueError(f"{slide.num_instances} instances in '{slide.slide_id}'")
    return slide
