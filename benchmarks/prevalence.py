"""Rare positives: probabilities and decisions with and without the prior that sampling removes.

    python benchmarks/prevalence.py --data DATA/mnist --seeds 3

A bag holds about ten MNIST digits; a tenth of the bags have one or two nines. Each row is one model
and one prevalence that it answers for: ``balanced`` is the prior of the balanced sampler, as if
half of the bags were positive.
"""

import argparse
from pathlib import Path

import numpy as np

from sgpmil.bags import BagDataset
from sgpmil.evaluation import evaluate, predict
from sgpmil.experiments.mnist import MNIST_FILES, read_idx_images, read_idx_labels
from sgpmil.training.fit import fit

MODELS = {
    "sgpmil": {"hidden_dims": (128, 64)},
    "abmil": {"hidden_dims": (128, 64)},
}
"""Small models, for digits."""


def rare_bags(folder: Path, part: str, *, num_bags: int, share: float, seed: int) -> BagDataset:
    """Draw bags of 8 to 12 digits, a share of them with one or two nines."""
    images, digits = folder / MNIST_FILES[part][0], folder / MNIST_FILES[part][1]
    pixels, labels = read_idx_images(images), read_idx_labels(digits)
    generator = np.random.default_rng([seed, part == "test"])
    nines, others = np.flatnonzero(labels == 9), np.flatnonzero(labels != 9)
    positives = np.zeros(num_bags, dtype=int)
    positives[: round(share * num_bags)] = 1
    classes, bags = generator.permutation(positives), []
    for positive in classes:
        size = int(generator.integers(8, 13))
        count = int(generator.integers(1, 3)) if positive else 0
        rows = [*generator.choice(nines, count), *generator.choice(others, size - count)]
        bags.append((pixels[rows].reshape(size, -1) / 255).astype(np.float32))
    return BagDataset.from_arrays(bags, classes.tolist(), class_names=("no 9", "has a 9"))


def main() -> None:
    """Train each model once a seed and print the mean of each metric."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--bags", type=int, default=600)
    parser.add_argument("--test-bags", type=int, default=2000)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(
        "model | prevalence | mean p | ACE | NLL | bag AUC | balanced accuracy | accuracy | called"
    )
    for name, settings in MODELS.items():
        found: dict[str, list[list[float]]] = {"balanced": [], "training": []}
        for seed in range(options.seeds):
            drawn = {"share": options.share, "seed": seed}
            train = rare_bags(options.data, "train", num_bags=options.bags, **drawn)
            test = rare_bags(options.data, "test", num_bags=options.test_bags, **drawn)
            training = {"seed": seed, "bags_per_step": 4}
            model = fit(train, model=name, model_settings=settings, training=training)
            for prevalence, rows in found.items():
                table = predict(model, test, with_instances=False, prevalence=prevalence)
                one = evaluate(table, "test").slide
                called = float(table.probs.argmax(1).mean())
                probs = (table.probs[:, 1].mean(), one.ace, one.nll, one.auc)
                rows.append([*probs, one.balanced_accuracy, one.accuracy, called])
        for prevalence, rows in found.items():
            print(name, prevalence, *(f"{v:.3f}" for v in np.mean(rows, 0)), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
