import random

import pytest
import torch

from sgpmil.bags.segments import Segments
from sgpmil.gpu import pooling
from sgpmil.gpu.pooling import SegmentPool, SegmentSoftmax
from sgpmil.models.pooling import pooling_weights
from tests.gpu.kernel_process import compile_program, run_kernels

MODULE = "tests.gpu.test_pooling"
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-13}


def bounds_of(sizes):
    return torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])


def normal(*shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(found, expected, tolerance):
    assert found.shape == expected.shape
    # Relative to the largest: entries that cancel out are no more precise than what they are of.
    scale = max(1.0, float(expected.abs().max()))
    assert float((found.double() - expected).abs().max()) <= tolerance * scale


# Softmax: (values, upstream gradient, sizes of the bags).


def softmax_cases():
    cases = {
        "one bag of one": ([1], 1, torch.float64, 1.0),
        "bags of one": ([1, 1, 1], 3, torch.float64, 1.0),
        "single precision": ([5, 1, 40], 3, torch.float32, 1.0),
        "far apart": ([7, 2, 1, 9], 3, torch.float32, 1e4),
        "far apart, double precision": ([7, 2, 1, 9], 30, torch.float64, 1e4),
        "many blocks": ([3, 700, 1, 64], 2, torch.float64, 5.0),
        "no last bag": ([4, 3, 0], 3, torch.float32, 1.0),
        "no bag but the last": ([0, 0, 5], 2, torch.float64, 1.0),
    }
    draw = random.Random(0)
    for number in range(6):
        sizes = [draw.randint(0, 9) for _ in range(draw.randint(1, 9))] + [1]
        cases[f"random {number}"] = (sizes, draw.randint(1, 5), torch.float64, 10.0)
    made = {
        name: (
            scale * normal(num_samples, sum(sizes), seed=1, dtype=dtype),
            normal(num_samples, sum(sizes), seed=2, dtype=dtype),
            bounds_of(sizes),
        )
        for name, (sizes, num_samples, dtype, scale) in cases.items()
    }
    ties = torch.tensor([[1e4, 1e4, -1e4, -1e4, -1e4, 0.0, 3.0, 3.0]])
    made["ties"] = (ties, normal(1, 8, seed=3, dtype=torch.float32), bounds_of([3, 2, 3]))
    shut_out = torch.tensor([[-torch.inf, 1.0, -torch.inf], [0.0, -torch.inf, 0.0]])
    made["some at minus infinity"] = (shut_out, torch.ones(2, 3), bounds_of([3]))
    values, grad, bounds = normal(9, 3, seed=4), normal(9, 3, seed=5), bounds_of([4, 5])
    made["columns side by side"] = (values.T, grad.T, bounds)
    made["one gradient for all"] = (values.T, torch.ones(1).double().expand(3, 9), bounds)
    return made


def softmax_and_gradient(values, grad, bounds):
    values.requires_grad_()
    softmax = SegmentSoftmax.apply(values, bounds)
    softmax.backward(grad)
    return softmax.detach(), values.grad


@pytest.mark.parametrize("name", softmax_cases())
def test_softmax_and_gradient_are_torchs_bag_by_bag(found, name):
    values, grad, bounds = softmax_cases()[name]
    exact = values.double().requires_grad_()
    expected = torch.cat([v.softmax(1) for v in exact.split(bounds.diff().tolist(), 1)], dim=1)
    expected.backward(grad.double())
    softmax, gradient = found[f"softmax: {name}"]
    assert softmax.dtype == gradient.dtype == values.dtype
    assert_close(softmax, expected.detach(), TOLERANCE[values.dtype])
    assert_close(gradient, exact.grad, TOLERANCE[values.dtype])


def test_softmax_of_extreme_ties_is_exact(found):
    softmax, _ = found["softmax: ties"]
    assert torch.equal(softmax[:, :5], torch.tensor([[0.5, 0.5, 0.0, 0.5, 0.5]]))


# Pooling: (weights, embeddings, upstream gradient, bounds).


def pool_cases():
    cases = {
        "one": ([1], 1, 1, torch.float64, torch.float64),
        "class logits": ([9, 1, 4], 30, 2, torch.float64, torch.float64),
        "class logits, many rows": ([1500, 1, 300], 3, 2, torch.float32, torch.float32),
        "odd widths": ([5, 6, 1], 3, 3, torch.float64, torch.float64),
        "more than a block of columns": ([5, 1, 6], 3, 145, torch.float64, torch.float64),
        "embeddings": ([70, 9], 1, 512, torch.float32, torch.float32),
        "several samples": ([5, 1, 40], 5, 64, torch.float32, torch.float32),
        "half precision": ([5, 1, 40], 3, 64, torch.float32, torch.float16),
        "bfloat16": ([20, 3], 1, 17, torch.float32, torch.bfloat16),
        "bfloat16, double weights": ([20, 3], 3, 17, torch.float64, torch.bfloat16),
        "double embeddings": ([4, 3], 2, 5, torch.float32, torch.float64),
        "no last bag": ([4, 3, 0], 3, 17, torch.float64, torch.float64),
        "no bag but the last": ([0, 0, 5], 2, 3, torch.float32, torch.float32),
        "products": ([70, 1, 130], 16, 16, torch.float32, torch.float32),
        "products of many samples": ([9, 100], 70, 40, torch.float32, torch.float32),
        "products, bags within a block": (
            [3, 0, 5, 40, 1, 0],
            30,
            145,
            torch.float32,
            torch.bfloat16,
        ),
        "products, bags in parts": ([900, 2], 30, 17, torch.float32, torch.float32),
        "a bag in parts": ([700], 1, 64, torch.float64, torch.float64),
        "bags in parts, one of them small": ([900, 1], 3, 17, torch.float64, torch.float64),
    }
    draw = random.Random(0)
    for number in range(6):
        sizes = [draw.randint(0, 9) for _ in range(draw.randint(1, 9))] + [1]
        shape = (draw.randint(1, 6), draw.randint(1, 20))
        cases[f"random {number}"] = (sizes, *shape, torch.float64, torch.float64)
    made = {
        name: (
            normal(num_samples, sum(sizes), seed=1, dtype=dtype),
            normal(sum(sizes), width, seed=2, dtype=embedding_dtype),
            normal(len(sizes), num_samples, width, seed=3, dtype=dtype),
            bounds_of(sizes),
        )
        for name, (sizes, num_samples, width, dtype, embedding_dtype) in cases.items()
    }
    weights, embeddings = normal(9, 3, seed=4).T, normal(5, 9, seed=5).T
    made["transposed"] = (weights, embeddings, normal(2, 5, 3, seed=6).mT, bounds_of([4, 5]))
    huge = torch.tensor([[1e4, -1e4, 1e4]]), torch.tensor([[1e4], [1e4], [1.0]])
    made["huge values cancel"] = (*huge, torch.full((1, 1, 1), 1e4), bounds_of([3]))
    return made


def pooled_and_gradients(weights, embeddings, grad, bounds):
    weights.requires_grad_()
    embeddings.requires_grad_()
    pooled = SegmentPool.apply(weights, embeddings, bounds)
    pooled.backward(grad)
    # Once more, with only one of them asked for.
    (of_weights,) = torch.autograd.grad(
        SegmentPool.apply(weights, embeddings.detach(), bounds), weights, grad
    )
    (of_embeddings,) = torch.autograd.grad(
        SegmentPool.apply(weights.detach(), embeddings, bounds), embeddings, grad
    )
    return pooled.detach(), weights.grad, embeddings.grad, of_weights, of_embeddings


@pytest.mark.parametrize("name", pool_cases())
def test_pool_and_gradients_are_products_bag_by_bag(found, name):
    weights, embeddings, grad, bounds = pool_cases()[name]
    w, h = weights.double().requires_grad_(), embeddings.double().requires_grad_()
    sizes = bounds.diff().tolist()
    bags = zip(w.split(sizes, 1), h.split(sizes), strict=True)
    expected = torch.stack([of_bag @ rows for of_bag, rows in bags])
    expected.backward(grad.double())
    pooled, of_weights, of_embeddings, *alone = found[f"pool: {name}"]
    tolerance = TOLERANCE[weights.dtype]
    assert pooled.dtype == of_weights.dtype == weights.dtype
    assert_close(pooled, expected.detach(), tolerance)
    assert_close(of_weights, w.grad, tolerance)
    assert of_embeddings.dtype == embeddings.dtype
    assert_close(of_embeddings, h.grad, max(tolerance, torch.finfo(embeddings.dtype).eps))
    assert all(map(torch.equal, alone, (of_weights, of_embeddings)))


def test_a_bag_without_rows_sums_to_zero(found):
    pooled, *_ = found["pool: no last bag"]
    assert torch.equal(pooled[-1], torch.zeros(3, 17).double())


# The functions that the models call, on the kernels and without them.


def pooling_on_kernels(values, embeddings, bounds):
    pooling.runs_triton = lambda _: True
    return pooling_results(values, embeddings, bounds)


def pooling_results(values, embeddings, bounds):
    segments = Segments(bounds.cpu(), bounds)
    softmax = pooling.bag_softmax(values, segments)
    attention = values.double().sigmoid().requires_grad_()
    weights = pooling_weights(attention, segments, "normalised")
    pooled = pooling.pool(weights, embeddings, segments)
    pooled.square().sum().backward()
    return softmax, weights.detach(), pooled.detach(), attention.grad


def model_cases():
    return {
        str(dtype): (normal(3, 9, seed=7, dtype=dtype), normal(9, 4, seed=8), bounds_of([4, 1, 4]))
        for dtype in (torch.float16, torch.float32, torch.float64)
    }


@pytest.mark.parametrize("name", model_cases())
def test_the_models_functions_agree_with_torch(found, name):
    expected = pooling_results(*model_cases()[name])
    for ours, theirs in zip(found[f"models: {name}"], expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert_close(ours, theirs.double(), TOLERANCE[ours.dtype])


# All of it in one process: one is started, and Triton imported, once.

KERNELS = {
    "softmax": (softmax_and_gradient, softmax_cases),
    "pool": (pooled_and_gradients, pool_cases),
    "models": (pooling_on_kernels, model_cases),
}


def on_kernels(kind, *case):
    function, _ = KERNELS[kind]
    return function(*case)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    cases = {
        f"{kind}: {name}": (kind, *case)
        for kind, (_, made) in KERNELS.items()
        for name, case in made().items()
    }
    return run_kernels(f"{MODULE}:on_kernels", cases, tmp_path_factory.mktemp("pooling"))


# Constants of a compilation: contiguous rows, rows of a single column, or neither.
PLAIN = {"stride_t": 1, "grad_stride_t": 1, "embeddings_stride_h": 1}
NARROW = {**PLAIN, "width": 1, "embeddings_stride_t": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("known", [PLAIN, NARROW, {}])
@pytest.mark.parametrize(
    ("sums", "rows", "as_product"),
    [
        ("fp32", "bf16", False),
        ("fp32", "fp32", False),
        ("fp64", "fp16", False),
        ("fp32", "bf16", True),
        ("fp32", "fp32", True),
    ],
)
def test_programs_compile_for_a_gpu(sums, rows, as_product, known):
    samples = 16 if as_product else 2
    tile = {"SAMPLES": samples, "ROWS": 32, "COLUMNS": 16, "STEPS": 3, **known}
    tile["AS_PRODUCT"] = as_product
    summed = dict.fromkeys(["values", "softmax", "weights", "grad", "out"], f"*{sums}")
    pointers = {**summed, "bounds": "*i64", "embeddings": f"*{rows}"}
    compile_program(pooling.softmax_program, pointers, tile)
    compile_program(pooling.softmax_gradient_program, pointers, tile)
    compile_program(pooling.pool_program, pointers, tile)
    compile_program(pooling.pool_weights_gradient_program, pointers, tile)
    pointers["out"] = f"*{rows}"
    compile_program(pooling.pool_embeddings_gradient_program, pointers, tile)
