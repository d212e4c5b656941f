import pytest
import torch
from torch import nn

from sgpmil.models import build_model
from sgpmil.training.optimisers import LookaheadRAdam, build_optimiser, set_learning_rate

from .conftest import quick


def gradient(step, shape):
    """Gradients that change with every step, none of them zero."""
    generator = torch.Generator().manual_seed(step)
    return torch.randn(shape, generator=generator, dtype=torch.float64) + 0.1


def start():
    return [nn.Parameter(gradient(100 + i, shape)) for i, shape in enumerate([(3, 2), (4,)])]


def take_steps(optimiser, parameters, steps):
    for step in steps:
        for p in parameters:
            p.grad = gradient(step, p.shape)
        optimiser.step()


@pytest.mark.parametrize(("every", "share"), [(5, 0.5), (3, 0.8)])
def test_lookahead_is_radam_with_slow_weights_by_hand(every, share):
    options = {"lr": 0.05, "betas": (0.8, 0.95), "weight_decay": 0.1}
    found = start()
    take_steps(LookaheadRAdam(found, **options, every=every, share=share), found, range(17))
    expected = start()
    inner = torch.optim.RAdam(expected, **options, decoupled_weight_decay=True)
    # Slow from the very first weights: those of the first synchronisation would be fast ones.
    slow = [p.detach().clone() for p in expected]
    for step in range(17):
        take_steps(inner, expected, [step])
        if (step + 1) % every == 0:
            slow = [phi + share * (p.detach() - phi) for phi, p in zip(slow, expected, strict=True)]
            for p, phi in zip(expected, slow, strict=True):
                p.data = phi.clone()
    for p, q in zip(found, expected, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-12)
    plain = start()
    take_steps(
        torch.optim.RAdam(plain, **options, decoupled_weight_decay=True), plain, range(every)
    )
    looking = start()
    take_steps(LookaheadRAdam(looking, **options, every=every, share=share), looking, range(every))
    for p, fast, first in zip(looking, plain, start(), strict=True):
        torch.testing.assert_close(p, first + share * (fast - first), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cut", [1, 4, 5, 7])
def test_the_state_is_all_that_going_on_needs(cut):
    whole = start()
    take_steps(LookaheadRAdam(whole, lr=0.05), whole, range(12))
    parameters = start()
    first = LookaheadRAdam(parameters, lr=0.05)
    take_steps(first, parameters, range(cut))
    again = [nn.Parameter(p.detach().clone()) for p in parameters]
    second = LookaheadRAdam(again, lr=0.05)
    second.load_state_dict(first.state_dict())
    take_steps(second, again, range(cut, 12))
    assert all(torch.equal(p, q) for p, q in zip(again, whole, strict=True))


def test_a_closure_gives_the_gradient():
    found, expected = start(), start()
    optimiser = LookaheadRAdam(found, lr=0.05)
    for step in range(6):

        def closure(step=step):
            for p in found:
                p.grad = gradient(step, p.shape)
            return step

        assert optimiser.step(closure) == step
    take_steps(LookaheadRAdam(expected, lr=0.05), expected, range(6))
    assert all(torch.equal(p, q) for p, q in zip(found, expected, strict=True))


def test_a_parameter_may_get_its_first_gradient_later():
    early, late = start()
    before = late.detach().clone()
    optimiser = LookaheadRAdam([early, late], lr=0.05)
    take_steps(optimiser, [early], range(3))
    assert torch.equal(late, before)
    take_steps(optimiser, [early, late], range(3, 8))
    alone = start()[1]
    take_steps(LookaheadRAdam([alone], lr=0.05), [alone], range(3, 8))
    torch.testing.assert_close(late, alone, rtol=1e-12, atol=1e-12)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.LayerNorm(2)
        self.token = nn.Parameter(torch.ones(1, 1, 2))
        self.scale = nn.Parameter(torch.tensor(2.0))
        with torch.no_grad():
            self.linear.bias.fill_(0.7)


@pytest.mark.parametrize("name", ["adamw", "lookahead-radam"])
def test_decoupled_weight_decay_shrinks_the_weights_without_a_gradient(name):
    model = Small()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    optimiser = build_optimiser(quick(optimiser=name, learning_rate=0.1, weight_decay=0.5), model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimiser.step()
    matrices = {"linear.weight", "token"}
    for key, value in model.state_dict().items():
        decays = name == "adamw" or key in matrices
        torch.testing.assert_close(value, before[key] * (0.95 if decays else 1.0))


def test_adam_adds_the_weight_decay_to_the_gradient():
    model = nn.Linear(1, 1, dtype=torch.float64)
    settings = quick(optimiser="adam", learning_rate=0.1, weight_decay=0.5, betas=(0.5, 0.9))
    optimiser = build_optimiser(settings, model)
    theta, m, v = [float(p.detach()) for p in model.parameters()], [0.0, 0.0], [0.0, 0.0]
    for t in range(1, 4):
        for i, p in enumerate(model.parameters()):
            p.grad = torch.full_like(p, float(t))
            g = t + 0.5 * theta[i]
            m[i], v[i] = 0.5 * m[i] + 0.5 * g, 0.9 * v[i] + 0.1 * g**2
            rate = 0.1 * (m[i] / (1 - 0.5**t)) / ((v[i] / (1 - 0.9**t)) ** 0.5 + 1e-8)
            theta[i] -= rate
        optimiser.step()
    assert [float(p.detach()) for p in model.parameters()] == pytest.approx(theta, rel=1e-10)


def test_sgd_has_momentum_and_decays_every_parameter():
    model = nn.Linear(1, 1, dtype=torch.float64)
    settings = quick(optimiser="sgd", learning_rate=0.1, weight_decay=0.5, momentum=0.8)
    optimiser = build_optimiser(settings, model)
    theta, velocity = [float(p.detach()) for p in model.parameters()], [0.0, 0.0]
    for t in range(1, 4):
        for i, p in enumerate(model.parameters()):
            p.grad = torch.full_like(p, float(t))
            velocity[i] = 0.8 * velocity[i] + t + 0.5 * theta[i]
            theta[i] -= 0.1 * velocity[i]
        optimiser.step()
    assert [float(p.detach()) for p in model.parameters()] == pytest.approx(theta, rel=1e-10)


@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd", "lookahead-radam"])
def test_a_model_gives_parameters_a_rate_of_their_own(optimiser):
    settings = quick(optimiser=optimiser, learning_rate=0.01)
    model = build_model("sgpmil", in_dim=3, num_classes=2, variational_rate=20.0)
    found = build_optimiser(settings, model)
    set_learning_rate(found, 0.5, torch.device("cpu"))
    names = {id(p): name for name, p in model.named_parameters()}
    rates = {names[id(p)]: group["lr"] for group in found.param_groups for p in group["params"]}
    assert rates.keys() == dict(model.named_parameters()).keys()
    own = ("gp.variational.", "classifier_log_sd")
    for name, rate in rates.items():
        assert rate == (10.0 if name.startswith(own) else 0.5)
    # A KL divergence holds them near their prior; weight decay would move them elsewhere.
    decays = {
        names[id(p)]: group["weight_decay"] for group in found.param_groups for p in group["params"]
    }
    assert decays["mlp.0.weight"] == settings.weight_decay > 0
    assert all(decays[name] == 0 for name in decays if name.startswith(own))
