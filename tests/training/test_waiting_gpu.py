"""On a GPU itself, no training step waits for it."""

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.models.registry import build_model, list_models
from sgpmil.training.defaults import default_training
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.steps import OptimiserSteps

pytestmark = pytest.mark.gpu


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("name", [n for n in list_models() if n != "agp"])
def test_no_step_waits(name):
    torch.manual_seed(0)
    model = build_model(name, in_dim=16, num_classes=2).cuda().train()
    settings = default_training(name)
    steps = OptimiserSteps(model, build_optimiser(settings, model), settings, 18)
    rng = np.random.default_rng(0)
    bags = [
        Bag(
            torch.from_numpy(rng.normal(size=(n, 16)).astype(np.float32)),
            f"s{n}",
            label=n % 2,
            coords=256 * torch.from_numpy(rng.integers(0, 40, (n, 2))),
            patch_size=256,
        )
        for n in range(1, 37, 2)
    ]
    batch = BagBatch.pack(bags).to("cuda")

    def step() -> None:
        _, loss = steps.forward(batch)
        steps.backward(loss)
        if settings.optimiser in ("adamw", "adam"):  # the others ask how many steps there were
            steps.step()

    step()  # libraries wait at their first call
    try:
        torch.cuda.set_sync_debug_mode("error")
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
