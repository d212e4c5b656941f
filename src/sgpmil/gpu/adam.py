"""A step of Adam or AdamW for all parameters in two launches, gradient clipping included.

torch takes a dozen launches for it, and spreads the weights over a few dozen multiprocessors of a
GPU that has more than a hundred. For the small models of this package that is the longest part of
a training step.

The Triton programs find tensors by their addresses in a table with a column for each parameter:

=====  ==========================================================
row    content
=====  ==========================================================
``0``  weights
``1``  gradient; 0 where there is none
``2``  first moment
``3``  second moment
``4``  number of steps
``5``  weights in half precision; 0 where there are none
``6``  number of weights
``7``  1 where the gradient is in half precision
``8``  number of the group of parameters, which has a learning rate and a weight decay of its own
=====  ==========================================================
"""

from __future__ import annotations  # Triton is imported at the first launch

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, no_type_check

import torch
from torch import Tensor

from sgpmil.gpu.programs import power_of_two, program
from sgpmil.shapes import Float

if TYPE_CHECKING:
    import triton.language as tl

_CHUNK = 2048
"""Weights that one program updates."""


class AdamStep:
    """The step of an optimiser that has taken a step before, and so has a state.

    Args:
        optimiser: Adam or AdamW whose groups of parameters differ in learning rate and weight decay
            alone. The step reads and writes its state.
        rates: Learning rate of each group, on the device.
        clip: Largest norm of all gradients together; 0 does not clip.
        halves: Copies of parameters in half precision. They receive the gradients of their
            parameters, and each step makes them equal to these.
    """

    def __init__(
        self,
        optimiser: torch.optim.Adam | torch.optim.AdamW,
        rates: Float[Tensor, " _"],
        clip: float,
        halves: Mapping[Tensor, Tensor],
    ) -> None:
        self._group = optimiser.param_groups[0]
        self._rates = rates
        # A parameter that never had a gradient has no state, and takes no step.
        grouped = [
            (number, p)
            for number, group in enumerate(optimiser.param_groups)
            for p in group["params"]
            if optimiser.state.get(p)
        ]
        self._parameters = [p for _, p in grouped]
        self._clip = clip
        self._halves = [halves.get(p) for p in self._parameters]
        self._is_decoupled = isinstance(optimiser, torch.optim.AdamW)
        states = [optimiser.state[p] for p in self._parameters]
        self._fixed = [
            [p.data_ptr() for p in self._parameters],
            [s["exp_avg"].data_ptr() for s in states],
            [s["exp_avg_sq"].data_ptr() for s in states],
            [s["step"].data_ptr() for s in states],
            [0 if half is None else half.data_ptr() for half in self._halves],
            [p.numel() for p in self._parameters],
            [number for number, _ in grouped],
        ]
        device = self._parameters[0].device
        decays = [float(group["weight_decay"]) for group in optimiser.param_groups]
        self._decays = torch.tensor(decays, device=device)
        starts = [range(0, p.numel(), _CHUNK) for p in self._parameters]
        tensors = [i for i, parts in enumerate(starts) for _ in parts]
        self._chunk_tensors = torch.tensor(tensors, device=device)
        self._chunk_starts = torch.tensor([s for parts in starts for s in parts], device=device)
        self._partials = torch.empty(len(tensors), device=device)

    def table(self) -> Tensor:
        """Return an empty table of addresses; `fill` completes it for `launch`."""
        return torch.zeros(
            9, len(self._parameters), dtype=torch.int64, device=self._partials.device
        )

    def fill(self, table: Tensor) -> None:
        """Write all addresses, those of the present gradients among them."""
        gradients = [
            p.grad if half is None else half.grad
            for p, half in zip(self._parameters, self._halves, strict=True)
        ]
        weights, *others, sizes, groups = self._fixed
        rows = [
            weights,
            [0 if g is None else g.data_ptr() for g in gradients],
            *others,
            sizes,
            [int(g is not None and g.dtype == torch.bfloat16) for g in gradients],
            groups,
        ]
        table.copy_(torch.tensor(rows))

    def launch(self, table: Tensor) -> None:
        """Take a step with the tensors whose addresses are in the table."""
        group = self._group
        beta1, beta2 = group["betas"]
        chunks = len(self._partials)
        where = table, self._chunk_tensors, self._chunk_starts, self._partials
        norm_program[(chunks,)](*where, len(self._parameters), CHUNK=_CHUNK, num_warps=4)
        update_program[(chunks,)](
            *where,
            self._rates,
            self._decays,
            len(self._parameters),
            chunks,
            float(self._clip),
            float(group["eps"]),
            beta2,
            1 - beta1,
            1 - beta2,
            math.log(beta1) if beta1 else -math.inf,
            math.log(beta2) if beta2 else -math.inf,
            DECOUPLED=self._is_decoupled,
            CLIPPED=self._clip > 0,
            CHUNKS=power_of_two(chunks),
            CHUNK=_CHUNK,
            num_warps=4,
        )

    def forget_gradients(self) -> None:
        """Drop the gradients, so that the next backward pass allocates new ones."""
        for p, half in zip(self._parameters, self._halves, strict=True):
            p.grad = None
            if half is not None:
                half.grad = None


@program()
@no_type_check
def _gradient(table, tensor, num_tensors, offsets, within):
    """Load a part of a tensor's gradient in single precision; zeros where it has none."""
    address = tl.load(table + num_tensors + tensor)
    is_half = tl.load(table + 7 * num_tensors + tensor)
    there = within & (address != 0)
    single = address.to(tl.pointer_type(tl.float32), bitcast=True)
    half = address.to(tl.pointer_type(tl.bfloat16), bitcast=True)
    found = tl.load(single + offsets, mask=there & (is_half == 0), other=0.0)
    return found + tl.load(half + offsets, mask=there & (is_half != 0), other=0.0).to(tl.float32)


@program()
@no_type_check
def norm_program(table, chunk_tensors, chunk_starts, partials, num_tensors, CHUNK: tl.constexpr):
    """Sum the squares of a chunk of gradients; a tensor's first chunk counts its step."""
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


@program()
@no_type_check
def update_program(
    table,
    chunk_tensors,
    chunk_starts,
    partials,
    rates,
    decays,
    num_tensors,
    num_chunks,
    clip,
    eps,
    beta2,
    rest1,
    rest2,
    log_beta1,
    log_beta2,
    DECOUPLED: tl.constexpr,
    CLIPPED: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    r"""Update a chunk of weights, with all gradients scaled to a norm of `clip` at most.

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
    group = tl.load(table + 8 * num_tensors + tensor)
    lr = tl.load(rates + group)
    weight_decay = tl.load(decays + group)
    if DECOUPLED:
        p = p - lr * weight_decay * p
    else:
        g = g + weight_decay * p
    m = tl.load(firsts, mask=within, other=0.0)
    v = tl.load(seconds, mask=within, other=0.0)
    m = m + rest1 * (g - m)
    v = beta2 * v + rest2 * g * g
    # In double precision: in the first steps they are differences of nearly equal numbers.
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
