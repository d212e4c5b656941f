import math

import pytest
import torch
import torch.nn.functional as F

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models import build_model
from sgpmil.models.dgrmil import diversity_penalty, triplet_penalty

from .small import random_bags, small_model

QUIET = {"dropout": 0.0, "instance_dropout": 0.0}


def test_parameter_count_is_the_published_without_its_dead_weights():
    model = build_model("dgrmil", in_dim=1024, num_classes=2)
    assert model.num_parameters() == 4_342_290 - 2 * 256 * 256 == 4_211_218


def test_score_is_the_class_tokens_attention_averaged_over_heads():
    model = small_model("dgrmil", dtype=torch.float64, **QUIET)
    bag = random_bags((7,), dtype=torch.float64)[0]
    seen = {}
    model.cross_attention.register_forward_pre_hook(
        lambda _, inputs: seen.update(instances=inputs[1])
    )
    model.token_norm.register_forward_hook(lambda *call: seen.update(tokens=call[-1]))
    output = model(BagBatch.pack([bag]))
    weights, biases = model.cross_attention.in_proj_weight, model.cross_attention.in_proj_bias
    query = seen["tokens"] @ weights[:8].T + biases[:8]
    key = seen["instances"] @ weights[8:16].T + biases[8:16]
    heads = [
        (query[:, part] @ key[:, part].T / 2).softmax(-1) for part in (slice(0, 4), slice(4, 8))
    ]
    assert torch.allclose(output.score, torch.stack(heads).mean(0)[0], atol=1e-12)
    assert len(seen["tokens"]) == 4  # the class token and three lesion vectors
    assert output.score.sum().item() == pytest.approx(1)


def test_projection_is_shared_by_instances_and_lesion_vectors():
    model = small_model("dgrmil", dtype=torch.float64, standardise=False, **QUIET)
    bag = Bag(model.lesions.detach().clone(), "lesions", label=1)
    output = model(BagBatch.pack([bag]))
    assert torch.allclose(output.extras["bag_means"][0], output.extras["lesions"].mean(0))


def test_centres_follow_the_bags_in_training_and_never_in_evaluation():
    """The published code moved them at validation and test too, with the true labels."""
    model = small_model("dgrmil", dtype=torch.float64, **QUIET)
    batch = BagBatch.pack(random_bags((3, 4, 5), dtype=torch.float64))
    start = model.centres.clone()
    for epoch in (0, 50):
        model.epoch = epoch
        model.loss(model(batch), batch.labels, num_bags=3)
        assert torch.equal(model.centres, start)
    model.train()
    output = model(batch)
    assert torch.equal(model.centres, start)
    model.loss(output, batch.labels, num_bags=3)
    means = output.extras["bag_means"]  # labels 0, 1, 0
    assert torch.allclose(model.centres[0], 0.4 * start[0] + 0.6 * (means[0] + means[2]) / 2)
    assert torch.allclose(model.centres[1], 0.4 * start[1] + 0.6 * means[1])
    assert not model.centres.requires_grad


def test_a_centre_without_bags_stays():
    model = small_model("dgrmil", num_classes=3, dtype=torch.float64, normal_class=2).train()
    batch = BagBatch.pack(random_bags((3, 4), dtype=torch.float64))
    start = model.centres.clone()
    model.loss(model(batch), batch.labels, num_bags=2)  # labels 0, 1: both hold lesions
    assert torch.equal(model.centres[0], start[0])
    assert not torch.equal(model.centres[1], start[1])


def test_centres_are_saved_with_the_model():
    model = small_model("dgrmil")
    assert "centres" in model.state_dict()
    other = small_model("dgrmil", seed=1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.centres, model.centres)


def test_terms_count_after_the_warm_up_and_give_gradients():
    model = small_model("dgrmil", dtype=torch.float64, warmup_epochs=3).train()
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    model.epoch = 2
    assert set(model.loss(model(batch), batch.labels, 4).terms) == {"cross_entropy"}
    model.epoch = 3
    centres = model.centres.clone()
    output = model(batch)
    loss = model.loss(output, batch.labels, 4)
    lesions = output.extras["lesions"]
    assert torch.allclose(loss.terms["diversity"], 0.1 * diversity_penalty(lesions))
    assert torch.allclose(loss.terms["triplet"], 0.1 * triplet_penalty(lesions, centres))
    (loss.terms["diversity"] + loss.terms["triplet"]).backward()
    assert model.lesions.grad.abs().max() > 0


def test_all_classes_are_trained():
    """The published binary loss left the first logit an untrained read-out."""
    model = small_model("dgrmil", dtype=torch.float64, **QUIET)
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    output = model(batch)
    loss = model.loss(output, batch.labels, 4)
    loss.total.backward()
    assert torch.allclose(loss.total, F.cross_entropy(output.logits[:, 0], batch.labels))
    assert (model.classifier.weight.grad.abs().amax(1) > 1e-4).all()


def test_diversity_is_minus_the_log_determinant():
    lesions = torch.tensor([[3.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    # Unit vectors at 45 degrees: the Gram determinant is 1 - 1/2.
    assert diversity_penalty(lesions).item() == pytest.approx(math.log(2), abs=1e-5)


@pytest.mark.parametrize(
    "lesions",
    [torch.zeros(3, 4), torch.ones(3, 4), torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])],
    ids=["zero", "equal", "both"],
)
def test_diversity_of_equal_or_dead_vectors_is_finite(lesions):
    lesions.requires_grad_()
    penalty = diversity_penalty(lesions)
    penalty.backward()
    assert penalty.isfinite()
    assert penalty > 5  # and large: they do not differ
    assert lesions.grad.isfinite().all()


def test_diversity_is_computed_in_double_precision():
    """Five equal vectors: the determinant is 5 ε⁴, far below what single precision resolves."""
    expected = -math.log((5 + 1e-6) * 1e-6**4)
    for width in (3, 7, 100):
        found = diversity_penalty(torch.full((5, width), 0.3)).item()
        assert found == pytest.approx(expected, rel=1e-5)


def test_triplet_by_hand():
    lesions = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    centres = torch.tensor([[0.0, 1.0], [1.0, 0.0]])  # normal, positive
    # Twice d+ = 0, d- = 1 -> 0; once d+ = 1, d- = 0 -> 2.
    assert triplet_penalty(lesions, centres).item() == pytest.approx(2 / 3)
    assert triplet_penalty(lesions, centres.flip(0)).item() == pytest.approx(4 / 3)


def test_dropout_drops_whole_instances():
    model = small_model("dgrmil", instance_dropout=0.5, dropout=0.0).train()
    seen = []
    model.instance_attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    torch.manual_seed(0)
    model(BagBatch.pack(random_bags((400,))))
    dropped = (seen[0] == 0).all(1)
    # Half of the rows; the others are whole, scaled by two, up to what the ReLU cut.
    assert 0.4 < dropped.float().mean() < 0.75
    assert ((seen[0] > 0).float().mean(1)[~dropped] > 0.2).float().mean() > 0.9


def test_normal_class_must_exist():
    with pytest.raises(SettingsError, match="Expected normal_class below the number of classes"):
        build_model("dgrmil", in_dim=4, num_classes=2, normal_class=2)
