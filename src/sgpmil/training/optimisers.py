r"""Optimisers by name, and Lookahead around RAdam.

Lookahead (Zhang et al., 2019) keeps slow weights $\phi$, at first those of the model. The inner
optimiser, here RAdam (Liu et al., 2020), moves the model's weights $\theta$; after every $k$ of
its steps

$$ \phi \leftarrow \phi + \alpha\,(\theta - \phi), \qquad \theta \leftarrow \phi. $$
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sgpmil.models.contract import MILModel
from sgpmil.training.settings import TrainingSettings

_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
_STATE = {
    "AdamW": _MOMENTS,
    "Adam": _MOMENTS,
    "LookaheadRAdam": _MOMENTS | {"slow"},
    "SGD": {"momentum_buffer"},
}
"""What each optimiser remembers of a parameter."""


def build_optimiser(settings: TrainingSettings, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of a model's parameters.

    Parameters with the same `MILModel.rate_factor` are a group, which keeps it as ``rate_factor``.
    Those with a rate of their own describe distributions, which a KL divergence holds near their
    prior; weight decay would move them elsewhere, and leaves them alone.
    """
    rate, weight_decay, betas = settings.learning_rate, settings.weight_decay, settings.betas
    fused = True  # one pass over the weights
    by_factor: dict[float, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        factor = model.rate_factor(name) if isinstance(model, MILModel) else 1.0
        by_factor.setdefault(factor, []).append(parameter)
    groups: list[dict[str, Any]] = [
        {
            "params": part,
            "rate_factor": factor,
            "lr": rate * factor,
            "weight_decay": weight_decay if factor == 1.0 else 0.0,
        }
        for factor, part in sorted(by_factor.items())
    ]
    match settings.optimiser:
        case "adamw":
            return torch.optim.AdamW(
                groups, lr=rate, betas=betas, weight_decay=weight_decay, fused=fused
            )
        case "adam":
            return torch.optim.Adam(
                groups, lr=rate, betas=betas, weight_decay=weight_decay, fused=fused
            )
        case "sgd":
            return torch.optim.SGD(
                groups,
                lr=rate,
                momentum=settings.momentum,
                weight_decay=weight_decay,
                fused=fused,
            )
        case "lookahead-radam":
            parts = [
                ({**group, "params": [p for p in group["params"] if (p.ndim > 1) == is_matrix]})
                | {"weight_decay": group["weight_decay"] if is_matrix else 0.0}
                for group in groups
                for is_matrix in (True, False)
            ]
            return LookaheadRAdam([part for part in parts if part["params"]], lr=rate, betas=betas)


def load_optimiser(optimiser: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put the moments of a checkpoint into an optimiser; its rates and decays stay its own.

    Torch takes part of a state, or one of other shapes, and fails or forgets at the next step.

    Raises:
        ValueError: Part of the state is missing, or it is of other parameters.
    """
    own, given = optimiser.state_dict()["param_groups"], state["param_groups"]
    if [group["params"] for group in own] != [group["params"] for group in given]:
        raise ValueError("the optimiser's parameters are others")
    optimiser.load_state_dict({"state": state["state"], "param_groups": own})
    expected = _STATE[type(optimiser).__name__]
    parts = {parameter: part for parameter, part in optimiser.state.items() if part}
    is_stateless = isinstance(optimiser, torch.optim.SGD)  # without momentum
    if any(set(part) != expected for part in parts.values()) or not (parts or is_stateless):
        raise ValueError("the state of the optimiser is incomplete")
    for parameter, part in parts.items():
        for name, value in part.items():
            shape = () if name == "step" else parameter.shape
            if not isinstance(value, Tensor) or value.shape != shape:
                raise ValueError(f"the optimiser's {name} is of other parameters")


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float, device: torch.device) -> None:
    """Set the learning rate of all parameters, each times the factor of its group."""
    for group in optimiser.param_groups:
        own = rate * group.get("rate_factor", 1.0)
        if isinstance(group["lr"], Tensor):  # recorded steps read it there
            group["lr"].fill_(own)
        elif device.type == "cuda":  # rounded as in that tensor, so that plain steps equal recorded
            group["lr"] = float(torch.tensor(own))
        else:
            group["lr"] = own


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
        # The weights before the first step are the first slow weights. They join the state only
        # after it: RAdam skips its initialisation for a parameter that has any state.
        first = {p: p.detach().clone() for p in everything if not self._has_begun(p)}
        result = super().step(closure)
        moved = [p for p in everything if self._has_begun(p)]  # the others had no gradient yet
        for p in moved:
            if p in first:
                self.state[p]["slow"] = first[p]
        due = [p for p in moved if int(self.state[p]["step"]) % self.every == 0]
        if due:
            with torch.no_grad():
                slow = [self.state[p]["slow"] for p in due]
                torch._foreach_lerp_(slow, due, self.share)
                torch._foreach_copy_(due, slow)
        return result

    def _has_begun(self, parameter: Tensor) -> bool:
        """Return whether there was a step; before the first, the state is empty or zero."""
        state = self.state.get(parameter) or {"step": 0}
        return int(state["step"]) > 0
