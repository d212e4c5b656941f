"""Weights of the dense layers in half precision, which the optimiser keeps up to date.

Under autocast every step casts the weights and casts their gradients back, two small kernels a
tensor. In recorded steps the layers use copies, whose gradients are what autocast's would be before
they are cast.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sgpmil.models.contract import MILModel
from sgpmil.models.embedding import InstanceLinear

__all__ = ["HalfWeights"]


class HalfWeights:
    """Copies of the parameters of a model's linear layers of single instances.

    Args:
        model: The model whose `InstanceLinear` layers are copied; None for none.
    """

    def __init__(self, model: MILModel | None) -> None:
        modules = () if model is None else model.modules()
        self._layers = [module for module in modules if isinstance(module, InstanceLinear)]
        self.by_parameter: dict[Tensor, Tensor] = {
            p: p.detach().bfloat16().requires_grad_(p.requires_grad)
            for layer in self._layers
            for p in layer.parameters()
        }

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the parameters again, after others have changed them."""
        for parameter, half in self.by_parameter.items():
            half.copy_(parameter)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let the layers compute with the copies while the block runs."""
        before = [dict(layer._parameters) for layer in self._layers]
        for layer in self._layers:
            for name, parameter in layer._parameters.items():
                if parameter is not None:
                    layer._parameters[name] = self.by_parameter[parameter]  # type: ignore[assignment]
        try:
            yield
        finally:
            for layer, parameters in zip(self._layers, before, strict=True):
                layer._parameters.update(parameters)
