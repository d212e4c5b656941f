"""How well does novelty find instances of unseen classes, and slides that hold some?

    python benchmarks/novelty.py --mnist MNIST --seeds 10 11 12 13 14

Bags of MNIST digits as raw pixels. Training bags lack some digits; in new bags, three instances of
ten are of those digits. A row per split of the digits and size of bags: the AUROC of novelty for
unseen instances, the share of usual instances above novelty 1, the share of usual bags with
p <= .05 (false alarms) and of bags with unseen instances with p <= .05 (found). No model is
trained: novelty depends on the features alone.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from sgpmil.bags import Bag, BagBatch
from sgpmil.experiments.mnist import MNIST_FILES, read_idx_images, read_idx_labels
from sgpmil.models.novelty import Novelty

UNSEEN = ((5, 6, 7, 8), (0, 3, 6, 9), (1, 2, 3, 5))
SHAPES = ((28, 200, 10), (14, 200, 10), (14, 100, 60))
"""Side in pixels, number of training bags, instances of a bag."""


def main() -> None:
    """Print a row per split and shape, averaged over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--num-test", type=int, default=300)
    options = parser.parse_args()
    print("unseen digits  side  bag  AUROC  above 1  false alarms  found")
    for unseen in UNSEEN:
        for side, num_train, size in SHAPES:
            parts = {part: _read(options.mnist, part, side) for part in MNIST_FILES}
            rows = [
                _measure(parts, unseen, num_train, size, options.num_test, seed)
                for seed in options.seeds
            ]
            auc, above, alarms, found = np.mean(rows, axis=0)
            digits = "".join(map(str, unseen))
            print(
                f"{digits:13}  {side:4}  {size:3}  {auc:.3f}  {above:7.3f}  {alarms:12.3f}  "
                f"{found:.3f}",
                flush=True,
            )


def _read(folder: Path, part: str, side: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = MNIST_FILES[part]
    pixels = read_idx_images(folder / images).astype(np.float32) / 255
    step = 28 // side
    pixels = pixels.reshape(-1, side, step, side, step).mean((2, 4)).reshape(len(pixels), -1)
    return pixels, read_idx_labels(folder / labels)


def _measure(
    parts: dict[str, tuple[np.ndarray, np.ndarray]],
    unseen: tuple[int, ...],
    num_train: int,
    size: int,
    num_test: int,
    seed: int,
) -> tuple[float, ...]:
    rng = np.random.default_rng(seed)

    def draw(part: str, sizes: np.ndarray, of_unseen: int) -> BagBatch:
        pixels, digits = parts[part]
        new = np.isin(digits, unseen)
        bags = []
        for number, count in enumerate(sizes):
            rows = rng.choice(np.flatnonzero(~new), count - of_unseen)
            rows = np.r_[rows, rng.choice(np.flatnonzero(new), of_unseen)]
            bags.append(Bag(torch.from_numpy(pixels[rows]), f"bag-{number}"))
        return BagBatch.pack(bags)

    novelty = Novelty()
    novelty.fit(draw("train", rng.poisson(size, num_train).clip(1), 0), seed=seed)
    usual = draw("test", rng.poisson(size, num_test).clip(1), 0)
    mixed = draw("test", np.full(num_test, size), round(0.3 * size))
    is_new = np.tile(np.arange(size) >= size - round(0.3 * size), num_test)
    scores = {name: novelty(batch.features) for name, batch in (("u", usual), ("m", mixed))}
    p_values = [
        np.array([slide.p_value for slide in novelty.of_slides(scores[name], batch.offsets)])
        for name, batch in (("u", usual), ("m", mixed))
    ]
    return (
        float(roc_auc_score(is_new, scores["m"].numpy())),
        float((scores["u"] > 1).float().mean()),
        float((p_values[0] <= 0.05).mean()),
        float((p_values[1] <= 0.05).mean()),
    )


if __name__ == "__main__":
    main()
