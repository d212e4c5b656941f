r"""Largest gradients found of a model: a check of its Lipschitz bounds from below.

The Lipschitz constant of a function is the supremum of the spectral norm of its Jacobian, so each
norm found at some input is at most the bound of `sgpmil.evaluation.lipschitz`. `largest_gradients`
looks for a large one by ascent: from random instances it steps along the direction that the output
reacts to most, and along random ones, and keeps what is larger.

The *slide* is the whole model: the class logits of a bag, by posterior mean, as a function of one
of its instances. No product of layers bounds it, since pooling and posterior have slopes of their
own.
"""

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import CheckpointError
from sgpmil.models.abmil import ABMIL
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.shapes import Float

PathFunction = Callable[[Tensor], Tensor]
"""Outputs of a path, a row an instance of standardised features."""

SLIDE = "slide"
"""Name of the whole model."""

_REACHES = (0.03, 0.3, 1.0, 3.0)
"""Lengths of the steps of the ascent, over the root of the number of features."""


def path_functions(model: MILModel) -> dict[str, PathFunction]:
    """Return the function of each path of `lipschitz_paths` that is one of an instance.

    Raises:
        CheckpointError: The model has no such paths.
    """
    if isinstance(model, SGPMIL):
        return _sgpmil_functions(model)
    if isinstance(model, ABMIL):
        return _abmil_functions(model)
    raise CheckpointError(
        f"Expected a model whose paths are known (sgpmil, agp, abmil), but got '{model.name}'."
    )


def _sgpmil_functions(model: SGPMIL) -> dict[str, PathFunction]:
    G = model.settings.gp_dim

    def inputs(x: Tensor) -> Tensor:
        return model.gp_inputs(x * model.standardise.scale + model.standardise.mean)

    def mean(x: Tensor) -> Tensor:
        return model.gp.mean(inputs(x))[:, None]

    found: dict[str, PathFunction] = {
        "classifier": lambda x: model.classifier(model.mlp(x)),
        "attention": lambda x: inputs(x)[:, :G],
    }
    if model.preserved is not None:
        found["preserved components"] = lambda x: inputs(x)[:, G:]
    if model.settings.mean == "linear":
        found["attention mean"] = mean
    return found


def _abmil_functions(model: ABMIL) -> dict[str, PathFunction]:
    def attention(x: Tensor) -> Tensor:
        embeddings = model.mlp(x)
        hidden = model.value(embeddings).tanh()
        if model.gate is not None:
            hidden = hidden * model.gate(embeddings).sigmoid()
        return model.attention(hidden)

    return {"classifier": lambda x: model.classifier(model.mlp(x)), "attention": attention}


def largest_gradients(
    model: MILModel, *, num_starts: int = 32, num_rounds: int = 20, seed: int = 0
) -> dict[str, float]:
    """Find a large gradient norm of each path of a model, in standardised features.

    Args:
        model: A trained model.
        num_starts: Number of random instances to start from.
        num_rounds: Number of steps of each ascent.
        seed: Seed of the instances and of the steps.

    Returns:
        The largest spectral norm of the Jacobian that was found, by the name of the path.

    Raises:
        CheckpointError: The model has no such paths.
    """
    model = copy.deepcopy(model).cpu().double().eval()
    found = {}
    for number, (name, function) in enumerate(path_functions(model).items()):
        generator = torch.Generator().manual_seed(seed + number)
        shape = (num_starts, model.in_dim)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        # Instances near and far from the mean: activations saturate far from it.
        x *= torch.logspace(-1, 0.5, num_starts, dtype=torch.float64)[:, None]
        norms, directions = jacobian_norms(function, x)
        for _ in range(num_rounds):
            for reach in _REACHES:
                noise = torch.randn(shape, generator=generator, dtype=torch.float64)
                random = noise / noise.norm(dim=1, keepdim=True)
                signs = torch.randint(0, 2, (num_starts, 1), generator=generator) * 2 - 1
                step = reach * model.in_dim**0.5 * (signs * directions + random)
                moved, towards = jacobian_norms(function, x + step)
                better = (moved > norms)[:, None]
                x = torch.where(better, x + step, x)
                directions = torch.where(better, towards, directions)
                norms = torch.maximum(norms, moved)
        found[name] = float(norms.max())
    return found


def jacobian_norms(
    function: PathFunction, x: Float[Tensor, "B D"]
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B D"]]:
    """Compute the spectral norm of the Jacobian at each row, and the input direction it is of."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        outputs = function(x)
        count = outputs.shape[1]
        seeds = torch.eye(count, dtype=x.dtype)[:, None, :].expand(count, len(x), count)
        (slopes,) = torch.autograd.grad(outputs, x, seeds, is_grads_batched=True)
    _, values, directions = torch.linalg.svd(slopes.transpose(0, 1), full_matrices=False)
    return values[:, 0].detach(), directions[:, 0].detach()


def slide_gradient(model: MILModel, bags: BagDataset) -> float:
    """Find the largest gradient norm of the class logits of bags in one of their instances.

    The gradient is in standardised features. Logits are means over the samples of the posterior.
    """
    model = copy.deepcopy(model).cpu().eval()
    largest = 0.0
    for bag in bags:
        features = bag.features.float().clone().requires_grad_()
        with torch.enable_grad():
            output = model(BagBatch.pack([Bag(features, bag.slide_id, label=bag.label)]))
            logits = output.logits.mean(dim=1)[0]
            slopes = [
                torch.autograd.grad(value, features, retain_graph=True)[0] for value in logits
            ]
        # Of standardised features: a change of one is that of the raw one over the scale.
        jacobians = torch.stack(slopes, dim=1) * model.standardise.scale
        norms = torch.linalg.matrix_norm(jacobians.double(), ord=2)
        largest = max(largest, float(norms.max()))
    return largest
