"""The prototypes of a fold's test slides."""

from collections.abc import Callable, Iterator, Sequence

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.tables import listed
from sgpmil.errors import SgpmilError
from sgpmil.explanation.prototypes import (
    Nuclei,
    PrototypeExplanation,
    SimilarityMeasure,
    explain_prototypes,
    read_nuclei,
)
from sgpmil.models import SGPMIL, load_model
from sgpmil.runs.material import MaterialFold, SlideSources

__all__ = ["fold_prototypes", "model_of"]


def model_of(fold: MaterialFold) -> tuple[SGPMIL | None, str]:
    """Load the model of a fold, where it has inducing points.

    Args:
        fold: The fold.

    Returns:
        The model or, where there is none, why.
    """
    if fold.checkpoint is None:
        return None, "There are no prototypes: the model of these predictions is unknown."
    try:
        model, _ = load_model(fold.checkpoint)
    except SgpmilError as error:
        return None, f"There are no prototypes of fold {fold.name}: {error}"
    if not isinstance(model, SGPMIL):
        return None, f"There are no prototypes: {model.name} has no inducing points."
    return model, ""


def fold_prototypes(
    model: SGPMIL,
    fold: MaterialFold,
    bags: BagDataset,
    sources: SlideSources,
    measure: SimilarityMeasure,
    on_slide: Callable[[str], None] | None = None,
) -> tuple[PrototypeExplanation, tuple[str, ...]]:
    """Explain all test slides of a fold together, so that a colour means the same on each.

    Args:
        model: The fold's model.
        fold: The fold.
        bags: The embeddings.
        sources: Nuclei, where there are any.
        measure: How patches are compared with inducing points.
        on_slide: Called with the name of each slide that is done.

    Returns:
        The prototypes, and a sentence for each slide that counts in none.

    Raises:
        ExplanationError: No slide can be explained, or its parts do not fit together.
    """
    readable = _ReadableBags(bags, fold.test.slide_ids)
    found = explain_prototypes(
        model,
        readable,
        scores={p.slide_id: p.instances for p in fold.test.predictions if p.instances is not None},
        measure=measure,
        nuclei=(lambda slide_id: _nuclei(sources, slide_id)) if sources.nuclei else None,
        on_slide=on_slide,
    )
    return found, tuple(readable.failures.values())


class _ReadableBags:
    """Bags of slides, without those that cannot be read, which are remembered."""

    def __init__(self, bags: BagDataset, slide_ids: Sequence[str]) -> None:
        known = set(bags.slide_ids)
        self.bags = bags
        self.slide_ids = [slide_id for slide_id in slide_ids if slide_id in known]
        missing = [slide_id for slide_id in slide_ids if slide_id not in known]
        self.failures: dict[str, str] = {}
        if missing:
            self.failures[""] = (
                f"{len(missing)} slides have no embeddings, and count in no prototype: "
                f"{listed(missing)}."
            )

    def __iter__(self) -> Iterator[Bag]:
        for slide_id in self.slide_ids:
            try:
                yield self.bags[self.bags.index(slide_id)]
            except SgpmilError as error:
                self.failures[slide_id] = f"'{slide_id}' counts in no prototype: {error}"


def _nuclei(sources: SlideSources, slide_id: str) -> Nuclei | None:
    if slide_id not in sources.nuclei:
        return None
    slide = sources.open(slide_id)
    if slide is None:
        return read_nuclei(sources.nuclei[slide_id])
    with slide:
        return read_nuclei(sources.nuclei[slide_id], magnification=slide.objective)
