import itertools
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import torchmil.models
import torchmil.nn.utils as torchmil_utils
from torch import nn

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models import build_model
from sgpmil.models.clam import CLAMSettings, extreme_instances, smooth_top1_svm

from .small import IN_DIM, random_bags, small_model

BOTH = pytest.mark.parametrize("name", ["clam-sb", "clam-mb"])


class RepairedSVM(nn.Module):
    """torchmil's smooth SVM from torchmil's own parts.

    As it calls them, targets of shape (rows, 1) make its unit margin (rows, 1, 2), and the sum
    runs over rows in place of classes.
    """

    def forward(self, scores, targets):
        targets = targets.long().flatten()
        margin = torchmil_utils.delta(targets, torch.arange(2), 1.0)
        return torchmil_utils.log_sum_exp(
            scores + margin - scores.gather(1, targets[:, None])
        ).mean()


def torchmil_twin(model, output):
    """Build torchmil's CLAM-SB with our weights and the one output that it has."""
    embed = nn.Sequential(nn.Linear(IN_DIM, 8), nn.ReLU())
    twin = torchmil.models.CLAM_SB((IN_DIM,), att_dim=4, gated=True, k_sample=3, feat_ext=embed)
    embed.load_state_dict(model.mlp.state_dict())
    twin.pool.fc1.module.load_state_dict(model.value.state_dict())
    twin.pool.fc_gated.module.load_state_dict(model.gate.state_dict())
    twin.inst_loss_fn = RepairedSVM()
    with torch.no_grad():
        twin.pool.fc2.weight.copy_(model.attention.weight)  # it has no bias: the softmax drops it
        twin.classifier.module.weight.copy_(model.classifier.weight[output : output + 1])
        twin.classifier.module.bias.copy_(model.classifier.bias[output : output + 1])
        for c, theirs in enumerate(twin.inst_classifiers):
            theirs.module.weight.copy_(model.instance_classifiers.weight[2 * c : 2 * c + 2])
            theirs.module.bias.copy_(model.instance_classifiers.bias[2 * c : 2 * c + 2])
    return twin.eval()


def naive_instance_loss(model, bag, label):
    """The instance loss of one bag, instance by instance."""
    h = (bag.features @ model.mlp[0].weight.T + model.mlp[0].bias).clamp(min=0)
    value = torch.tanh(h @ model.value.weight.T + model.value.bias)
    gate = torch.sigmoid(h @ model.gate.weight.T + model.gate.bias)
    raw = (value * gate) @ model.attention.weight.T + model.attention.bias
    settings = model.settings
    k = min(settings.instances_per_side, bag.num_instances // 2)
    total = 0.0
    for c in range(model.num_classes):
        if c != label and not settings.subtyping:
            continue
        column = raw[:, c if settings.branches == "per_class" else 0].tolist()
        ranked = sorted(range(bag.num_instances), key=lambda i, a=column: -a[i])
        pairs = [(i, int(c == label)) for i in ranked[:k]]
        if c == label:
            pairs += [(i, 0) for i in ranked[bag.num_instances - k :]]
        losses = []
        for i, target in pairs:
            w = model.instance_classifiers.weight[2 * c : 2 * c + 2]
            s = (w @ h[i] + model.instance_classifiers.bias[2 * c : 2 * c + 2]).tolist()
            powers = [math.exp(s[j] + (j != target) - s[target]) for j in range(2)]
            losses.append(math.log(sum(powers)))
        total += sum(losses) / len(losses) if losses else 0.0
    return total / model.num_classes if settings.subtyping else total


def test_same_weights_in_torchmil_give_the_same():
    model = small_model("clam-sb", preset="released")
    bags = random_bags()
    ours = model(BagBatch.pack(bags))
    attention = ours.attention.split([b.num_instances for b in bags], dim=1)
    for output in range(2):
        twin = torchmil_twin(model, output)
        for b, bag in enumerate(bags):
            logit, raw = twin(bag.features[None], return_att=True)
            assert torch.allclose(ours.logits[b, 0, output], logit[0], atol=1e-5)
            assert torch.allclose(attention[b], raw.softmax(1), atol=1e-6)


@pytest.mark.parametrize("label", [0, 1])
def test_same_weights_in_torchmil_give_the_same_instance_loss(label):
    """It always subtypes, does not divide by the classes, and sums over bags.

    Of bags with fewer than twice the instances a side it takes some as both, so that only the
    larger ones are compared.
    """
    model = small_model("clam-sb", preset="released", instances_per_side=3, subtyping=True)
    twin = torchmil_twin(model, 0)
    for bag in random_bags((6, 19, 8)):
        output = model(BagBatch.pack([bag]))
        ours = model.loss(output, torch.tensor([label]), num_bags=1).terms["instance"] / 0.3
        _, raw, embeddings = twin(bag.features[None], return_att=True, return_emb=True)
        theirs = twin.compute_inst_loss(raw, embeddings, torch.tensor([label]))
        assert torch.allclose(2 * ours, theirs, atol=1e-5)


@pytest.mark.parametrize("subtyping", [False, True])
@BOTH
def test_instance_loss_is_that_of_a_naive_loop(name, subtyping):
    model = small_model(name, num_classes=3, subtyping=subtyping, standardise=False).double()
    bags = random_bags((5, 1, 19, 8, 2, 3), num_classes=3, dtype=torch.float64)
    batch = BagBatch.pack(bags)
    loss = model.loss(model(batch), batch.labels, num_bags=6)
    expected = sum(naive_instance_loss(model, bag, bag.label) for bag in bags) / len(bags)
    assert expected > 0.1
    assert loss.terms["instance"].item() == pytest.approx(0.3 * expected, rel=1e-9)
    bag_loss = F.cross_entropy(model(batch).logits[:, 0], batch.labels)
    assert loss.terms["cross_entropy"].item() == pytest.approx(0.7 * bag_loss.item(), rel=1e-9)
    assert torch.allclose(loss.total, sum(loss.terms.values()))


def test_branches_by_hand():
    model = small_model("clam-mb", num_classes=3, standardise=False).double()
    bags = random_bags((7, 4), dtype=torch.float64)
    output = model(BagBatch.pack(bags))
    start = 0
    for b, bag in enumerate(bags):
        rows = slice(start, start := start + bag.num_instances)
        h = (bag.features @ model.mlp[0].weight.T + model.mlp[0].bias).clamp(min=0)
        hidden = torch.tanh(model.value(h)) * torch.sigmoid(model.gate(h))
        logits = []
        for c in range(3):
            a = (hidden @ model.attention.weight[c] + model.attention.bias[c]).softmax(0)
            w = model.classifier.weight[c]
            logits.append(w @ (a @ h) + model.classifier.bias[c])
            assert torch.allclose(output.evidence[rows, c], a * (h @ w))
            if c == output.logits[b, 0].argmax():
                assert torch.allclose(output.attention[0, rows], a)
        assert torch.allclose(output.logits[b, 0], torch.stack(logits))


def test_the_attention_of_branches_is_that_of_the_predicted_class():
    model = small_model("clam-mb")
    batch = BagBatch.pack(random_bags())
    scores = []
    for c in range(2):
        with torch.no_grad():
            model.classifier.bias.copy_(1e4 * F.one_hot(torch.tensor(c), 2))
        scores.append(model(batch).score)
    assert not torch.allclose(*scores, atol=1e-3)


@BOTH
def test_a_bag_smaller_than_the_instances_a_side(name):
    """The published code asks for B of N < B instances and fails."""
    model = small_model(name, instances_per_side=8).train()
    batch = BagBatch.pack(random_bags((3, 1, 2, 7)))
    loss = model.loss(model(batch), batch.labels, num_bags=4)
    loss.total.backward()
    assert loss.total.isfinite()
    assert loss.terms["instance"] > 0


@BOTH
def test_a_bag_of_one_instance_has_no_instance_loss(name):
    model = small_model(name)
    batch = BagBatch.pack(random_bags((1, 1)))
    loss = model.loss(model(batch), batch.labels, num_bags=2)
    loss.total.backward()
    assert loss.terms["instance"].item() == 0
    # A gradient of zero, and not none: training over several devices waits for every one.
    assert torch.equal(
        model.instance_classifiers.weight.grad, torch.zeros_like(model.instance_classifiers.weight)
    )


def test_no_instance_is_both_positive_and_negative():
    """Of equal attention, two top-k calls take the same instances."""
    model = small_model("clam-sb", standardise=False)
    with torch.no_grad():
        model.attention.weight.zero_()
    bag = random_bags((6,))[0]
    batch = BagBatch.pack([bag])
    found = model.loss(model(batch), torch.tensor([0]), num_bags=1).terms["instance"] / 0.3
    scores = model.instance_classifiers(model.mlp(bag.features))[:, :2]
    expected = smooth_top1_svm(scores, torch.tensor([1, 1, 1, 0, 0, 0])).mean()
    assert torch.allclose(found, expected, atol=1e-6)
    same = smooth_top1_svm(scores[[0, 1, 2] * 2], torch.tensor([1, 1, 1, 0, 0, 0])).mean()
    assert not torch.allclose(same, expected, atol=1e-3)


@BOTH
def test_gradients_reach_instance_classifiers_embeddings_and_not_the_selection(name):
    model = small_model(name, dtype=torch.float64)
    bags = random_bags((8, 12), dtype=torch.float64)
    for bag in bags:
        model.zero_grad()
        batch = BagBatch.pack([bag])
        model.loss(model(batch), batch.labels, num_bags=1).terms["instance"].backward()
        by_class = model.instance_classifiers.weight.grad.unflatten(0, (2, 2)).abs().amax((1, 2))
        assert by_class[bag.label] > 1e-3  # and so both classes learn, each of its own bags
        assert by_class[1 - bag.label] == 0
        assert model.mlp[0].weight.grad.abs().max() > 1e-4
        for part in (model.attention, model.value, model.gate, model.classifier):
            assert part.weight.grad is None or part.weight.grad.abs().max() == 0


def test_subtyping_teaches_the_other_classes():
    model = small_model("clam-sb", num_classes=3, subtyping=True)
    batch = BagBatch.pack(random_bags((9,)))
    model.loss(model(batch), torch.tensor([1]), num_bags=1).total.backward()
    grads = model.instance_classifiers.weight.grad.unflatten(0, (3, 2)).abs().amax((1, 2))
    assert (grads > 1e-4).all()


def test_smooth_svm_is_the_formula():
    generator = torch.Generator().manual_seed(0)
    scores = 3 * torch.randn(40, 3, generator=generator, dtype=torch.float64)
    targets = torch.randint(3, (40,), generator=generator)
    rows = [
        math.log(sum(math.exp(s[j] + (j != t) - s[t]) for j in range(3)))
        for s, t in zip(scores.tolist(), targets.tolist(), strict=True)
    ]
    assert smooth_top1_svm(scores, targets).tolist() == pytest.approx(rows, rel=1e-12)


def test_smooth_svm_is_a_hinge_far_from_the_margin():
    for gap, target in itertools.product((-60.0, 61.0, 300.0, 1e5), (0, 1)):
        scores, targets = torch.tensor([[0.0, gap]]), torch.tensor([target])
        hinge = 2 * F.multi_margin_loss(scores, targets)  # it divides by the classes
        assert smooth_top1_svm(scores, targets).item() == pytest.approx(hinge.item(), abs=1e-5)
    # At the margin it is the logarithm of two, and never less than the hinge.
    at_margin = smooth_top1_svm(torch.tensor([[0.0, 1.0]]), torch.tensor([1]))
    assert at_margin.item() == pytest.approx(math.log(2), rel=1e-6)


def test_smooth_svm_is_near_the_published_with_its_switch_to_the_hinge():
    """The published code takes the hinge where two scores are log(1000) apart or more."""
    svm = torchmil_utils.SmoothTop1SVM(2)
    scores, target = torch.tensor([[0.0, 7.0]]), torch.tensor([1])
    assert torchmil_utils.detect_large(scores, 1, svm.tau, svm.thresh)[1].all()
    assert 0 < smooth_top1_svm(scores, target).item() < math.log(1 + math.e / 1000)


@pytest.mark.parametrize(
    ("name", "attention_dim", "count"),
    [("clam-sb", 384, 922_247), ("clam-sb", 256, 790_791), ("clam-mb", 384, 922_632)],
)
def test_parameter_count_is_the_published(name, attention_dim, count):
    model = build_model(name, in_dim=1024, num_classes=2, attention_dim=attention_dim)
    assert model.num_parameters() == count


def test_without_instance_weight_there_are_no_instance_classifiers():
    model = small_model("clam-sb", instance_weight=0.0)
    assert not any("instance" in key for key in model.state_dict())
    batch = BagBatch.pack(random_bags())
    output = model(batch)
    loss = model.loss(output, batch.labels, num_bags=4)
    assert torch.allclose(loss.total, F.cross_entropy(output.logits[:, 0], batch.labels))


def test_dropout_is_of_embedding_and_both_factors_and_in_training_only():
    torch.manual_seed(0)
    batch = BagBatch.pack([Bag(torch.randn(4000, IN_DIM), "a")])
    model = small_model("clam-sb", dropout=0.25, hidden_dim=4)
    seen = {}
    model.attention.register_forward_pre_hook(lambda _, args: seen.update(product=args[0]))
    model.value.register_forward_pre_hook(lambda _, args: seen.update(embedding=args[0]))
    quiet = model(batch)
    assert (seen["product"] != 0).all()
    model.train()
    with torch.no_grad():
        model.mlp[0].bias.fill_(50.0)  # no embedding is zero but by dropout
    loud = model(batch)
    assert not torch.equal(loud.attention, quiet.attention)
    for key, kept in (("embedding", 0.75), ("product", 0.75**2)):
        values = seen[key]
        error = math.sqrt(kept * (1 - kept) / values.numel())
        assert (values != 0).float().mean().item() == pytest.approx(kept, abs=5 * error)


@BOTH
def test_half_precision_layers_leave_the_output_near(name):
    batch = BagBatch.pack(random_bags())
    model = small_model(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
        loss = model.loss(output, batch.labels, num_bags=4).total
    exact = model(batch)
    assert torch.allclose(output.attention.float(), exact.attention, atol=0.05)
    assert torch.allclose(output.logits.float(), exact.logits, atol=0.05)
    assert loss.item() == pytest.approx(
        model.loss(exact, batch.labels, num_bags=4).total.item(), abs=0.05
    )


def test_published_settings():
    for name, branches in (("clam-sb", "single"), ("clam-mb", "per_class")):
        settings = build_model(name, in_dim=3, num_classes=2).settings
        assert (settings.branches, settings.instances_per_side) == (branches, 8)
        assert (settings.dropout, settings.instance_weight, settings.subtyping) == (
            0.25,
            0.3,
            False,
        )
        released = build_model(name, in_dim=3, num_classes=2, preset="released").settings
        assert (released.branches, released.instances_per_side) == (branches, 32)
        assert not released.standardise


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_dim": 0}, "hidden_dim >= 1"),
        ({"instances_per_side": 0}, "instances_per_side >= 1"),
        ({"instance_weight": 1.0}, "instance_weight from 0 to below 1"),
        ({"dropout": -0.1}, "dropout from 0 to below 1"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        CLAMSettings(**settings)


@pytest.mark.usefixtures("without_shape_checks")
def test_unknown_branches():
    with pytest.raises(SettingsError, match="branches to be one of single, per_class"):
        build_model("clam-sb", in_dim=3, num_classes=2, branches="two")


def looped_instance_loss(model, output, batch):
    """The instance loss of packed bags, bag by bag and class by class."""
    settings = model.settings
    scores = output.extras["instance_scores"].unflatten(1, (model.num_classes, 2))
    ranking = output.extras["attention_logits"].expand(model.num_classes, -1)
    bounds = itertools.pairwise(batch.offsets.tolist())
    terms = [scores[:0].sum()]
    for label, (start, end) in zip(batch.labels.tolist(), bounds, strict=True):
        k = min(settings.instances_per_side, (end - start) // 2)
        for c in range(model.num_classes) if settings.subtyping else (label,):
            order = start + ranking[c, start:end].argsort(descending=True, stable=True)
            chosen = torch.cat([order[:k], order[len(order) - k :]]) if c == label else order[:k]
            targets = torch.zeros_like(chosen)
            if c == label:
                targets[:k] = 1
            if k > 0:
                margin = 1 - F.one_hot(targets, 2)
                terms.append(F.cross_entropy(scores[chosen, c] + margin, targets))
    share = model.num_classes if settings.subtyping else 1
    return torch.stack(terms).sum() / (share * len(batch.labels))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("subtyping", [False, True])
@BOTH
def test_instance_loss_and_its_gradients_are_those_of_a_loop_over_bags(name, subtyping, ties):
    model = small_model(name, num_classes=3, subtyping=subtyping, dtype=torch.float64)
    with torch.no_grad():  # so that some are on the wrong side by far
        model.instance_classifiers.weight.mul_(20)
    if ties:  # the features of an instance, and so its attention, occur several times
        bags = [
            replace(bag, features=bag.features[torch.arange(bag.num_instances) // 3])
            for bag in random_bags((7, 1, 30, 5, 6, 2, 40), num_classes=3, dtype=torch.float64)
        ]
    else:
        bags = random_bags((7, 1, 30, 5, 6, 2, 40), num_classes=3, dtype=torch.float64)
    batch = BagBatch.pack(bags)
    output = model(batch)
    found = model._instance_loss(output, batch.labels)
    expected = looped_instance_loss(model, output, batch)
    assert expected > 0.1
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    parameters = [*model.mlp.parameters(), *model.instance_classifiers.parameters()]
    gradients = (
        torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (found, expected)
    )
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_extremes_are_those_of_a_sorted_list_with_ties_and_huge_values():
    generator = torch.Generator().manual_seed(0)
    values = torch.randint(-2, 3, (2, 31), generator=generator).double()
    values[:, ::7] *= 1e300
    bounds = [0, 9, 10, 14, 31]
    most, least = extreme_instances(values, Segments.of(torch.tensor(bounds)), 4)
    for r, (b, (start, end)) in itertools.product(range(2), enumerate(itertools.pairwise(bounds))):
        ranked = sorted(range(start, end), key=lambda i, v=values[r]: -v[i].item())
        k = min(4, end - start)
        assert most[r, b, :k].tolist() == ranked[:k]
        assert least[r, b, :k].tolist() == ranked[::-1][:k]
