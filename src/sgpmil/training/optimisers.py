r"""The optimisers by name, and Lookahead around RAdam.

Lookahead (Zhang et al., 2019) keeps slow weights $\phi$, at first those of the model. The inner
optimiser, here RAdam (Liu et al., 2020), moves the model's weights $\theta$; after every $k$ of
its steps

$$ \phi \leftarrow \phi + \alpha\,(\theta - \phi), \qquad \theta \leftarrow \phi. $$
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from sgpmil.training.settings import TrainingSettings

__all__ = ["LookaheadRAdam", "build_optimiser"]


def build_optimiser(settings: TrainingSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of a model's parameters.

    Args:
        settings: How the model is trained.
        model: The model.
    """
    rate, weight_decay, betas = settings.learning_rate, settings.weight_decay, settings.betas
    fused = True  # one pass over the weights
    match settings.optimiser:
        case "adamw":
            return torch.optim.AdamW(
                model.parameters(), lr=rate, betas=betas, weight_decay=weight_decay, fused=fused
            )
        case "adam":
            return torch.optim.Adam(
                model.parameters(), lr=rate, betas=betas, weight_decay=weight_decay, fused=fused
            )
        case "sgd":
            return torch.optim.SGD(
                model.parameters(),
                lr=rate,
                momentum=settings.momentum,
                weight_decay=weight_decay,
                fused=fused,
            )
        case "lookahead-radam":
            parameters = list(model.parameters())
            parts = [
                ([p for p in parameters if p.ndim > 1], weight_decay),
                ([p for p in parameters if p.ndim <= 1], 0.0),
            ]
            groups = [{"params": part, "weight_decay": decay} for part, decay in parts if part]
            return LookaheadRAdam(groups, lr=rate, betas=betas)


class LookaheadRAdam(torch.optim.RAdam):
    r"""RAdam with decoupled weight decay, and Lookahead around it.

    Args:
        params: Parameters, or groups of them.
        lr: Learning rate of RAdam.
        betas: Decay of its two moments.
        weight_decay: Weight decay of groups that do not say their own.
        every: Steps $k$ between two moves of the slow weights.
        share: How far $\alpha$ they move.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        *,
        weight_decay: float = 0.0,
        every: int = 5,
        share: float = 0.5,
    ) -> None:
        super().__init__(
            params, lr=lr, betas=betas, weight_decay=weight_decay, decoupled_weight_decay=True
        )
        self.every = every
        self.share = share

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step with RAdam, and after every k-th step with the slow weights."""
        everything = [p for group in self.param_groups for p in group["params"]]
        # The weights before the first step are the first slow weights. They may join the state
        # only after it: RAdam takes a parameter with any state for one it has begun with.
        first = {p: p.detach().clone() for p in everything if not self.state.get(p)}
        result = super().step(closure)
        with torch.no_grad():
            for p in everything:
                state = self.state.get(p)
                if not state:
                    continue  # it had no gradient yet
                if p in first:
                    state["slow"] = first[p]
                if int(state["step"]) % self.every == 0:
                    state["slow"].lerp_(p, self.share)
                    p.copy_(state["slow"])
        return result
