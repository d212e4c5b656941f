"""Slides that a model has seen in training or validation, among those that it predicts.

A slide is known by its name, or by the content of its bag, which a copy under another name has too.
A slide of a patient who has another slide in training is known by the patient's name.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from sgpmil.bags.dataset import case_digest, content_of
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.splits import Fold
from sgpmil.errors import SgpmilError
from sgpmil.evaluation.prediction import Prediction, Seen
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run


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
    def of_model(model: Path, *, with_names: bool = True) -> "SeenSlides":
        """Look up what the model at a path has seen; nothing where no run tells.

        Args:
            model: A run, the folder of a fold, or a checkpoint in one.
            with_names: Whether slides are known by their names too, and not by content alone.
        """
        model = model.resolve()  # a fold may be the current folder
        try:
            if is_run(model):
                run = Run.open(model)
                return SeenSlides._of_folds(run.splits.values(), run.slides, with_names)
            folder = model if model.is_dir() else model.parent
            if not is_run(folder.parent):
                return SeenSlides()
            run = Run.open(folder.parent)
            fold = run.splits.get(folder.name.removeprefix("fold-"))
            return SeenSlides._of_folds(() if fold is None else (fold,), run.slides, with_names)
        except SgpmilError:  # a damaged run says nothing; its checkpoint predicts all the same
            return SeenSlides()

    @staticmethod
    def _of_folds(
        folds: Iterable[Fold], digests: Mapping[str, str], with_names: bool
    ) -> "SeenSlides":
        folds = tuple(folds)

        def known(slides: Iterable[str]) -> frozenset[str]:
            names = list(slides)
            contents = (content_of(digests[name]) for name in names if name in digests)
            return frozenset((*(map(clean_slide_id, names) if with_names else ()), *contents))

        trained = [slide for fold in folds for slide in fold.train]
        return SeenSlides(
            known(trained),
            known(slide for fold in folds for slide in fold.val),
            _patients(digests, trained),
        )

    def __bool__(self) -> bool:
        return bool(self.train or self.validation)

    def mark(self, prediction: Prediction, digest: str) -> Prediction:
        """Note in a prediction whether its slide, or another of its patient, was seen.

        Args:
            prediction: The prediction.
            digest: Digest of its bag (`BagDataset.slide_digests`).
        """
        keys = {clean_slide_id(prediction.slide_id), content_of(digest)} - {""}
        # The patient's other slides may have any label.
        labels = (None, *range(len(prediction.probs)))
        cases = {case_digest(prediction.case_id, label) for label in labels}
        seen: Seen = ""
        if keys & self.train:
            seen = "train"
        elif prediction.case_id and cases & self.patients:
            seen = "patient"
        elif keys & self.validation:
            seen = "validation"
        return replace(prediction, seen=seen)


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
