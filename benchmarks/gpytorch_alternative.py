"""SGPMIL on a CPU against its dense layers alone and against GPyTorch's own strategy.

    OMP_NUM_THREADS=2 python benchmarks/gpytorch_alternative.py

Three ways through the same bags, taken in turn in one process, a bag a step:

- *dense*: forward and backward of the embedding and the projection, nothing else;
- *sgpmil*: an epoch of `sgpmil.fit`, the optimiser and Lightning included;
- *GPyTorch*: the same layers around `ApproximateGP` and `VariationalStrategy`, as its
  documentation writes a model, with AdamW: once with the marginals of f alone (independent noise),
  once with joint samples (`rsample`), as our default and the paper's model with full covariance.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import gpytorch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgpmil import fit
from sgpmil.bags import BagDataset
from sgpmil.experiments.bench import bag_sizes, random_dataset
from sgpmil.models import resolve_settings
from sgpmil.models.embedding import relu_layers

DESIGN = {"preset": "points"}  # learned inducing points, as GPyTorch has them
SETTINGS = resolve_settings("sgpmil", DESIGN)


class AttentionProcess(gpytorch.models.ApproximateGP):
    """The process of the attention's logits, as GPyTorch's documentation writes one."""

    def __init__(self) -> None:
        points = torch.rand(SETTINGS.num_inducing, SETTINGS.gp_dim)
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
        super().__init__(
            gpytorch.variational.VariationalStrategy(
                self, points, distribution, learn_inducing_locations=True
            )
        )
        self.mean_module = gpytorch.means.LinearMean(SETTINGS.gp_dim)
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        """Give the prior at the inputs."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class Alternative(nn.Module):
    """SGPMIL written with it."""

    def __init__(self, in_dim: int, joint: bool) -> None:
        super().__init__()
        self.joint = joint
        self.mlp = relu_layers((in_dim, *SETTINGS.hidden_dims))
        self.projection = nn.Linear(SETTINGS.hidden_dims[-1], SETTINGS.gp_dim)
        self.gp = AttentionProcess()
        self.classifier = nn.Linear(SETTINGS.hidden_dims[-1], 2)

    def loss(self, features: Tensor, label: Tensor, num_bags: int) -> Tensor:
        """Negative ELBO of a bag."""
        h = self.mlp(features)
        f = self.gp(self.projection(h).sigmoid())
        size = torch.Size([SETTINGS.num_samples])
        noise = torch.randn(*size, len(h))
        samples = f.rsample(size) if self.joint else f.mean + f.stddev * noise
        logits = self.classifier(samples.softmax(-1) @ h)
        nll = F.cross_entropy(logits, label.expand(len(logits)))
        return nll + self.gp.variational_strategy.kl_divergence() / num_bags


def dense_epoch(bags: BagDataset) -> Callable[[], None]:
    """Pass every bag forward and back through the dense layers."""
    layers = relu_layers((bags.feature_dim, *SETTINGS.hidden_dims))
    projection = nn.Linear(SETTINGS.hidden_dims[-1], SETTINGS.gp_dim)

    def epoch() -> None:
        for bag in bags:
            projection(layers(bag.features)).sum().backward()

    return epoch


def gpytorch_epoch(bags: BagDataset, joint: bool) -> Callable[[], None]:
    """Train the alternative for an epoch."""
    model = Alternative(bags.feature_dim, joint).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-4)

    def epoch() -> None:
        for bag in bags:
            optimiser.zero_grad()
            model.loss(bag.features, torch.tensor([bag.label]), len(bags)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()

    return epoch


def sgpmil_seconds(bags: BagDataset, epochs: int) -> list[float]:
    """Train with the package and give the seconds of each epoch but the first."""
    ends: list[float] = []
    training = {
        "epochs": epochs + 1,
        "bags_per_step": 1,
        "balanced_sampling": False,
        "device": "cpu",
    }
    fit(
        bags,
        model_settings=DESIGN,
        training=training,
        on_epoch=lambda _: ends.append(time.perf_counter()),
    )
    return [after - before for before, after in pairwise(ends)]


def seconds(epoch: Callable[[], None]) -> float:
    """Time an epoch."""
    start = time.perf_counter()
    epoch()
    return time.perf_counter() - start


def main() -> None:
    """Time all, several times in turn, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    bags = random_dataset(bag_sizes(options.bags, seed=0), in_dim=1024, seed=0)
    epochs = {
        "dense layers alone": dense_epoch(bags),
        "GPyTorch, marginals": gpytorch_epoch(bags, joint=False),
        "GPyTorch, joint samples": gpytorch_epoch(bags, joint=True),
    }
    found: dict[str, list[float]] = {name: [] for name in (*epochs, "sgpmil")}
    for name in ("dense layers alone", "GPyTorch, marginals"):
        epochs[name]()  # warm up
    for _ in range(options.rounds):
        for name, epoch in epochs.items():
            found[name].append(seconds(epoch))
        found["sgpmil"] += sgpmil_seconds(bags, 1)
    ours = median(found["sgpmil"])
    print(f"{sum(bags.num_instances):,} instances in {len(bags)} bags, {options.threads} threads")
    print("| | s/epoch | sgpmil's share of it |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {median(values):.2f} | {ours / median(values):.2f} |")


if __name__ == "__main__":
    main()
