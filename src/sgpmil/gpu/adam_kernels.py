"""A step of Adam or AdamW for all parameters in two launches, gradient clipping included.

torch's own takes a dozen, and spreads the weights over a few dozen processors of a GPU that has
more than a hundred: for the small models of this package it is the longest part of a step.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["AdamStep"]

_CHUNK = 2048
"""Weights of a program."""


class AdamStep:
    """The step of an optimiser whose state is there already.

    Args:
        optimiser: Adam or AdamW with one group of parameters; its state is read and written, and
            its learning rate is a tensor on the device.
        clip: Largest norm of all gradients together; 0 leaves them alone.
        halves: Copies of parameters in half precision, which take gradients in their stead and
            are kept equal.
    """

    def __init__(
        self,
        optimiser: torch.optim.Adam | torch.optim.AdamW,
        clip: float,
        halves: Mapping[Tensor, Tensor],
    ) -> None:
        (self._group,) = optimiser.param_groups
        # One that never had a gradient has no state, and takes no step.
        self._parameters = [p for p in self._group["params"] if optimiser.state.get(p)]
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
        ]
        device = self._parameters[0].device
        starts = [range(0, p.numel(), _CHUNK) for p in self._parameters]
        tensors = [i for i, parts in enumerate(starts) for _ in parts]
        self._chunk_tensors = torch.tensor(tensors, device=device)
        self._chunk_starts = torch.tensor([s for parts in starts for s in parts], device=device)
        self._partials = torch.empty(len(tensors), device=device)

    def table(self) -> Tensor:
        """Make a table of addresses, which `launch` is given and `fill` completes."""
        return torch.zeros(
            8, len(self._parameters), dtype=torch.int64, device=self._partials.device
        )

    def fill(self, table: Tensor) -> None:
        """Write the addresses of the gradients that are there now, and all others."""
        gradients = self._gradients()
        weights, *others, sizes = self._fixed
        rows = [
            weights,
            [0 if g is None else g.data_ptr() for g in gradients],
            *others,
            sizes,
            [int(g is not None and g.dtype == torch.bfloat16) for g in gradients],
        ]
        table.copy_(torch.tensor(rows))

    def launch(self, table: Tensor) -> None:
        """Take a step."""
        from sgpmil.gpu.adam_programs import norm_program, update_program

        group = self._group
        beta1, beta2 = group["betas"]
        chunks = len(self._partials)
        where = table, self._chunk_tensors, self._chunk_starts, self._partials
        norm_program[(chunks,)](*where, len(self._parameters), CHUNK=_CHUNK, num_warps=4)
        update_program[(chunks,)](
            *where,
            group["lr"],
            len(self._parameters),
            chunks,
            float(self._clip),
            float(group["weight_decay"]),
            float(group["eps"]),
            beta2,
            1 - beta1,
            1 - beta2,
            math.log(beta1) if beta1 else -math.inf,
            math.log(beta2) if beta2 else -math.inf,
            DECOUPLED=self._is_decoupled,
            CLIPPED=self._clip > 0,
            CHUNKS=1 << (chunks - 1).bit_length(),
            CHUNK=_CHUNK,
            num_warps=4,
        )

    def forget_gradients(self) -> None:
        """Let the next backward pass make gradients of its own."""
        for p, half in zip(self._parameters, self._halves, strict=True):
            p.grad = None
            if half is not None:
                half.grad = None

    def _gradients(self) -> Sequence[Tensor | None]:
        return [
            p.grad if half is None else half.grad
            for p, half in zip(self._parameters, self._halves, strict=True)
        ]
