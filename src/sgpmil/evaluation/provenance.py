"""Provenance of predictions: the model, the settings and the slides that they come from.

A table of predictions carries it (`PredictionTable.provenance`), and files keep it. Slides are
recorded by digests of their features, not by name, so that a renamed or copied slide is known
again, and two tables of the same names but other data are told apart.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class PredictionProvenance:
    """The origin of predictions; what is not known is empty or None.

    Args:
        model: Name of the model.
        source: Run, fold, checkpoint or exported folder that predicted.
        folds: Names of the folds that predicted together.
        encoders: Names of the patch encoders of the predicted slides.
        settings: Settings of the model, and of the training where known.
        version: Version of this package.
        created: Date and time of the prediction, in UTC.
        prevalence: Class shares that the probabilities are for, by class.
        precision: Arithmetic of the dense layers that was asked for.
        seed: Seed of the training.
        samples: Number of posterior samples of a prediction, where the model has a fixed number.
        train: Digests of the slides that were trained on.
        validation: Digests of the slides that were validated on.
        calibration: Digests of the slides that calibrated sets and deferral.
        slides: Digest of each predicted slide.
        novelty_slides: Number of training slides that the p-values of novelty are of.
        other_features: In what the features are not like those of training (`other_features`).
        coverage: Coverage that prediction sets were made for, where there are any.
        num_calibration: Number of slides that they were calibrated on.

    Example:
        >>> one = PredictionProvenance(model="abmil", source="runs/a/fold-0", folds=("0",))
        >>> PredictionProvenance.from_json(one.to_json()) == one
        True
    """

    model: str = ""
    source: str = ""
    folds: tuple[str, ...] = ()
    encoders: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    created: str = ""
    prevalence: Mapping[str, float] = field(default_factory=dict)
    precision: str = ""
    seed: int | None = None
    samples: int | None = None
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    calibration: tuple[str, ...] = ()
    slides: Mapping[str, str] = field(default_factory=dict)
    novelty_slides: int | None = None
    other_features: str = ""
    coverage: float | None = None
    num_calibration: int | None = None

    @property
    def line(self) -> str:
        """The provenance in one line."""
        several = f"{len(self.folds)} folds" if len(self.folds) > 1 else ""
        parts_of = (("training", self.train), ("validation", self.validation))
        counts = [f"{len(slides)} {part}" for part, slides in parts_of if slides]
        noun = "slide" if len(self.train) + len(self.validation) == 1 else "slides"
        parts = [
            f"{self.model or 'model'} of {self.source}" if self.source else self.model,
            several,
            f"{' and '.join(counts)} {noun}" if counts and not several else "",
            ", ".join(self.encoders),
            f"sgpmil {self.version}" if self.version else "",
            self.created[:10],
        ]
        return "; ".join(part for part in parts if part)

    def to_json(self) -> dict[str, Any]:
        """Return what is known, as JSON values."""
        return {
            name: value for name, value in asdict(self).items() if value not in ("", None, (), {})
        }

    @staticmethod
    def from_json(content: Any) -> "PredictionProvenance | None":
        """Read what `to_json` gave; None where it is not provenance.

        Entries of a later version that this one does not know are left out, and damaged ones.
        """
        if not isinstance(content, Mapping):
            return None
        values: dict[str, Any] = {}
        for one in fields(PredictionProvenance):
            value = content.get(one.name)
            usual: Any = {} if one.default is MISSING else one.default
            if isinstance(usual, tuple) and isinstance(value, list):
                values[one.name] = tuple(entry for entry in value if isinstance(entry, str))
            elif isinstance(value, int if usual is None else type(usual)):
                values[one.name] = value
        return PredictionProvenance(**values)


def joined_provenance(
    found: Sequence[PredictionProvenance | None],
) -> PredictionProvenance | None:
    """Join the provenance of tables that are put together; None where one of them has none.

    Where the tables differ in a text or number, it is left out; folds, encoders and slides of all
    are kept.
    """
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    values: dict[str, Any] = {}
    for one in fields(PredictionProvenance):
        own = [getattr(provenance, one.name) for provenance in known]
        if isinstance(own[0], tuple):
            values[one.name] = tuple(dict.fromkeys(entry for entries in own for entry in entries))
        elif one.name == "slides":
            values[one.name] = {name: digest for slides in own for name, digest in slides.items()}
        elif all(value == own[0] for value in own):
            values[one.name] = own[0]
    return PredictionProvenance(**values)


def differing_slides(
    one: PredictionProvenance | None, other: PredictionProvenance | None
) -> tuple[str, ...]:
    """Name the slides that both tables have under one name with different features."""
    if one is None or other is None:
        return ()
    return tuple(
        name
        for name, digest in one.slides.items()
        if name in other.slides and other.slides[name] != digest
    )
