import itertools
import math

import pytest
import torch
from torch import nn

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import SettingsError
from sgpmil.models import build_model
from sgpmil.models.kernel_attention import KernelAttentionSettings

from .small import IN_DIM, random_bags, small_model

KERNELS = {
    "gaussian": lambda q, k, s: math.exp(-s * sum((a - b) ** 2 for a, b in zip(q, k, strict=True))),
    "inverse-quadratic": lambda q, k, s: (
        1 / (s * sum((a - b) ** 2 for a, b in zip(q, k, strict=True)) + 1)
    ),
    "dot": lambda q, k, s: sum(a * b for a, b in zip(q, k, strict=True)),
    "laplace": lambda q, k, s: -sum(abs(a - b) for a, b in zip(q, k, strict=True)),
    "module": lambda q, k, s: sum(abs(a - b) - abs(a) - abs(b) for a, b in zip(q, k, strict=True)),
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def small(kernel, *, block_entries=None, **settings):
    """Build a small model whose biases, scale and residual are not the start's."""
    model = small_model(
        "kernel-attention", kernel=kernel, dropout=0.0, dtype=torch.float64, **settings
    )
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_()
        model.self_attention.residual.fill_(0.7)
        if model.self_attention.log_scale is not None:
            model.self_attention.log_scale.fill_(math.log(0.3))
    if block_entries is not None:
        model.self_attention.block_entries = block_entries
    return model


@every_kernel
def test_output_is_that_of_a_naive_double_loop(kernel):
    model = small(kernel, standardise=False)
    bags = random_bags((5, 1, 9), dtype=torch.float64)
    output = model(BagBatch.pack(bags))
    layer = model.self_attention
    start = 0
    for b, bag in enumerate(bags):
        rows = slice(start, start := start + bag.num_instances)
        N = bag.num_instances
        h = (bag.features @ model.mlp[0].weight.T + model.mlp[0].bias).clamp(min=0)
        q, k = layer.query(h).tolist(), layer.key(h).tolist()
        v = layer.value(h)
        contexts = []
        for i in range(N):
            powers = [math.exp(KERNELS[kernel](q[i], k[j], 0.3)) for j in range(N)]
            found = sum(powers[j] / sum(powers) * v[j] for j in range(N))
            contexts.append(h[i] + 0.7 * found)
        o = torch.stack(contexts)
        hidden = torch.tanh(o @ model.value.weight.T + model.value.bias)
        a = (hidden @ model.attention.weight[0] + model.attention.bias).softmax(0)
        logits = model.classifier.weight @ (a @ o) + model.classifier.bias
        assert torch.allclose(output.logits[b, 0], logits)
        assert torch.allclose(output.attention[0, rows], a)
        assert torch.allclose(output.evidence[rows], a[:, None] * (o @ model.classifier.weight.T))


@every_kernel
@pytest.mark.parametrize("block_entries", [1, 19, 57, 100])
def test_the_size_of_a_block_does_not_matter(kernel, block_entries):
    whole, parts = small(kernel), small(kernel, block_entries=block_entries)
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            assert torch.allclose(whole(batch).logits, parts(batch).logits, rtol=0, atol=1e-13)
            assert torch.allclose(whole(batch).evidence, parts(batch).evidence, rtol=0, atol=1e-13)


@every_kernel
def test_gradients_with_recomputed_blocks_are_those_without(kernel):
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    grads = []
    for block_entries in (None, 40):
        model = small(kernel, block_entries=block_entries).train()
        model.loss(model(batch), batch.labels, num_bags=4).total.backward()
        grads.append({key: p.grad for key, p in model.named_parameters()})
    for key, grad in grads[0].items():
        assert torch.allclose(grad, grads[1][key], rtol=1e-9, atol=1e-13), key
        # The scores of all instances, or of all keys, are shifted alike.
        shift = key == "attention.bias" or (kernel == "dot" and key == "self_attention.key.bias")
        assert shift or grad.abs().max() > 1e-6, key


def test_no_more_than_a_block_of_pairs_exists_at_a_time():
    model = small("gaussian", block_entries=200)
    bag = random_bags((100,), dtype=torch.float64)[0]
    batch = BagBatch.pack([bag])
    sizes = []
    energy = model.self_attention.energy

    def watched(queries, keys):
        result = energy(queries, keys)
        sizes.append(tuple(result.shape))
        return result

    model.self_attention.energy = watched
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        output = model.train()(batch)
    assert sizes == [(2, 100)] * 50
    # The backward pass holds none of them but computes each again.
    assert not any(len(shape) == 2 and shape[1] == 100 and shape[0] > 1 for shape in kept)
    model.loss(output, batch.labels, num_bags=1).total.backward()
    assert sizes == [(2, 100)] * 100


@pytest.mark.parametrize("kernel", ["gaussian", "inverse-quadratic"])
def test_the_scale_is_positive_wherever_training_takes_it(kernel):
    """The published scale is dead for good once it is not positive."""
    model = small(kernel)
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    with torch.no_grad():
        model.self_attention.log_scale.fill_(-3.0)
    model.loss(model(batch), batch.labels, num_bags=4).total.backward()
    assert model.self_attention.log_scale.grad.abs() > 1e-9
    for value in (-3.0, 3.0):
        with torch.no_grad():
            model.self_attention.log_scale.fill_(value)
        q = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        energy = model.self_attention.energy(q, q)
        assert torch.allclose(energy.diagonal(), torch.ones(4, dtype=torch.float64))
        assert ((energy > 0) & (energy <= 1)).all()


def test_rounding_takes_no_distance_below_zero():
    model = small("gaussian").float()
    q = 1e3 + torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    inner = q.square().sum(1, keepdim=True) + q.square().sum(1) - 2 * q @ q.T
    assert inner.min() < 0  # so it would
    assert model.self_attention.energy(q, q).max() <= 1


def test_the_default_scale_lets_queries_learn_and_the_published_does_not():
    torch.manual_seed(0)
    batch = BagBatch.pack([Bag(torch.randn(60, 256), f"b{i}", label=i) for i in range(2)])
    sizes = {}
    for start, value in (("width", 1 / 64), ("one", 1.0)):
        torch.manual_seed(1)
        model = build_model("kernel-attention", in_dim=256, num_classes=2, scale_start=start)
        assert model.self_attention.log_scale.exp().item() == pytest.approx(value)
        model.loss(model(batch), batch.labels, num_bags=2).total.backward()
        sizes[start] = model.self_attention.query.weight.grad.abs().max().item()
    assert sizes["width"] > 1e-5
    assert sizes["one"] < 1e-12


def test_without_the_residual_it_is_plain_attention_pooling():
    model = small("gaussian")
    with torch.no_grad():
        model.self_attention.residual.zero_()
    plain = small_model("abmil", gated=False, dtype=torch.float64)
    own = {k: v for k, v in model.state_dict().items() if not k.startswith("self_attention")}
    plain.load_state_dict(own)
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    assert torch.allclose(model(batch).logits, plain(batch).logits)
    assert torch.allclose(model(batch).attention, plain(batch).attention)


def test_weights_start_xavier_uniform_and_the_encoder_as_it_is():
    torch.manual_seed(0)
    model = build_model("kernel-attention", in_dim=784, num_classes=2, encoder="digit-cnn")
    layers = {
        key: layer
        for key, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and not key.startswith("encoder")
    }
    assert len(layers) == 7
    for key, layer in layers.items():
        bound = math.sqrt(6 / sum(layer.weight.shape))
        assert layer.weight.abs().max() <= bound, key
        assert layer.weight.abs().max() > 0.9 * bound, key
        error = bound / math.sqrt(3 * layer.weight.numel())
        assert abs(layer.weight.mean()) < 5 * error, key
        assert (layer.bias == 0).all(), key
    assert any((p != 0).any() for k, p in model.encoder.named_parameters() if k.endswith("bias"))


def test_dropout_is_of_the_embedding_and_in_training_only():
    torch.manual_seed(0)
    batch = BagBatch.pack([Bag(torch.randn(1000, IN_DIM), "a")])
    model = small_model("kernel-attention", hidden_dim=4)
    seen = []
    model.self_attention.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        model.mlp[0].bias.fill_(50.0)  # no embedding is zero but by dropout
    model(batch)
    model.train()(batch)
    assert (seen[0] != 0).all()
    error = math.sqrt(0.2 * 0.8 / 4000)
    assert (seen[1] == 0).float().mean().item() == pytest.approx(0.2, abs=5 * error)


@pytest.mark.parametrize(
    ("kernel", "count"),
    [(k, 919_941 if k in ("gaussian", "inverse-quadratic") else 919_940) for k in KERNELS],
)
def test_parameter_count_is_the_published(kernel, count):
    model = build_model("kernel-attention", in_dim=1024, num_classes=2, kernel=kernel)
    assert model.num_parameters() == count


@every_kernel
def test_half_precision_layers_leave_the_output_near(kernel):
    batch = BagBatch.pack(random_bags())
    model = small(kernel, block_entries=40).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(batch)
        queries = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
        energy = model.self_attention.energy(queries.bfloat16(), queries.bfloat16())
        loss = model.loss(output, batch.labels, num_bags=4).total
    assert energy.dtype == torch.float32
    exact = model(batch)
    assert torch.allclose(output.attention.float(), exact.attention, atol=0.1)
    assert torch.allclose(output.logits.float(), exact.logits, atol=0.1)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_equal_instances_and_far_ones_give_finite_gradients():
    features = torch.cat([torch.zeros(3, IN_DIM), torch.full((2, IN_DIM), 1e4)])
    batch = BagBatch.pack([Bag(features, "a", label=0)])
    for kernel in KERNELS:
        model = small(kernel, standardise=False).float()
        model.loss(model(batch), batch.labels, num_bags=1).total.backward()
        assert all(p.grad.isfinite().all() for p in model.parameters()), kernel


def test_published_settings():
    settings = build_model("kernel-attention", in_dim=3, num_classes=2, preset="released").settings
    assert (settings.hidden_dim, settings.query_dim, settings.attention_dim) == (512, 64, 128)
    assert (settings.dropout, settings.residual_start) == (0.2, 1.0)
    assert (settings.scale_start, settings.standardise) == ("one", False)
    model = build_model("kernel-attention", in_dim=3, num_classes=2, residual_start=0.5)
    assert model.self_attention.residual.item() == 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kernel": "rbf"}, "kernel to be one of gaussian, dot, inverse-quadratic"),
        ({"scale_start": "two"}, "scale_start to be one of width, one"),
        ({"query_dim": 0}, "query_dim >= 1"),
        ({"dropout": 1.0}, "dropout from 0 to below 1"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_impossible_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        KernelAttentionSettings(**settings)


def test_every_kernel_is_another_model():
    batch = BagBatch.pack(random_bags(dtype=torch.float64))
    outputs = [small(kernel)(batch).logits for kernel in KERNELS]
    for first, second in itertools.combinations(outputs, 2):
        assert not torch.allclose(first, second, atol=1e-4)
