"""Origin of features: encoder, magnification and patch side, as far as bags state them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sgpmil.bags.dataset import BagDataset


class FeatureOriginWarning(UserWarning):
    """Features come from another encoder, magnification or patch size than those of training."""


@dataclass(frozen=True, slots=True)
class FeatureOrigin:
    """The origin of the features of bags; what no bag states is empty.

    Args:
        encoders: Names of the patch encoders.
        magnifications: Magnifications of the instances.
        patch_sizes: Sides of an instance in level-0 pixels.

    Example:
        >>> trained = FeatureOrigin(magnifications=(20.0,))
        >>> trained.difference(FeatureOrigin(magnifications=(40.0,)))
        'instances at 40×, where training had 20×'
    """

    encoders: tuple[str, ...] = ()
    magnifications: tuple[float, ...] = ()
    patch_sizes: tuple[int, ...] = ()

    @staticmethod
    def of(bags: BagDataset) -> "FeatureOrigin":
        """Collect what the bags of a data set state, without reading them."""
        headers = [bags.source.header(slide_id) for slide_id in bags.slide_ids]
        return FeatureOrigin(
            tuple(sorted({h.encoder for h in headers if h.encoder is not None})),
            tuple(sorted({h.magnification for h in headers if h.magnification is not None})),
            tuple(sorted({h.patch_size for h in headers if h.patch_size is not None})),
        )

    @staticmethod
    def joined(origins: Iterable["FeatureOrigin"]) -> "FeatureOrigin":
        """Return what any of several states."""
        known = list(origins)
        return FeatureOrigin(
            tuple(sorted({name for one in known for name in one.encoders})),
            tuple(sorted({value for one in known for value in one.magnifications})),
            tuple(sorted({side for one in known for side in one.patch_sizes})),
        )

    def __bool__(self) -> bool:
        return bool(self.encoders or self.magnifications or self.patch_sizes)

    def difference(self, other: "FeatureOrigin") -> str:
        """Say what other bags have and these do not; empty where nothing speaks against them.

        Only what both state can be compared. A side in level-0 pixels also differs where the
        magnification does, so it is named only where that is not. Spellings of one
        encoder (``UNI-v1``, ``uni_v1``) are the same.
        """
        known = {_spelling(name) for name in self.encoders}
        pairs = (
            (
                "encoder {}",
                self.encoders,
                [name for name in other.encoders if _spelling(name) not in known],
            ),
            (
                "instances at {}",
                [f"{value:g}×" for value in self.magnifications],
                [f"{value:g}×" for value in other.magnifications],
            ),
        )
        found = [
            f"{what.format(' and '.join(new))}, where training had {' and '.join(old)}"
            for what, old, new in pairs
            if old and new and not set(new) <= set(old)
        ]
        sides, others = set(self.patch_sizes), set(other.patch_sizes)
        magnified = any(one.startswith("instances") for one in found)
        if sides and others and not magnified and not others <= sides:
            new, old = (" and ".join(map(str, sorted(one))) for one in (others, sides))
            found.append(
                f"patches of {new} pixels at level 0, where training had {old} (another patch "
                "size, or slides scanned at another magnification)"
            )
        return "; ".join(found)

    def to_json(self) -> dict[str, list[Any]]:
        """Return what is known, as JSON values."""
        values: dict[str, list[Any]] = {
            "encoders": list(self.encoders),
            "magnifications": list(self.magnifications),
            "patch_sizes": list(self.patch_sizes),
        }
        return {name: value for name, value in values.items() if value}

    @staticmethod
    def from_json(content: Any) -> "FeatureOrigin":
        """Read what `to_json` gave; nothing is known where it is something else."""
        if not isinstance(content, Mapping):
            return FeatureOrigin()
        try:
            return FeatureOrigin(
                tuple(map(str, content.get("encoders", ()))),
                tuple(map(float, content.get("magnifications", ()))),
                tuple(map(int, content.get("patch_sizes", ()))),
            )
        except (TypeError, ValueError, OverflowError):
            return FeatureOrigin()


def _spelling(encoder: str) -> str:
    return encoder.lower().replace("-", "_")


def other_features(trained: Iterable[FeatureOrigin], bags: BagDataset) -> str:
    """Say in what features are not like those of training; empty where nothing speaks against them.

    Args:
        trained: Origin of the training features of each model.
        bags: The bags to predict.
    """
    known = FeatureOrigin.joined(trained)
    return known.difference(FeatureOrigin.of(bags)) if known else ""


def other_features_sentence(found: str) -> str:
    """Return a warning of what `other_features` found."""
    return f"These bags are not like those of training: {found}. Predictions may not hold for them."
