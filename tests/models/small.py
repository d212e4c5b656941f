"""Small models and bags for the tests of this folder."""

import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.gp.noise import ZeroNoise
from sgpmil.models.contract import MILModel, ModelOutput
from sgpmil.models.registry import build_model

IN_DIM = 6
SIZES = (5, 1, 19, 8)
SMALL = {
    "transmil": {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 4},
    "dgrmil": {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 4, "num_lesions": 3},
    "sgpmil": {
        "hidden_dims": (10, 8),
        "gp_dim": 3,
        "num_inducing": 5,
        "num_samples": 4,
        "preserved_dim": 2,
        "prediction_samples": 8,
    },
    "sgpmil/points": {
        "hidden_dims": (10, 8),
        "gp_dim": 3,
        "num_inducing": 5,
        "num_samples": 4,
        "preset": "points",
    },
    "agp": {"hidden_dims": (10, 8), "gp_dim": 3, "num_inducing": 5, "num_samples": 4},
    "abmil": {"hidden_dim": 8, "attention_dim": 4},
    "clam-sb": {"hidden_dim": 8, "attention_dim": 4, "instances_per_side": 3},
    "clam-mb": {"hidden_dim": 8, "attention_dim": 4, "instances_per_side": 3},
    "dsmil": {"query_dim": 4},
    "kernel-attention": {"hidden_dim": 8, "query_dim": 3, "attention_dim": 4},
    "bayesmil": {"hidden_dim": 8, "attention_dim": 4, "num_samples": 4},
    "mixmil": {"projection_dim": 5, "num_samples": 4, "num_train_samples": 3},
    "mean-pool": {"hidden_dim": 8},
    "max-pool": {"hidden_dim": 8},
}


def random_bags(sizes=SIZES, *, num_classes=2, seed=0, dtype=torch.float32) -> list[Bag]:
    """Draw bags on a grid of patches, whose features have unequal means and scales."""
    generator = torch.Generator().manual_seed(seed)
    scale = torch.tensor([1.0, 10.0, 0.1, 1.0, 3.0, 1.0])
    return [
        Bag(
            (scale * torch.randn(n, IN_DIM, generator=generator) + scale).to(dtype),
            slide_id=f"s{i}",
            label=i % num_classes,
            coords=torch.tensor([(10 * (k % 4), 10 * (k // 4)) for k in range(n)]),
            patch_size=10,
        )
        for i, n in enumerate(sizes)
    ]


def small_model(name, *, num_classes=2, seed=0, dtype=torch.float32, **settings) -> MILModel:
    """Build a small model, fitted to the scale of `random_bags`, in evaluation mode.

    The name may have a preset behind it, as in ``sgpmil/points``.
    """
    torch.manual_seed(seed)
    values = {**SMALL.get(name, {}), **settings}
    model = build_model(name.split("/")[0], in_dim=IN_DIM, num_classes=num_classes, **values)
    model.initialise(BagBatch.pack(random_bags((60,), seed=9)), seed=seed)
    with torch.no_grad():  # away from the symmetric start of q(v)
        if hasattr(model, "gp"):
            model.gp.variational.variational_mean.normal_()
            free = model.gp.variational.chol_variational_covar
            free.copy_(0.6 * torch.eye(len(free)) + 0.1 * torch.randn(free.shape))
        if name == "mixmil":  # away from uniform attention
            model.posterior.mean.normal_()
        if name == "bayesmil":
            for layer in model.variational_layers:
                layer.weight.normal_(0, 0.5)
    return model.to(dtype).eval()


def without_noise(model: MILModel, batch: BagBatch) -> ModelOutput:
    """Call a model such that its samples are the posterior's mean."""
    return model(batch, noise=ZeroNoise()) if model.is_probabilistic else model(batch)
