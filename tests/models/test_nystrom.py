from dataclasses import replace

import pytest
import torch
from torchmil.nn.attention import NystromAttention as TorchmilAttention

from sgpmil.bags.segments import Segments
from sgpmil.errors import SettingsError
from sgpmil.models.nystrom import (
    AttentionMatrix,
    ExactMatrix,
    NystromAttention,
    NystromMatrix,
    NystromSettings,
    PreNormAttention,
    iterated_pinv,
)

SETTINGS = NystromSettings(hidden_dim=8, num_heads=2, num_landmarks=4, dropout=0.0)
PADDED = replace(SETTINGS, zero_padding=True)


def attention(seed=0, settings=SETTINGS, dtype=torch.float64):
    torch.manual_seed(seed)
    return NystromAttention(settings).to(dtype).eval()


def tokens(n, seed=1, dtype=torch.float64):
    return torch.randn(n, 8, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def attend(layer, x):
    """Call the layer on one sequence."""
    result, (matrix,) = layer(x, Segments.of(torch.tensor([0, len(x)])))
    return result, matrix


def exact_matrix(layer, x):
    (matrix,) = layer.exact_matrices(x, Segments.of(torch.tensor([0, len(x)])))
    return matrix


def by_hand(layer, x):
    """Compute the layer's output and its heads' attention matrices head by head, row by row."""
    m, heads, width = layer.num_landmarks, layer.num_heads, x.shape[1] // layer.num_heads
    padding = -len(x) % m if layer.zero_padding else 0
    padded = torch.cat([x.new_zeros(padding, x.shape[1]), x])
    segments = [[i for i in range(len(padded)) if i * m // len(padded) == s] for s in range(m)]
    queries, keys, values = (padded @ layer.qkv.weight.T).split(x.shape[1], dim=1)

    def marks(v):
        return torch.stack([v[rows].mean(0) for rows in segments])

    outputs, matrices = [], []
    for h in range(heads):
        part = slice(h * width, (h + 1) * width)
        q, k, v = queries[:, part] / width**0.5, keys[:, part], values[:, part]
        ql, kl = marks(q), marks(k)
        inverse = iterated_pinv(
            torch.stack(
                [
                    (marks(queries[:, p]) @ marks(keys[:, p]).T / width**0.5).softmax(-1)
                    for p in (slice(i * width, (i + 1) * width) for i in range(heads))
                ]
            ),
            layer.pinv_iterations,
        )[h]
        matrix = (q @ kl.T).softmax(-1) @ inverse @ (ql @ k.T).softmax(-1)
        matrices.append(matrix[padding:, padding:])
        filters = layer.conv.weight[h, 0]
        half = len(filters) // 2
        conv = torch.zeros_like(v)
        for i in range(len(v)):
            for j, weight in enumerate(filters):
                if 0 <= i + j - half < len(v):
                    conv[i] += weight * v[i + j - half]
        outputs.append(matrix @ v + conv)
    return layer.out(torch.cat(outputs, dim=1))[padding:], torch.stack(matrices)


@pytest.mark.parametrize(
    ("n", "settings"),
    [*((n, PADDED) for n in (1, 3, 4, 9, 13)), *((n, SETTINGS) for n in (5, 8, 9, 13))],
)
def test_the_layer_and_its_matrix_are_those_computed_by_hand(n, settings):
    layer, x = attention(settings=settings), tokens(n)
    with torch.no_grad():
        result, matrix = attend(layer, x)
        expected, matrices = by_hand(layer, x)
    assert torch.allclose(result, expected, atol=1e-12)
    mean = matrices.mean(0)
    vector = torch.randn(n, dtype=torch.float64)
    assert torch.allclose(matrix.row(n - 1), mean[n - 1], atol=1e-12)
    assert torch.allclose(matrix.row_sums(), mean.sum(1), atol=1e-12)
    assert torch.allclose(matrix.left_product(vector), vector @ mean, atol=1e-12)


@pytest.mark.parametrize(("n", "settings"), [(3, PADDED), (13, PADDED), (12, SETTINGS)])
def test_same_weights_in_torchmil_give_the_same(n, settings):
    """Its attention has neither the output layer nor the convolution along the sequence."""
    layer = attention(settings=settings, dtype=torch.float32)
    x = tokens(n, dtype=torch.float32)
    twin = TorchmilAttention(in_dim=8, att_dim=8, n_heads=2, n_landmarks=4)
    with torch.no_grad():
        twin.qkv_nn.weight.copy_(layer.qkv.weight)
        layer.conv.weight.zero_()
        layer.out.weight.copy_(torch.eye(8))
        layer.out.bias.zero_()
        result, matrix = attend(layer, x)
        expected, weights = twin(x[None], return_att=True)
    assert torch.allclose(result, expected[0], atol=1e-5)
    assert torch.allclose(matrix.row(0), weights[0].mean(0)[0], atol=1e-5)


def test_the_exact_matrix_is_that_of_the_scaled_queries_and_keys():
    layer, x = attention(), tokens(10)
    matrix = exact_matrix(layer, x)
    q, k, _ = (x @ layer.qkv.weight.T).split(8, dim=1)
    heads = [((q[:, part] / 2) @ k[:, part].T).softmax(-1) for part in (slice(0, 4), slice(4, 8))]
    assert isinstance(matrix, ExactMatrix)
    assert torch.allclose(matrix.row(2), torch.stack(heads).mean(0)[2])


@pytest.mark.parametrize("n", [1, 3, 6])
def test_no_more_tokens_than_landmarks_give_exact_attention(n):
    layer, x = attention(settings=replace(SETTINGS, num_landmarks=6)), 3 * tokens(n)
    result, matrix = attend(layer, x)
    assert torch.equal(matrix.row(0), exact_matrix(layer, x).row(0))
    q, k, v = (x @ layer.qkv.weight.T).split(8, dim=1)
    parts = (slice(0, 4), slice(4, 8))
    attended = torch.cat([((q[:, p] / 2) @ k[:, p].T).softmax(-1) @ v[:, p] for p in parts], dim=1)
    with torch.no_grad():
        layer.conv.weight.zero_()
        assert torch.allclose(attend(layer, x)[0], layer.out(attended))
    assert result.isfinite().all()


def test_exact_attention_is_what_the_factors_give():
    """With as many landmarks as tokens and the iteration run to its end."""
    settings = replace(PADDED, num_landmarks=6, pinv_iterations=40)
    layer, x = attention(settings=settings), 3 * tokens(6)
    factors = attend(layer, x)[1]
    layer.zero_padding = False
    exact = attend(layer, x)[1]
    assert isinstance(factors, NystromMatrix)
    assert isinstance(exact, ExactMatrix)
    assert torch.allclose(factors.row(0), exact.row(0), atol=1e-6)


def test_pinv_converges_to_the_pseudo_inverse():
    a = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = (2 * a).softmax(-1) + 0.5 * torch.eye(5, dtype=torch.float64)
    assert torch.allclose(iterated_pinv(a, 30), torch.linalg.pinv(a), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pinv_runs_in_single_precision_under_mixed_precision(dtype):
    a = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(0)).mul(3).softmax(-1)
    expected = iterated_pinv(a, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16  # so autocast is on here
        inside = iterated_pinv(a, 6)
    assert inside.dtype == torch.float32
    assert torch.equal(inside, expected)
    # A half-precision matrix is taken up as it is, and the iteration does not round further.
    low = iterated_pinv(a.to(dtype), 6)
    assert low.dtype == torch.float32
    assert torch.equal(low, iterated_pinv(a.to(dtype).float(), 6))


def test_residual_and_norm():
    torch.manual_seed(0)
    layer = PreNormAttention(SETTINGS).double().eval()
    x = tokens(7)
    result, _ = attend(layer, x)
    change, _ = attend(layer.attention, torch.nn.functional.layer_norm(x, (8,)))
    assert torch.allclose(result, x + change)


def test_the_matrix_carries_no_gradient():
    layer = attention()
    result, matrix = attend(layer, tokens(6).requires_grad_())
    assert result.requires_grad
    assert not any(t.requires_grad for t in (matrix.left, matrix.inverse, matrix.right))
    _, exact = attend(layer, tokens(3).requires_grad_())
    assert not exact.row(0).requires_grad


def test_heads_must_divide_the_width():
    with pytest.raises(SettingsError, match=r"Expected hidden_dim to be a multiple .* 8 and 3\."):
        NystromSettings(hidden_dim=8, num_heads=3)


@pytest.mark.parametrize("settings", [SETTINGS, PADDED])
def test_sequences_end_to_end_attend_as_each_does_alone(settings):
    """Shorter than the landmarks, as long, and longer, in any order, and their gradients."""
    layer = attention(settings=settings)
    sizes = (9, 1, 4, 17, 3, 8)
    x = tokens(sum(sizes)).requires_grad_()
    parameters = (x, *layer.parameters())
    together, matrices = layer(x, Segments.of(torch.tensor([0, *sizes]).cumsum(0)))
    alone = [attend(layer, part) for part in x.split(sizes)]
    separate = torch.cat([result for result, _ in alone])
    assert torch.allclose(together, separate, atol=1e-12)
    for n, matrix, (_, expected) in zip(sizes, matrices, alone, strict=True):
        assert type(matrix) is type(expected)
        vector = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        assert torch.allclose(matrix.row(n - 1), expected.row(n - 1), atol=1e-12)
        assert torch.allclose(matrix.left_product(vector), expected.left_product(vector))
    weight = tokens(len(x), seed=2)
    gradients = (torch.autograd.grad((y * weight).sum(), parameters) for y in (together, separate))
    for ours, theirs in zip(*gradients, strict=True):
        assert theirs.abs().max() > 1e-3
        assert torch.allclose(ours, theirs, atol=1e-10)


def test_pinv_starts_each_sequence_from_its_own_maxima():
    """Otherwise what is found for a sequence would depend on the others of its batch."""
    a = torch.randn(3, 2, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = a * torch.tensor([1.0, 1e3, 1e-3], dtype=torch.float64).view(3, 1, 1, 1)
    together = iterated_pinv(a, 2)
    for one, expected in zip(together, a, strict=True):
        assert torch.allclose(one, iterated_pinv(expected, 2), rtol=1e-12)


def random(*shape, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def factors():
    """A matrix in factors, and the mean over heads of their products."""
    left, inverse, right = (
        random(3, 10, 4, seed=0),
        random(3, 4, 4, seed=1),
        random(3, 4, 10, seed=2),
    )
    dense = sum(left[h] @ inverse[h] @ right[h] for h in range(3)) / 3
    return NystromMatrix(left, inverse, right), dense


def exact(scale=1.0):
    """An exact matrix, and the mean over heads of softmax attention, entry by entry."""
    queries, keys = scale * random(3, 10, 2, seed=0), random(3, 10, 2, seed=1)
    powers = torch.einsum("hid,hjd->hij", queries, keys).exp()
    return ExactMatrix(queries, keys), (powers / powers.sum(2, keepdim=True)).mean(0)


@pytest.mark.parametrize("rows", [1, 3, 10, 1024])
@pytest.mark.parametrize("make", [factors, exact])
def test_rows_sums_and_products_are_those_of_the_dense_matrix(make, rows, monkeypatch):
    monkeypatch.setattr("sgpmil.models.nystrom._ROWS", rows)
    matrix, dense = make()
    vector = random(10, seed=3)
    assert isinstance(matrix, AttentionMatrix)
    for i in range(10):
        assert torch.allclose(matrix.row(i), dense[i], atol=1e-12)
    assert torch.allclose(matrix.row_sums(), dense.sum(1), atol=1e-12)
    assert torch.allclose(matrix.left_product(vector), vector @ dense, atol=1e-12)


def test_huge_queries_attend_to_one_key():
    matrix, _ = exact(scale=1e6)
    one_a_head = torch.stack([matrix.row(i) for i in range(10)]) * 3
    assert torch.allclose(one_a_head, one_a_head.round(), atol=1e-9)
    assert torch.allclose(one_a_head.sum(1), torch.full((10,), 3.0, dtype=torch.float64))
