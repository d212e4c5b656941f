"""How far the sampling schemes are from the exact joint posterior, on real bags.

    python benchmarks/joint_distance.py --data DATA/colon

Trains the default model on the first fold. For each test bag: the distance of each scheme's
covariance of f from the exact one, and the standard deviation of the bag's log-odds that each
scheme gives, relative to that of the exact joint samples. Also how that standard deviation
changes when every instance occurs sixteen times, which tells the model nothing new.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from sgpmil.bags import BagBatch
from sgpmil.bags.segments import Segments
from sgpmil.experiments.model_study import colon_bags
from sgpmil.gp import SAMPLING_SCHEMES, FreshNoise, draw
from sgpmil.models import SGPMIL
from sgpmil.models.pooling import bag_softmax, pool
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings

NUM_SAMPLES = 1000


@torch.no_grad()
def main() -> None:
    """Train, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=TrainingSettings().epochs)
    options = parser.parse_args()
    bags, folds = colon_bags(options.data)
    fold = folds[0]
    with torch.enable_grad():
        model = fit(bags.subset(fold.train), training=TrainingSettings(epochs=options.epochs))
    if not isinstance(model, SGPMIL):
        raise TypeError(type(model))
    model.double()
    torch.manual_seed(0)
    distances: dict[str, list[float]] = {name: [] for name in SAMPLING_SCHEMES}
    spreads: dict[str, list[float]] = {name: [] for name in SAMPLING_SCHEMES}
    copied: dict[str, list[float]] = {name: [] for name in SAMPLING_SCHEMES}
    for bag in bags.subset(fold.test):
        if bag.num_instances < 2:
            continue
        batch = BagBatch.pack([bag]).to(dtype=torch.float64)
        embeddings = model.embed(batch.features)
        inputs = model.gp_inputs(batch.features)
        posterior = model.gp.posterior(inputs)
        exact = model.gp.joint_covariance(inputs)
        sd = posterior.variance.sqrt()
        SB = posterior.whitened_factor.T @ posterior.projection
        covariances = {
            "independent": posterior.variance.diag(),
            "shared": sd[:, None] * sd,
            "inducing": SB.T @ SB + posterior.residual_variance.diag(),
            "full": exact,
        }
        for name in SAMPLING_SCHEMES:
            gap = torch.linalg.norm(covariances[name] - exact) / torch.linalg.norm(exact)
            distances[name].append(float(gap))
            spread = _spread(model, embeddings, inputs, name)
            spreads[name].append(spread)
            if name != "full":  # too large for the exact joint covariance
                again = _spread(model, embeddings.repeat(16, 1), inputs.repeat(16, 1), name)
                copied[name].append(again / max(spread, 1e-12))
    print(
        "| scheme | ‖cov − exact‖ / ‖exact‖, median (max) | sd of log-odds / exact, median "
        "| sd with 16 copies / sd, median |"
    )
    print("|---|---|---|---|")
    for name in SAMPLING_SCHEMES:
        ratio = np.median(np.array(spreads[name]) / np.array(spreads["full"]))
        print(
            f"| {name} | {np.median(distances[name]):.3f} ({max(distances[name]):.3f}) "
            f"| {ratio:.2f} | {np.median(copied[name]) if copied[name] else 1:.2f} |"
        )


def _spread(model: SGPMIL, embeddings: torch.Tensor, inputs: torch.Tensor, scheme: str) -> float:
    """Return the standard deviation of a bag's log-odds over samples."""
    segments = Segments.of(torch.tensor([0, len(inputs)]))
    f = draw(
        model.gp,
        inputs,
        segments,
        scheme=scheme,
        num_samples=NUM_SAMPLES,
        noise=FreshNoise(),
    )
    attention = bag_softmax(f, segments)
    logits = model.classifier(pool(attention, embeddings, segments))
    return float((logits[0, :, 1] - logits[0, :, 0]).std())


if __name__ == "__main__":
    main()
