"""The posterior of the attention of a run's folds against its prior."""

from collections.abc import Iterator, Mapping

import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import SgpmilError
from sgpmil.gp.sparse import Posterior
from sgpmil.models import SGPMIL, load_model
from sgpmil.models.process_use import ProcessUse, process_use
from sgpmil.runs.material import RunMaterial

_MOST = 2**14
"""Most patches of a fold that are looked at."""


def attention_posteriors(material: RunMaterial) -> Mapping[str, ProcessUse]:
    """Measure how far each fold's posterior of the attention is from its prior.

    It is measured at patches of the fold's test slides.

    Args:
        material: The run.

    Returns:
        The measures by fold; none of a fold without a Gaussian process, without its model, or
        without embeddings.
    """
    found: dict[str, ProcessUse] = {}
    if material.bags is None:
        return found
    there = set(material.bags.slide_ids)
    for fold in material.folds:
        slides = [slide_id for slide_id in fold.test.slide_ids if slide_id in there]
        if fold.checkpoint is None or not slides:
            continue
        try:
            model, _ = load_model(fold.checkpoint)
        except SgpmilError:  # moved or damaged: the sections that need the model say so
            continue
        bags = material.bags.subset(slides)
        if isinstance(model, SGPMIL) and bags.feature_dim == model.in_dim:
            found[fold.name] = process_use(_posteriors(model.eval(), bags))
    return found


def _posteriors(model: SGPMIL, bags: BagDataset) -> Iterator[Posterior]:
    """Yield the posterior at patches, as many of each slide."""
    most = max(2, _MOST // len(bags))
    with torch.no_grad():
        for bag in bags:
            rows = bag.features[:: -(-bag.num_instances // most)]
            yield model.posterior(rows.float())
