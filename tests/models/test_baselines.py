import math

import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models import build_model
from sgpmil.models.baselines import BagSizeSettings, PoolSettings

from .small import IN_DIM, random_bags, small_model


def test_mean_pool_is_abmil_whose_attention_is_uniform():
    floor = small_model("mean-pool", dtype=torch.float64)
    abmil = small_model("abmil", dtype=torch.float64)
    missing, unexpected = abmil.load_state_dict(floor.state_dict(), strict=False)
    assert not unexpected
    assert {key.split(".")[0] for key in missing} == {"value", "gate", "attention"}
    with torch.no_grad():
        abmil.attention.weight.zero_()
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    ours, theirs = floor(batch), abmil(batch)
    assert torch.allclose(ours.logits, theirs.logits)
    assert torch.allclose(ours.attention, theirs.attention)
    assert torch.allclose(ours.evidence, theirs.evidence)


def test_mean_pool_does_not_see_how_often_a_bag_is_repeated():
    model = small_model("mean-pool", dtype=torch.float64)
    x = random_bags((5,), dtype=torch.float64)[0].features
    once, thrice = (model(BagBatch.pack([Bag(x.repeat(n, 1), "a")])).logits for n in (1, 3))
    assert torch.allclose(once, thrice)


def test_max_pool_is_that_of_a_naive_loop():
    model = small_model("max-pool", num_classes=3, standardise=False, dtype=torch.float64)
    bags = random_bags(dtype=torch.float64)
    output = model(BagBatch.pack(bags))
    start = 0
    for b, bag in enumerate(bags):
        rows = slice(start, start := start + bag.num_instances)
        h = (bag.features @ model.mlp[0].weight.T + model.mlp[0].bias).clamp(min=0)
        logits = h @ model.classifier.weight.T + model.classifier.bias
        peaks = [max(logits[:, c].tolist()) for c in range(3)]
        assert output.logits[b, 0].tolist() == pytest.approx(peaks)
        k = peaks.index(max(peaks))
        others = [c for c in range(3) if c != k]
        margin = logits[:, k] - (logits[:, others[0]] + logits[:, others[1]]) / 2
        assert torch.allclose(output.attention[0, rows], margin.exp() / margin.exp().sum())
        expected = torch.zeros_like(logits)
        for c in range(3):
            i = int(logits[:, c].argmax())
            expected[i, c] = peaks[c] - model.classifier.bias[c]
        assert torch.allclose(output.evidence[rows], expected)


def test_only_the_deciding_instances_have_a_gradient():
    model = small_model("max-pool", dtype=torch.float64)
    x = random_bags((9,), dtype=torch.float64)[0].features.requires_grad_()
    batch = BagBatch.pack([Bag(x, "a", label=0)])
    output = model(batch)
    model.loss(output, batch.labels, num_bags=1).total.backward()
    deciding = (output.evidence != 0).any(1)
    assert 1 <= deciding.sum() <= 2
    assert torch.equal(x.grad.abs().amax(1) > 0, deciding)


def test_one_of_equal_instances_decides_alone():
    """The maximum's own gradient would be shared among them, and so differ from the evidence."""
    model = small_model("max-pool", dtype=torch.float64)
    x = random_bags((1,), dtype=torch.float64)[0].features
    output = model(BagBatch.pack([Bag(x.repeat(4, 1), "a")]))
    assert ((output.evidence != 0).sum(0) <= 1).all()
    assert torch.allclose(output.evidence.sum(0), output.logits[0, 0] - model.classifier.bias)
    assert torch.allclose(output.attention, torch.full((1, 4), 0.25, dtype=torch.float64))


def test_bag_size_is_linear_in_the_logarithm_and_blind_to_features():
    model = small_model("bag-size", num_classes=3, dtype=torch.float64)
    bags = random_bags((1, 10, 100), dtype=torch.float64)
    output = model(BagBatch.pack(bags))
    w, b = model.classifier.weight[:, 0], model.classifier.bias
    for i, decades in enumerate((-3.0, -2.0, -1.0)):
        assert torch.allclose(output.logits[i, 0], w * decades + b)
    other = [Bag(7 - 3 * bag.features, bag.slide_id) for bag in bags]
    assert torch.equal(model(BagBatch.pack(other)).logits, output.logits)
    assert output.evidence is None
    sums = [part.sum().item() for part in output.attention[0].split([1, 10, 100])]
    assert sums == pytest.approx([1, 1, 1])
    assert output.attention[0, 1:11].tolist() == pytest.approx([0.1] * 10)


def test_bag_size_learns_the_odds_of_each_size():
    """Of two sizes, logistic regression is saturated: it gives the classes' frequencies."""
    counts = {10: (3, 1), 100: (2, 6)}  # (class 0, class 1)
    bags = [
        Bag(torch.zeros(n, IN_DIM, dtype=torch.float64), f"{n}-{c}-{i}", label=c)
        for n, pair in counts.items()
        for c, number in enumerate(pair)
        for i in range(number)
    ]
    batch = BagBatch.pack(bags)
    model = small_model("bag-size", dtype=torch.float64)
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        loss = model.loss(model(batch), batch.labels, num_bags=12).total
        loss.backward()
        return loss

    optimiser.step(closure)
    probs = model(batch).probs[:, 0, 1]
    assert probs[0].item() == pytest.approx(1 / 4, abs=1e-5)
    assert probs[-1].item() == pytest.approx(6 / 8, abs=1e-5)
    slope = (model.classifier.weight[1] - model.classifier.weight[0]).item()
    assert slope == pytest.approx(math.log(6 / 2) - math.log(1 / 3), abs=1e-4)


@pytest.mark.parametrize("name", ["mean-pool", "max-pool"])
def test_a_linear_floor_of_bags_of_one_is_logistic_regression(name):
    """With an identity embedding of positive features, the two are the same classifier."""
    model = small_model(name, hidden_dim=IN_DIM, standardise=False, dtype=torch.float64)
    with torch.no_grad():
        model.mlp[0].weight.copy_(torch.eye(IN_DIM))
        model.mlp[0].bias.zero_()
    x = random_bags((8,), dtype=torch.float64)[0].features.abs()
    labels = torch.arange(8) % 2
    batch = BagBatch.pack([Bag(row[None], f"b{i}") for i, row in enumerate(x)])
    model.loss(model(batch), labels, num_bags=8).total.backward()
    w, b = model.classifier.weight, model.classifier.bias
    p = torch.sigmoid(x @ (w[1] - w[0]) + b[1] - b[0])
    residual = (p - labels) / 8
    assert torch.allclose(model.classifier.weight.grad[1], residual @ x)
    assert torch.allclose(model.classifier.weight.grad[0], -(residual @ x))
    assert model.classifier.bias.grad[1].item() == pytest.approx(residual.sum().item())


def test_bag_size_refuses_an_encoder_that_nothing_would_train():
    with pytest.raises(SettingsError, match=r"'none' for bag-size, .* but got 'digit-cnn'"):
        BagSizeSettings(encoder="digit-cnn")
    model = build_model("bag-size", in_dim=784, num_classes=3)
    assert {key: p.numel() for key, p in model.named_parameters()} == {
        "classifier.weight": 3,
        "classifier.bias": 3,
    }


@pytest.mark.parametrize("name", ["mean-pool", "max-pool"])
def test_poolings_train_an_encoder(name):
    torch.manual_seed(0)
    model = build_model(name, in_dim=784, num_classes=2, encoder="digit-cnn", hidden_dim=64)
    batch = BagBatch.pack([Bag(torch.rand(3, 784), "a", label=0)])
    model.loss(model(batch), batch.labels, num_bags=1).total.backward()
    grads = [p.grad.abs().max() for p in model.encoder.parameters()]
    assert min(grads) > 0


@pytest.mark.parametrize(
    ("name", "count"), [("mean-pool", 525_826), ("max-pool", 525_826), ("bag-size", 4)]
)
def test_parameter_count(name, count):
    # 1024 * 512 + 512 of the embedding and 512 * 2 + 2 of the classifier; 2 + 2 of a size.
    assert build_model(name, in_dim=1024, num_classes=2).num_parameters() == count


@pytest.mark.parametrize("name", ["mean-pool", "max-pool", "bag-size"])
def test_half_precision_layers_leave_the_output_near(name):
    batch = BagBatch.pack(random_bags())
    model = small_model(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
        loss = model.loss(output, batch.labels, num_bags=4).total
    exact = model(batch)
    assert torch.allclose(output.logits.float(), exact.logits, atol=0.05)
    assert torch.allclose(output.attention.float(), exact.attention, atol=0.05)
    assert loss.isfinite()


def test_impossible_settings():
    with pytest.raises(SettingsError, match="hidden_dim >= 1"):
        PoolSettings(hidden_dim=0)


def test_weights_in_half_precision_add_up_to_one():
    model = build_model("mean-pool", in_dim=3, num_classes=2)
    batch = BagBatch.pack([Bag(torch.ones(1003, 3), "a", label=0)])  # bfloat16 knows 1000 and 1008
    with torch.autocast("cpu", torch.bfloat16):
        assert float(model(batch).weights.sum()) == pytest.approx(1, abs=1e-5)
