"""Slides that a model has seen in training or validation, to know them again.

A slide is known by its name, or by the content of its bag, which a copy under another name has too.
A slide of a patient who has another slide in training is known by the patient's name.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from sgpmil.bags.dataset import BagDataset, case_digest, content_of
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.memory_bags import is_numbered_name

SeenPart = Literal["", "train", "patient", "validation"]
"""Part of a model's slides that a slide is of; empty where the model has not seen it."""


@dataclass(frozen=True, slots=True)
class SeenSlides:
    """Names and contents of slides that models have seen.

    Args:
        train: Those trained on.
        validation: Those that chose an epoch, a temperature or a threshold.
        patients: Digests of the patients who were trained on, each with the label of a slide
            (`case_digest`).
    """

    train: Set[str] = frozenset()
    validation: Set[str] = frozenset()
    patients: Set[str] = frozenset()

    @property
    def train_contents(self) -> tuple[str, ...]:
        """Digests of the training slides, sorted; nothing of slides known by name alone."""
        return _contents(self.train)

    @property
    def validation_contents(self) -> tuple[str, ...]:
        """Digests of the validation slides, sorted."""
        return _contents(self.validation)

    @staticmethod
    def of_parts(
        train: Sequence[str],
        validation: Sequence[str],
        digests: Mapping[str, str],
        *,
        with_names: bool = True,
    ) -> "SeenSlides":
        """Collect slides by name and content.

        Args:
            train: Names of those trained on.
            validation: Names of those validated on.
            digests: Digest of each slide (`BagDataset.slide_digests`), where known.
            with_names: Whether slides are known by their names too, and not by content alone.
        """

        def known(slides: Sequence[str]) -> frozenset[str]:
            contents = (content_of(digests[name]) for name in slides if name in digests)
            return frozenset((*(map(clean_slide_id, slides) if with_names else ()), *contents))

        return SeenSlides(known(train), known(validation), _patients(digests, train))

    @staticmethod
    def of_bags(train: BagDataset, validation: BagDataset | None = None) -> "SeenSlides":
        """Collect the slides of data sets; bags that have only numbers are known by content."""
        parts = (train,) if validation is None else (train, validation)
        digests: dict[str, str] = {}
        for part in parts:
            cases = dict(zip(part.slide_ids, part.case_ids, strict=True))
            digests |= {
                slide: content_of(digest) if is_numbered_name(cases[slide]) else digest
                for slide, digest in part.slide_digests().items()
            }
        validated = () if validation is None else validation.slide_ids
        found = SeenSlides.of_parts(train.slide_ids, validated, digests)
        return SeenSlides(
            frozenset(key for key in found.train if not is_numbered_name(key)),
            frozenset(key for key in found.validation if not is_numbered_name(key)),
            found.patients,
        )

    @staticmethod
    def joined(several: Iterable["SeenSlides"]) -> "SeenSlides":
        """Return the slides that any of several models has seen."""
        known = list(several)
        return SeenSlides(
            frozenset(key for one in known for key in one.train),
            frozenset(key for one in known for key in one.validation),
            frozenset(key for one in known for key in one.patients),
        )

    def __bool__(self) -> bool:
        return bool(self.train or self.validation)

    def part(self, slide_id: str, case_id: str | None, digest: str, num_labels: int) -> SeenPart:
        """Return the part that a slide, or another one of its patient, was in.

        Args:
            slide_id: Name of the slide.
            case_id: Its patient.
            digest: Digest of its bag (`BagDataset.slide_digests`).
            num_labels: Number of labels that another slide of the patient may have.
        """
        keys = {clean_slide_id(slide_id), content_of(digest)} - {""}
        if keys & self.train:
            return "train"
        labels = (None, *range(num_labels))
        if case_id and {case_digest(case_id, label) for label in labels} & self.patients:
            return "patient"
        return "validation" if keys & self.validation else ""


def _contents(keys: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(key for key in keys if re.fullmatch(r"[0-9a-f]{16}", key)))


def _patients(digests: Mapping[str, str], trained: Iterable[str]) -> frozenset[str]:
    """Return the digests of the patients of slides; none where a patient is a placeholder."""
    found = [digests[slide].partition("-")[2] for slide in set(trained) if slide in digests]
    most = Counter(found).most_common(1)
    # Of half of the slides, as of a placeholder, half may have each of two labels.
    if most and most[0][1] >= max(10, len(found) / 4):
        return frozenset()
    return frozenset(found) - {""}
