"""What a training is at between two steps, to go back to."""

import torch
from torch import Tensor

from sgpmil.training.steps import OptimiserSteps

__all__ = ["TrainingState"]


class TrainingState:
    """Weights and the optimiser's state, as they were.

    Args:
        steps: The model and its optimiser.
    """

    def __init__(self, steps: OptimiserSteps) -> None:
        self.steps = steps
        tensors = self._tensors()
        with torch.no_grad():
            copies = [torch.empty_like(tensor) for tensor in tensors]
            torch._foreach_copy_(copies, tensors)  # all at once: there are dozens of small ones
        self._values = list(zip(tensors, copies, strict=True))

    def restore(self) -> None:
        """Put everything back; state that did not exist becomes zero, as it begins."""
        with torch.no_grad():
            known = {id(tensor) for tensor, _ in self._values}
            for tensor in self._tensors():
                if id(tensor) not in known:
                    tensor.zero_()
            for tensor, value in self._values:
                tensor.copy_(value)

    def _tensors(self) -> list[Tensor]:
        model, optimiser = self.steps.model, self.steps.optimiser
        state = [v for part in optimiser.state.values() for v in part.values()]
        return [*model.parameters(), *model.buffers(), *(v for v in state if isinstance(v, Tensor))]
