"""What the GPU runs to take a step of Adam; Triton compiles it at the first launch.

Only to be imported where `sgpmil.gpu.triton_package.available`. Tensors are given by their
addresses, a column of the table a parameter:

==========  ================================================
``0``       weights
``1``       gradient; 0 where there is none
``2``       first moment
``3``       second moment
``4``       number of steps
``5``       weights in half precision; 0 where there are none
``6``       number of weights
``7``       1 where the gradient is in half precision
==========  ================================================
"""

from typing import no_type_check

import triton
import triton.language as tl

__all__ = ["norm_program", "update_program"]


@triton.jit
@no_type_check
def _gradient(
    table: tl.tensor,
    tensor: tl.tensor,
    num_tensors: tl.tensor,
    offsets: tl.tensor,
    within: tl.tensor,
) -> tl.tensor:
    """Load a part of a tensor's gradient in single precision; zeros where there is none."""
    address = tl.load(table + num_tensors + tensor)
    is_half = tl.load(table + 7 * num_tensors + tensor)
    there = within & (address != 0)
    single = address.to(tl.pointer_type(tl.float32), bitcast=True)
    half = address.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    found = tl.load(single + offsets, mask=there & (is_half == 0), other=0.0)
    return found + tl.load(half + offsets, mask=there & (is_half != 0), other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def norm_program(
    table: tl.tensor,
    chunk_tensors: tl.tensor,
    chunk_starts: tl.tensor,
    partials: tl.tensor,
    num_tensors: tl.tensor,
    CHUNK: tl.constexpr,
) -> None:
    """Sum the squares of a chunk of gradients, and count the step of the tensor it begins."""
    chunk = tl.program_id(0)
    tensor = tl.load(chunk_tensors + chunk)
    start = tl.load(chunk_starts + chunk)
    size = tl.load(table + 6 * num_tensors + tensor)
    offsets = start + tl.arange(0, CHUNK)
    g = _gradient(table, tensor, num_tensors, offsets, offsets < size)
    tl.store(partials + chunk, tl.sum(g * g, axis=0))
    address = tl.load(table + num_tensors + tensor)
    counts = tl.load(table + 4 * num_tensors + tensor).to(tl.pointer_type(tl.float32), bitcast=True)
    begins = (start == 0) & (address != 0)
    tl.store(counts, tl.load(counts, mask=begins, other=0.0) + 1.0, mask=begins)


@triton.jit
@no_type_check
def update_program(
    table: tl.tensor,
    chunk_tensors: tl.tensor,
    chunk_starts: tl.tensor,
    partials: tl.tensor,
    rate: tl.tensor,
    num_tensors: tl.tensor,
    num_chunks: tl.tensor,
    clip: tl.tensor,
    weight_decay: tl.tensor,
    eps: tl.tensor,
    beta2: tl.tensor,
    rest1: tl.tensor,
    rest2: tl.tensor,
    log_beta1: tl.tensor,
    log_beta2: tl.tensor,
    DECOUPLED: tl.constexpr,
    CLIPPED: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    r"""Move a chunk of weights, all gradients scaled to a norm of `clip` at most.

    `rest1` and `rest2` are $1 - \beta_1$ and $1 - \beta_2$, which single precision would lose.
    """
    chunk = tl.program_id(0)
    tensor = tl.load(chunk_tensors + chunk)
    start = tl.load(chunk_starts + chunk)
    address = tl.load(table + num_tensors + tensor)
    size = tl.load(table + 6 * num_tensors + tensor)
    offsets = start + tl.arange(0, CHUNK)
    within = (offsets < size) & (address != 0)
    weights = tl.load(table + tensor).to(tl.pointer_type(tl.float32), bitcast=True) + offsets
    firsts = tl.load(table + 2 * num_tensors + tensor)
    firsts = firsts.to(tl.pointer_type(tl.float32), bitcast=True) + offsets
    seconds = tl.load(table + 3 * num_tensors + tensor)
    seconds = seconds.to(tl.pointer_type(tl.float32), bitcast=True) + offsets
    counts = tl.load(table + 4 * num_tensors + tensor).to(tl.pointer_type(tl.float32), bitcast=True)

    g = _gradient(table, tensor, num_tensors, offsets, within)
    if CLIPPED:
        each = tl.arange(0, CHUNKS)
        squares = tl.load(partials + each, mask=each < num_chunks, other=0.0)
        norm = tl.sqrt(tl.sum(squares, axis=0))
        g = g * tl.minimum(clip / (norm + 1e-6), 1.0)
    p = tl.load(weights, mask=within, other=0.0)
    lr = tl.load(rate)
    if DECOUPLED:
        p = p - lr * weight_decay * p
    else:
        g = g + weight_decay * p
    m = tl.load(firsts, mask=within, other=0.0)
    v = tl.load(seconds, mask=within, other=0.0)
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    # In double precision: at first the corrections are differences of nearly equal numbers.
    step = tl.load(counts, mask=address != 0, other=1.0).to(tl.float64)
    correction1 = (1.0 - tl.exp(step * log_beta1)).to(tl.float32)
    correction2 = (1.0 - tl.exp(step * log_beta2)).to(tl.float32)
    p = p - (lr / correction1) * m / (tl.sqrt(v) / tl.sqrt(correction2) + eps)
    tl.store(weights, p, mask=within)
    tl.store(firsts, m, mask=within)
    tl.store(seconds, v, mask=within)
    halves = tl.load(table + 5 * num_tensors + tensor)
    half = halves.to(tl.pointer_type(tl.bfloat16), bitcast=True) + offsets
    tl.store(half, p.to(tl.bfloat16), mask=within & (halves != 0))
