import pytest
import torch

from sgpmil.models.attention_matrix import AttentionMatrix, ExactMatrix, NystromMatrix


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
    monkeypatch.setattr("sgpmil.models.attention_matrix._ROWS", rows)
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
