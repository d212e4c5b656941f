import pytest
import torch

from sgpmil.models.registry import build_model
from sgpmil.training.batches import PackedBatches
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.settings import TrainingSettings
from sgpmil.training.steps import OptimiserSteps
from sgpmil.training.training_state import TrainingState

from .conftest import TINY, toy_bags

NYSTROM = {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 2}
SMALL = TINY | {"dgrmil": NYSTROM, "transmil": NYSTROM, "mixmil": {"projection_dim": 4}}
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


@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd", "lookahead-radam"])
@pytest.mark.parametrize("name", ["sgpmil", "dgrmil", "mixmil", "transmil"])
def test_an_epoch_that_was_taken_back_leaves_no_trace(name, optimiser, begin):
    bags = toy_bags()
    settings = TrainingSettings(
        precision="32", optimiser=optimiser, momentum=0.9, learning_rate=0.01
    )

    def trained(*, again):
        torch.manual_seed(0)
        model = build_model(name, in_dim=4, num_classes=2, **SMALL[name]).train()
        steps = OptimiserSteps(model, build_optimiser(settings, model), settings, len(bags))
        for epoch in range(3):
            model.epoch = 50 + epoch
            for _ in range(2 if again and epoch == begin else 1):
                before = TrainingState(steps)
                torch.manual_seed(epoch)
                for number in range(len(GROUPS)):
                    _, loss = steps.forward(PackedBatches(bags, GROUPS)[number])
                    steps.backward(loss)
                    steps.step()
                if again and epoch == begin:
                    again = False
                    before.restore()
        return model.state_dict()

    found, expected = trained(again=True), trained(again=False)
    assert all(torch.equal(value, found[key]) for key, value in expected.items())
