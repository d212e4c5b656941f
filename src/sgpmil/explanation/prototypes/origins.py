"""Origins of prototypes that are inducing patches, and what the model says of each alone."""

from collections.abc import Callable

from sgpmil.bags.bag import Bag
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.predictor import predict
from sgpmil.explanation.prototypes.summary import PatchReference
from sgpmil.models.sgpmil import SGPMIL


def patch_origins(
    model: SGPMIL, patch_size: Callable[[str], int | None] = lambda _: None
) -> tuple[PatchReference, ...]:
    """Give the training patch that each prototype is; none where they are free inducing points.

    Args:
        model: The model.
        patch_size: Gives the side of a slide's patches in level-0 pixels, where known.

    Raises:
        ExplanationError: The patches were never chosen.
    """
    if model.patches is None:
        return ()
    origins = model.patches.origins
    if not all(origin.slide_id for origin in origins):
        raise ExplanationError(
            "Expected a trained model, whose inducing patches are patches of training slides, but "
            "got one whose patches were never chosen. Train it (sgpmil train)."
        )
    return tuple(
        PatchReference(origin.slide_id, origin.row, 1.0, origin.coords, patch_size(origin.slide_id))
        for origin in origins
    )


def single_log_odds(
    model: SGPMIL,
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Give mean and standard deviation of each class's log-odds for a bag of each patch alone.

    Both are empty where prototypes are free inducing points.
    """
    if model.patches is None:
        return [], []
    bag = Bag(model.patches.features.cpu(), "inducing patches")
    (found,) = predict(model, [bag], precision="32", novelty=False).predictions
    scores = found.instances
    if scores is None or scores.single_mean is None or scores.single_std is None:
        return [], []
    return (
        [tuple(row) for row in scores.single_mean.tolist()],
        [tuple(row) for row in scores.single_std.tolist()],
    )
