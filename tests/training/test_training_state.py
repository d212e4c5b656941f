import torch

from sgpmil.models.registry import build_model
from sgpmil.training.batches import PackedBatches
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.steps import OptimiserSteps
from sgpmil.training.training_state import TrainingState

from .conftest import TINY, toy_bags

GROUPS = [[0, 1], [2], [3, 4, 5], [7, 6]]


def test_a_state_is_put_back():
    bags = toy_bags()
    settings = TrainingSettings(precision="32")
    torch.manual_seed(0)
    model = build_model("sgpmil", in_dim=4, num_classes=2, **TINY["sgpmil"]).train()
    steps = OptimiserSteps(model, build_optimiser(settings, model), settings, len(bags))

    def epoch():
        for number in range(len(GROUPS)):
            _, loss = steps.forward(PackedBatches(bags, GROUPS)[number])
            steps.backward(loss)
            steps.step()

    fresh = TrainingState(steps)
    begun = [p.detach().clone() for p in model.parameters()]
    epoch()
    after = TrainingState(steps)
    later = [p.detach().clone() for p in model.parameters()]
    epoch()
    assert int(steps.optimiser.state[next(model.parameters())]["step"]) == 2 * len(GROUPS)
    after.restore()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), later, strict=True))
    assert int(steps.optimiser.state[next(model.parameters())]["step"]) == len(GROUPS)
    fresh.restore()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), begun, strict=True))
    for state in steps.optimiser.state.values():  # there was none
        assert not any(value.any() for value in state.values())
