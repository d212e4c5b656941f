"""Slides that a model has seen in training or validation, among those that it predicts.

A slide is known by its name, or by the content of its bag, which a copy under another name has too.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

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
    """

    train: Set[str] = frozenset()
    validation: Set[str] = frozenset()

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

        return SeenSlides(
            known(slide for fold in folds for slide in fold.train),
            known(slide for fold in folds for slide in fold.val),
        )

    def __bool__(self) -> bool:
        return bool(self.train or self.validation)

    def mark(self, prediction: Prediction, digest: str) -> Prediction:
        """Note in a prediction whether its slide was seen.

        Args:
            prediction: The prediction.
            digest: Digest of its bag (`BagDataset.slide_digests`).
        """
        keys = {clean_slide_id(prediction.slide_id), content_of(digest)} - {""}
        seen: Seen = (
            "train" if keys & self.train else "validation" if keys & self.validation else ""
        )
        return replace(prediction, seen=seen)


def content_of(digest: str) -> str:
    """Return the part of a slide's digest that is of its features alone."""
    return digest.partition("-")[0]
