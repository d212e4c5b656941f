import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sgpmil.models.contract import Loss, MILModel, ModelOutput, ModelSettings, Recordable
from sgpmil.models.registry import build_model, list_models


class Constant(MILModel):
    """A model that says the same of every bag, with a penalty."""

    def __init__(self, in_dim, num_classes, settings):
        super().__init__(in_dim, num_classes, settings)
        self.bias = torch.nn.Parameter(torch.zeros(num_classes))
        self.frozen = torch.nn.Parameter(torch.zeros(99), requires_grad=False)

    def forward(self, batch):
        return ModelOutput(
            logits=self.bias.expand(batch.num_bags, 1, -1),
            attention=batch.features.new_ones(1, len(batch.features)),
            weights=batch.features.new_ones(1, len(batch.features)),
        )


@pytest.fixture
def output():
    generator = torch.Generator().manual_seed(0)
    return ModelOutput(
        logits=torch.randn(2, 3, 4, generator=generator),
        attention=torch.rand(3, 5, generator=generator),
        weights=torch.rand(3, 5, generator=generator),
        instance_logits=torch.randn(5, 4, generator=generator),
        penalties={"extra": torch.tensor(0.5)},
    )


def test_scores_and_probabilities_are_those_of_the_samples(output):
    assert torch.allclose(output.score, sum(output.attention) / 3)
    powers = output.logits.exp()
    assert torch.allclose(output.probs, powers / powers.sum(-1, keepdim=True))


def test_evidence_is_the_mean_over_samples_of_weight_times_logit(output):
    samples = torch.einsum("st,tc->stc", output.weights, output.instance_logits)
    assert torch.allclose(output.evidence, samples.mean(0))


def test_no_evidence_without_instance_logits(output):
    plain = ModelOutput(output.logits, output.attention, output.weights)
    assert plain.evidence is None


def test_loss_is_the_sum_of_its_terms():
    loss = Loss.of(nll=torch.tensor(2.0), kl=torch.tensor(0.25))
    assert loss.total.item() == 2.25
    assert {name: term.item() for name, term in loss.terms.items()} == {"nll": 2.0, "kl": 0.25}


def test_default_loss_is_cross_entropy_and_the_penalties(output):
    labels = torch.tensor([3, 1])
    loss = Constant(2, 4, ModelSettings()).loss(output, labels, num_bags=10)
    expected = F.cross_entropy(output.logits.mean(1), labels)
    assert torch.allclose(loss.terms["cross_entropy"], expected)
    assert torch.allclose(loss.total, expected + 0.5)


def test_only_trainable_parameters_are_counted():
    assert Constant(2, 4, ModelSettings()).num_parameters() == 4


def test_forward_must_be_written():
    with pytest.raises(TypeError, match="abstract"):
        MILModel(1, 2, ModelSettings())


def test_nothing_is_recorded_of_a_model_that_promises_nothing():
    model = Constant(2, 4, ModelSettings())
    assert model.recordable is Recordable.NOTHING
    assert not model.in_warmup


@pytest.mark.parametrize("name", list_models())
def test_models_promise_what_a_gpu_may_record(name):
    bags = {"transmil", "dgrmil", "bayesmil", "mixmil", "kernel-attention"}
    nothing = {"agp", "bag-size"}  # one draws bags one by one, one never looks at features
    model = build_model(name, in_dim=8, num_classes=2)
    expected = Recordable.BAGS if name in bags else Recordable.STEPS
    assert model.recordable is (Recordable.NOTHING if name in nothing else expected)


@pytest.mark.parametrize("settings", [{"kernel": "matern32"}, {"num_inducing": 129}])
def test_a_step_that_other_libraries_compute_is_not_recorded(settings):
    model = build_model("sgpmil", in_dim=8, num_classes=2, **settings)
    assert model.recordable is Recordable.NOTHING


@pytest.mark.parametrize("num_classes", [2, 3])
def test_evidence_of_an_uncertain_classifier_varies_as_products_of_draws_do(num_classes):
    rng = np.random.default_rng(1)
    T, S = 4, 400_000
    weight, weight_std = rng.random(T), 0.3 * rng.random(T)
    value, value_std = rng.normal(size=(T, num_classes)), rng.random((T, num_classes))
    output = ModelOutput(
        logits=torch.zeros(1, 2, num_classes),
        attention=torch.tensor(weight)[None],
        weights=torch.tensor(weight)[None],
        instance_logits=torch.tensor(value),
        instance_logits_std=torch.tensor(value_std),
        moments=(torch.tensor(weight), torch.tensor(weight_std)),
    )
    drawn = (weight + weight_std * rng.normal(size=(S, T)))[:, :, None] * (
        value + value_std * rng.normal(size=(S, T, num_classes))
    )
    others = (drawn.sum(2, keepdims=True) - drawn) / (num_classes - 1)
    assert np.allclose(output.evidence, drawn.mean(0), atol=0.01)
    assert np.allclose(output.evidence_std, drawn.std(0), atol=0.01)
    assert np.allclose(output.margin_std, (drawn - others).std(0), atol=0.02)
