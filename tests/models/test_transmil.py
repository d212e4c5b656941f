import pytest
import torch
import torchmil.models
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.models import build_model
from sgpmil.models.transmil import class_token_rollout

from .small import IN_DIM, random_bags, small_model


def test_parameter_count_is_the_published():
    assert build_model("transmil", in_dim=1024, num_classes=2).num_parameters() == 2_672_146


@pytest.mark.parametrize("size", [1, 4, 7, 19])
def test_same_weights_in_torchmil_give_the_same(size):
    """Its attention has neither output layer nor convolution; without ours, the models agree."""
    model = small_model("transmil", preset="released")
    with torch.no_grad():
        for layer in (model.first.attention, model.second.attention):
            layer.conv.weight.zero_()
            layer.out.weight.copy_(torch.eye(8))
            layer.out.bias.zero_()
    embed = nn.Sequential(nn.Linear(IN_DIM, 8), nn.ReLU())
    embed.load_state_dict(model.mlp.state_dict())
    twin = torchmil.models.TransMIL(
        (IN_DIM,), att_dim=8, n_heads=2, n_landmarks=4, feat_ext=embed
    ).eval()
    with torch.no_grad():
        twin.cls_token.copy_(model.class_token[None])
        for ours, theirs in zip((model.first, model.second), twin.layers, strict=True):
            theirs.norm1.load_state_dict(ours.norm.state_dict())
            theirs.att_module.qkv_nn.weight.copy_(ours.attention.qkv.weight)
        for ours, theirs in zip(
            model.position.convs,
            (twin.pos_layer.proj, twin.pos_layer.proj1, twin.pos_layer.proj2),
            strict=True,
        ):
            theirs.load_state_dict(ours.state_dict())
        twin.norm.load_state_dict(model.norm.state_dict())
    bag = random_bags((size,))[0]
    logits = model(BagBatch.pack([bag])).logits[0, 0]
    for output in range(2):
        with torch.no_grad():
            twin.classifier.weight.copy_(model.classifier.weight[output : output + 1])
            twin.classifier.bias.copy_(model.classifier.bias[output : output + 1])
        assert torch.allclose(twin(bag.features[None])[0], logits[output], atol=1e-5)


def layer_inputs(model, bag):
    """Return the normalised tokens that enter each of the two attentions."""
    seen = []
    hooks = [
        layer.attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for layer in (model.first, model.second)
    ]
    model(BagBatch.pack([bag]))
    for hook in hooks:
        hook.remove()
    return seen


def dense(matrix, n):
    return torch.stack([matrix.left_product(row) for row in torch.eye(n, dtype=torch.float64)])


@pytest.mark.parametrize("zero_padding", [True, False])
@pytest.mark.parametrize("rollout", ["nystrom", "exact"])
@pytest.mark.parametrize("size", [3, 5, 9, 19])
def test_score_is_the_rollout_with_the_later_layer_on_the_left(rollout, size, zero_padding):
    settings = {"rollout": rollout, "zero_padding": zero_padding}
    model = small_model("transmil", **settings, dtype=torch.float64)
    bag = random_bags((size,), dtype=torch.float64)[0]
    matrices = []
    for layer, tokens in zip((model.first, model.second), layer_inputs(model, bag), strict=True):
        n = len(tokens)
        whole = Segments.of(torch.tensor([0, n]))
        with torch.no_grad():
            (found,) = (
                layer.attention(tokens, whole)[1]
                if rollout == "nystrom"
                else layer.attention.exact_matrices(tokens, whole)
            )
        matrices.append(dense(found, n) + torch.eye(n, dtype=torch.float64))
    first, second = (m / m.sum(1, keepdim=True) for m in matrices)
    expected = (second @ first)[0, 1 : 1 + size]
    score = model(BagBatch.pack([bag])).score
    assert torch.allclose(score, expected, atol=1e-12)
    published = (first @ second)[0, 2 : 2 + size]
    assert len(published) != size or not torch.allclose(score, published, atol=1e-4)


@pytest.mark.parametrize("size", [1, 4, 9, 16])
def test_a_square_number_of_instances_has_a_score_each(size):
    """The published slice dropped the first instance, and had one score too few here."""
    model = small_model("transmil", dtype=torch.float64)
    bag = random_bags((size,), dtype=torch.float64)[0]
    before = model(BagBatch.pack([bag])).score
    assert len(before) == size
    if size < 4:
        return
    # The k-th score is the k-th instance's: the one that differs from the others stands out.
    same = bag.features[:1].repeat(size, 1)
    same[2] = -3 * same[2]
    score = small_model("transmil", dtype=torch.float64, rollout="exact")(
        BagBatch.pack([Bag(same, "one differs")])
    ).score
    assert (score - score.median()).abs().argmax() == 2


def test_rollout_of_matrices_by_hand():
    class Dense:
        def __init__(self, values):
            self.values = values

        def row(self, index):
            return self.values[index]

        def row_sums(self):
            return self.values.sum(1)

        def left_product(self, vector):
            return vector @ self.values

    first = Dense(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    second = Dense(torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    # rn(A2 + I)[0] = (.5, .5); rn(A1 + I) = ((.75, .25), (.5, .5))
    assert torch.allclose(class_token_rollout(first, second), torch.tensor([0.625, 0.375]))


def test_missing_rows_are_filled_with_the_first_ones():
    """Five instances make a 3×3 image: the first four again."""
    model = small_model("transmil", dtype=torch.float64)
    bag = random_bags((5,), dtype=torch.float64)[0]
    filled = Bag(torch.cat([bag.features, bag.features[:4]]), "filled")
    short, whole = model(BagBatch.pack([bag])), model(BagBatch.pack([filled]))
    assert torch.allclose(short.logits, whole.logits, atol=1e-12)
    assert torch.allclose(short.score, whole.score[:5], atol=1e-12)


def test_position_encoding_is_a_convolution_of_the_square_image():
    model = small_model("transmil", dtype=torch.float64)
    tokens = torch.randn(10, 8, dtype=torch.float64)
    with torch.no_grad():
        result = model.position(tokens, [3])
        weights = sum(
            torch.nn.functional.pad(conv.weight, [(7 - conv.kernel_size[0]) // 2] * 4)
            for conv in model.position.convs
        )
        bias = sum(conv.bias for conv in model.position.convs)
    assert torch.equal(result[0], tokens[0])
    image = tokens[1:].view(3, 3, 8)
    for y in range(3):
        for x in range(3):
            expected = image[y, x] + bias
            for dy in range(-2, 3):
                for dx in range(-2, 3):
                    if 0 <= y + dy < 3 and 0 <= x + dx < 3:
                        expected = expected + weights[:, 0, 3 + dy, 3 + dx] * image[y + dy, x + dx]
            assert torch.allclose(result[1 + 3 * y + x], expected, atol=1e-12)


def test_mixed_precision_stays_near_single():
    model = small_model("transmil")
    batch = BagBatch.pack(random_bags((40,)))
    single = model(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model(batch)
    assert (single.logits - mixed.logits.float()).abs().max() < 0.05
    assert (single.score - mixed.score.float()).abs().max() < 0.01


def test_attention_is_not_negative_and_the_score_keeps_the_order():
    """Coarse factors give negative entries, which would all tie at zero."""
    model = small_model("transmil", dtype=torch.float64)
    with torch.no_grad():
        for layer in (model.first, model.second):
            layer.attention.qkv.weight.mul_(12)
    output = model(BagBatch.pack(random_bags((300,), dtype=torch.float64)))
    negative = output.score < 0
    assert negative.any()
    assert (output.attention[0][negative] == 0).all()
    assert torch.equal(output.attention[0][~negative], output.score[~negative])
    assert len(output.score.unique()) > 290


class LargestTensor(TorchDispatchMode):
    """Notes how many numbers the largest tensor has that any operation makes."""

    def __init__(self):
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.size = max([self.size, *sizes])
        return result


def test_memory_is_linear_in_the_instances():
    N, m, heads, width = 3000, 4, 2, 8
    model = small_model("transmil")
    with torch.no_grad(), LargestTensor() as largest:
        model(BagBatch.pack(random_bags((N,))))
    tokens = 56**2 + m  # the next square, and a class token
    assert largest.size <= tokens * max(3 * width, heads * m)


def test_training_does_not_pay_for_the_exact_rollout():
    model = small_model("transmil", rollout="exact").train()
    with LargestTensor() as largest:
        model(BagBatch.pack(random_bags((600,))))
    assert largest.size < 600 * 100
