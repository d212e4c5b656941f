"""A small model, bags with all that a summary counts, and their explanation."""

from dataclasses import replace

import numpy as np
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.models.sgpmil import SGPMIL
from tests.models.small import random_bags, small_model

SIZES = (40, 7, 25)

FREE_POINTS = {
    "inducing": "points",
    "inputs": "sigmoid",
    "preserved_dim": 0,
    "kernel": "rbf",
    "mean": "linear",
    "outputscale": None,
    "lengthscale_start": "cube",
    "scores": "samples",
    "prediction_samples": 0,
    "classifier_scale": None,
}
"""The design with learned inducing points, whatever the default is."""
PATCHES = {
    **FREE_POINTS,
    "inducing": "patches",
    "inputs": "standardised",
    "preserved_dim": 2,
    "kernel": "rbf-alone",
    "mean": "constant",
    "outputscale": 4.0,
    "lengthscale_start": "unit",
    "scores": "moments",
    "classifier_scale": 0.3,
}
"""The design with inducing patches."""


def spread_model(*, dtype=torch.float64, **settings) -> SGPMIL:
    """Build a model whose inducing points lie where the patches do, so that several are used."""
    model = small_model("sgpmil", num_inducing=9, dtype=dtype, **{**FREE_POINTS, **settings})
    (bag,) = random_bags((9,), seed=3, dtype=dtype)
    with torch.no_grad():
        model.projection.weight.mul_(6)
        model.gp.inducing_points.copy_(model.gp_inputs(bag.features))
    return model


def patch_model(*, num_patches=9, dtype=torch.float64, **settings) -> SGPMIL:
    """Build a model whose inducing points are patches of the slides ``t0`` to ``t2``."""
    model = small_model("sgpmil", num_inducing=num_patches, dtype=dtype, **{**PATCHES, **settings})
    training = [
        replace(bag, slide_id=f"t{number}")
        for number, bag in enumerate(random_bags((30, 12, 20), seed=5, dtype=dtype))
    ]
    model.start_epoch(0, epochs=1, batches=[BagBatch.pack(training)], num_bags=3, seed=0)
    return model


def labelled_bags(sizes=SIZES, *, seed=0, dtype=torch.float64) -> list[Bag]:
    """Draw bags on a grid, some of whose patches have an unknown label."""
    generator = torch.Generator().manual_seed(seed)
    return [
        replace(
            bag,
            instance_labels=torch.randint(-1, 3, (bag.num_instances,), generator=generator),
        )
        for bag in random_bags(sizes, seed=seed, dtype=dtype)
    ]


def attention_scores(bags, *, seed=0) -> dict[str, InstanceScores]:
    """Draw the attention of each patch."""
    rng = np.random.default_rng(seed)
    return {
        bag.slide_id: InstanceScores(
            rng.dirichlet(np.ones(bag.num_instances)),
            np.zeros(bag.num_instances),
            coords=bag.coords.numpy(),
            patch_size=bag.patch_size,
        )
        for bag in bags
    }
