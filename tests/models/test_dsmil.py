import itertools
import math

import pytest
import torch
import torch.nn.functional as F
import torchmil.models

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models import build_model
from sgpmil.models.dsmil import DSMILSettings, critical_instances

from .small import IN_DIM, random_bags, small_model


def away_from_zero_biases(model):
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_()
    return model


def naive(model, features):
    """Return bag logits, largest instance logits, critical instances and attention of one bag."""
    N, C = len(features), model.num_classes
    u, d = model.instance_classifier.weight, model.instance_classifier.bias
    c = [[(u[k] @ x + d[k]).item() for k in range(C)] for x in features]
    critical = [max(range(N), key=lambda i, k=k: c[i][k]) for k in range(C)]
    queries = []
    for x in features:
        hidden = (model.query[0].weight @ x + model.query[0].bias).clamp(min=0)
        queries.append(torch.tanh(model.query[2].weight @ hidden + model.query[2].bias))
    values = features
    if model.settings.value_network:
        values = (features @ model.value[1].weight.T + model.value[1].bias).clamp(min=0)
    attention = torch.zeros(C, N, dtype=features.dtype)
    pooled = []
    for k in range(C):
        scores = [(q @ queries[critical[k]]).item() / math.sqrt(len(q)) for q in queries]
        total = sum(math.exp(s) for s in scores)
        for i, s in enumerate(scores):
            attention[k, i] = math.exp(s) / total
        pooled.append(sum(attention[k, i] * values[i] for i in range(N)))
    # A convolution over the features, one channel a class in and out.
    kernel = model.bag_classifier.weight.view(C, C, -1)
    bag = F.conv1d(torch.stack(pooled)[None], kernel, model.bag_classifier.bias)[0, :, 0]
    largest = torch.tensor([c[critical[k]][k] for k in range(C)], dtype=features.dtype)
    return bag, largest, critical, attention, values


@pytest.mark.parametrize("value_network", [False, True])
@pytest.mark.parametrize("likelihood", ["softmax", "sigmoid"])
def test_output_is_that_of_a_naive_loop(likelihood, value_network):
    model = small_model(
        "dsmil",
        num_classes=3,
        likelihood=likelihood,
        value_network=value_network,
        standardise=False,
        dtype=torch.float64,
    )
    away_from_zero_biases(model)
    bags = random_bags(num_classes=3, dtype=torch.float64)
    output = model(BagBatch.pack(bags))
    start = 0
    for b, bag in enumerate(bags):
        rows = slice(start, start := start + bag.num_instances)
        pooled, largest, critical, attention, values = naive(model, bag.features)
        logits = (pooled + largest) / 2 if likelihood == "softmax" else pooled.sigmoid().log()
        assert torch.allclose(output.logits[b, 0], logits)
        assert torch.allclose(output.attention[0, rows], attention[logits.argmax()])
        if likelihood == "sigmoid":
            continue
        weight = model.bag_classifier.weight.view(3, 3, IN_DIM)
        for i, k in itertools.product(range(bag.num_instances), range(3)):
            share = sum(attention[c, i] * (weight[k, c] @ values[i]) for c in range(3))
            if i == critical[k]:
                share = share + model.instance_classifier.weight[k] @ bag.features[i]
            assert torch.allclose(output.evidence[start - bag.num_instances + i, k], share / 2)
    assert (output.evidence is None) == (likelihood == "sigmoid")


def test_same_weights_in_torchmil_give_the_same():
    """It has one class, and adds the streams' logits only in its prediction."""
    model = away_from_zero_biases(small_model("dsmil", preset="released", value_network=True))
    bags = random_bags()
    batch = BagBatch.pack(bags)
    for output in range(2):
        twin = torchmil.models.DSMIL((IN_DIM,), att_dim=4, nonlinear_q=True, nonlinear_v=True)
        twin.q_nn.load_state_dict(model.query.state_dict())
        twin.v_nn.load_state_dict(model.value.state_dict())
        weight = model.bag_classifier.weight.view(2, 2, IN_DIM)
        with torch.no_grad():
            weight[output, 1 - output] = 0.0  # a class sees its own stream alone
            twin.inst_classifier.weight.copy_(model.instance_classifier.weight[[output]])
            twin.inst_classifier.bias.copy_(model.instance_classifier.bias[[output]])
            twin.bag_classifier.weight.copy_(weight[output, [output]])
            twin.bag_classifier.bias.copy_(model.bag_classifier.bias[[output]])
        ours = model(batch)
        attention = ours.attention.split([b.num_instances for b in bags], dim=1)
        for b, bag in enumerate(bags):
            logit, theirs = twin.eval()(bag.features[None], return_att=True)
            both = twin.predict(bag.features[None])
            assert torch.allclose(ours.extras["bag_logits"][b, output], logit[0], atol=1e-5)
            mean = (ours.extras["bag_logits"] + ours.extras["max_logits"])[b, output] / 2
            assert torch.allclose(mean, both[0], atol=1e-5)
            if ours.logits[b, 0].argmax() == output:
                assert torch.allclose(attention[b], theirs[..., 0], atol=1e-6)


def test_published_loss_is_half_of_each_streams_binary_cross_entropy():
    model = away_from_zero_biases(small_model("dsmil", num_classes=3, likelihood="sigmoid"))
    batch = BagBatch.pack(random_bags(num_classes=3))
    output = model(batch)
    loss = model.loss(output, batch.labels, num_bags=4)
    for term, name in (("bag", "bag_logits"), ("critical", "max_logits")):
        total = 0.0
        for b, k in itertools.product(range(4), range(3)):
            p = torch.sigmoid(output.extras[name][b, k]).item()
            total -= math.log(p if batch.labels[b] == k else 1 - p)
        assert loss.terms[term].item() == pytest.approx(total / 12 / 2, rel=1e-4)


def test_default_loss_is_the_cross_entropy_of_the_streams_mean():
    model = small_model("dsmil")
    batch = BagBatch.pack(random_bags())
    output = model(batch)
    mean = (output.extras["bag_logits"] + output.extras["max_logits"]) / 2
    loss = model.loss(output, batch.labels, num_bags=4).total
    assert torch.allclose(loss, F.cross_entropy(mean, batch.labels))


def test_probabilities_of_sigmoids_are_the_normalised_and_not_twice_as_sure():
    model = small_model("dsmil", preset="released")
    with torch.no_grad():
        model.bag_classifier.weight.zero_()
        model.bag_classifier.bias.copy_(torch.tensor([-1.5, 1.5]))  # two that agree
    probs = model(BagBatch.pack(random_bags())).probs[:, 0]
    log_odds = (probs[:, 1] / probs[:, 0]).log()
    assert torch.allclose(log_odds, torch.full((4,), 1.5), atol=1e-5)
    with torch.no_grad():
        model.bag_classifier.bias.copy_(torch.tensor([-200.0, -300.0]))  # and none overflows
    assert model(BagBatch.pack(random_bags())).logits.isfinite().all()


def test_critical_instances_are_of_their_own_bag():
    logits = torch.randn(33, 3, generator=torch.Generator().manual_seed(0))
    offsets = torch.tensor([0, 5, 6, 25, 33])
    critical = critical_instances(logits, Segments.of(offsets))
    for b, (start, end) in enumerate(itertools.pairwise(offsets.tolist())):
        for c in range(3):
            assert logits[critical[b, c], c] == max(logits[start:end, c])
            assert start <= critical[b, c] < end


@pytest.mark.parametrize("odd", [torch.inf, -torch.inf, torch.nan])
def test_critical_instances_are_those_of_a_loop_over_bags(odd):
    """Of equal logits the first, also where they are infinite; a NaN is the largest."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randint(3, (33, 3), generator=generator).float()
    logits[torch.rand(33, 3, generator=generator) < 0.2] = odd
    logits[5] = -torch.inf  # all that a bag has
    offsets = torch.tensor([0, 5, 6, 25, 33])
    expected = [
        (start + logits[start:end].argmax(0)).tolist()
        for start, end in itertools.pairwise(offsets.tolist())
    ]
    assert critical_instances(logits, Segments.of(offsets)).tolist() == expected


def test_gradient_flows_through_the_critical_instances_query():
    model = small_model("dsmil", dtype=torch.float64, standardise=False)
    features = random_bags((7,), dtype=torch.float64)[0].features
    whole = Segments.of(torch.tensor([0, 7]))
    i = int(critical_instances(model.instance_classifier(features), whole)[0, 0])
    bag = features.clone().requires_grad_()
    model(BagBatch.pack([Bag(bag, "a")])).extras["bag_logits"][0, 0].backward()
    step = 1e-6 * torch.randn(IN_DIM, generator=torch.Generator().manual_seed(0)).double()
    values = []
    for sign in (1, -1):
        moved = features.clone()
        moved[i] += sign * step
        values.append(model(BagBatch.pack([Bag(moved, "a")])).extras["bag_logits"][0, 0])
    slope = (bag.grad[i] @ step).item()
    assert slope == pytest.approx((values[0] - values[1]).item() / 2, rel=1e-5)


def test_weights_start_orthogonal_and_biases_at_zero():
    torch.manual_seed(0)
    model = build_model("dsmil", in_dim=40, num_classes=3, value_network=True)
    weights = {k: p for k, p in model.named_parameters() if k.endswith("weight")}
    assert len(weights) == 5
    for key, weight in weights.items():
        rows, columns = weight.shape
        gram = weight @ weight.T if rows <= columns else weight.T @ weight
        assert torch.allclose(gram, torch.eye(min(rows, columns)), atol=1e-5), key
    assert all((p == 0).all() for k, p in model.named_parameters() if k.endswith("bias"))


def test_an_encoder_keeps_its_own_start():
    torch.manual_seed(0)
    model = build_model("dsmil", in_dim=784, num_classes=2, encoder="digit-cnn")
    assert model.instance_classifier.in_features == 500
    assert any((p != 0).any() for k, p in model.encoder.named_parameters() if k.endswith("bias"))


@pytest.mark.parametrize(("value_network", "count"), [(False, 153_860), (True, 1_203_460)])
def test_parameter_count_is_the_published(value_network, count):
    model = build_model("dsmil", in_dim=1024, num_classes=2, value_network=value_network)
    assert model.num_parameters() == count


def test_dropout_is_in_front_of_the_values_and_in_training_only():
    batch = BagBatch.pack(random_bags())
    model = small_model("dsmil", value_network=True, dropout=0.5)
    quiet = model(batch)
    model.train()
    torch.manual_seed(0)
    first, second = model(batch), model(batch)
    assert torch.equal(first.extras["max_logits"], quiet.extras["max_logits"])
    assert not torch.equal(first.extras["bag_logits"], second.extras["bag_logits"])


@pytest.mark.parametrize("likelihood", ["softmax", "sigmoid"])
def test_half_precision_layers_leave_the_output_near(likelihood):
    batch = BagBatch.pack(random_bags())
    model = small_model("dsmil", likelihood=likelihood, value_network=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
        loss = model.loss(output, batch.labels, num_bags=4).total
    exact = model(batch)
    assert torch.allclose(output.logits.float(), exact.logits, atol=0.05)
    assert torch.allclose(output.attention.float(), exact.attention, atol=0.05)
    assert loss.isfinite()


def test_published_settings():
    settings = build_model("dsmil", in_dim=3, num_classes=2, preset="released").settings
    assert (settings.query_dim, settings.value_network, settings.dropout) == (128, False, 0.0)
    assert (settings.likelihood, settings.standardise) == ("sigmoid", False)
    assert build_model("dsmil", in_dim=3, num_classes=2).settings.likelihood == "softmax"


@pytest.mark.usefixtures("without_shape_checks")
def test_impossible_settings():
    with pytest.raises(SettingsError, match="query_dim >= 1"):
        DSMILSettings(query_dim=0)
    with pytest.raises(SettingsError, match=r"value_network for dropout 0\.2"):
        DSMILSettings(dropout=0.2)
    with pytest.raises(SettingsError, match="likelihood to be one of softmax, sigmoid"):
        build_model("dsmil", in_dim=3, num_classes=2, likelihood="probit")
