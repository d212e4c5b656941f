"""How well does novelty find instances unlike training, and slides that hold some, at what cost?

    python benchmarks/novelty.py --data DATA --seeds 10 11 12                  # divisions of digits
    python benchmarks/novelty.py --data DATA --seeds 10 11 12 --sets phantoms  # sets of the study
    python benchmarks/novelty.py --cost

A row per set: the AUROC of novelty for unseen instances against those of usual bags, the share of
usual instances above novelty 1, the share of usual bags with p <= .05 (false alarms), and of bags
with unseen instances with p <= .05 (found). No model is trained: novelty depends on the features
alone. ``--cost`` compares the time of prediction by SGPMIL with novelty and without, on one core.
"""

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from sgpmil.bags import Bag, BagBatch, BagDataset
from sgpmil.evaluation import predict
from sgpmil.experiments.uncertainty_sets import (
    DigitDesign,
    Part,
    UncertaintySet,
    digit_set,
    uncertainty_set,
)
from sgpmil.models import build_model
from sgpmil.models.novelty import Novelty

UNSEEN = ((5, 6, 7, 8), (0, 3, 6, 9), (1, 2, 3, 5))
SHAPES = ((28, 200, (8, 12)), (14, 200, (8, 12)), (14, 100, (60, 60)))
"""Side in pixels, number of training bags, smallest and largest bag."""
MOST_INSTANCES = 50_000
"""Training instances that novelty is fitted to, as many as training takes."""


def main() -> None:
    """Print a row per set and shift, averaged over seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="holds mnist/")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[10, 11, 12])
    parser.add_argument("--sets", nargs="+", default=[], help="names of the uncertainty study")
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args()
    if options.cost:
        _print_cost()
        return
    print(f"{'set':32}  AUROC  above 1  false alarms  found")
    if options.sets:
        for name in options.sets:
            place = {"data": options.data, "cache": options.cache}
            _print_rows([uncertainty_set(name, seed, **place) for seed in options.seeds])
        return
    for unseen, (side, count, sizes) in itertools.product(UNSEEN, SHAPES):
        *others, target = (digit for digit in range(10) if digit not in unseen)
        counts = (count, 10, 300, 300)
        design = DigitDesign(target, tuple(others), unseen, sizes, counts, halved=side == 14)
        name = f"{''.join(map(str, unseen))} unseen, {side} pixels, {sizes[0]}-{sizes[1]}"
        folder = options.data / "mnist"
        _print_rows([digit_set(name, seed, design, folder) for seed in options.seeds])


def _print_rows(sets: list[UncertaintySet]) -> None:
    found: dict[str, list[tuple[float, ...]]] = {}
    for data in sets:
        for shift, row in _measure(data):
            found.setdefault(shift, []).append(row)
    for shift, rows in found.items():
        auc, above, alarms, flagged = np.mean(rows, axis=0)
        name = f"{sets[0].name} {shift}"
        print(f"{name:32}  {auc:.3f}  {above:7.3f}  {alarms:12.3f}  {flagged:.3f}", flush=True)


def _measure(data: UncertaintySet) -> Iterator[tuple[str, tuple[float, ...]]]:
    novelty = Novelty()
    novelty.fit(_sample(data.train, data.seed), seed=data.seed)
    usual, alarms = _novelty(novelty, data.test)
    for shift, part in data.shifted.items():
        values, flagged = _novelty(novelty, part)
        new = values[np.concatenate(part.unseen)]
        is_new = np.arange(len(usual) + len(new)) >= len(usual)
        auc = roc_auc_score(is_new, np.concatenate([usual, new]))
        yield shift, (float(auc), float((usual > 1).mean()), alarms, flagged)


def _sample(bags: BagDataset, seed: int) -> BagBatch:
    share = min(1.0, MOST_INSTANCES / sum(bags.num_instances))
    rng = np.random.default_rng(seed)
    parts = []
    for bag in bags:
        rows = rng.permutation(bag.num_instances)[: max(1, round(share * bag.num_instances))]
        parts.append(Bag(bag.features[torch.from_numpy(rows)].float(), bag.slide_id))
    return BagBatch.pack(parts)


def _novelty(novelty: Novelty, part: Part) -> tuple[np.ndarray, float]:
    """Return the novelty of the instances, and the share of bags with p <= .05."""
    values = [novelty(bag.features.float()) for bag in part.bags]
    offsets = torch.tensor([0, *itertools.accumulate(map(len, values))])
    slides = novelty.of_slides(torch.cat(values), offsets)
    return torch.cat(values).numpy(), float(np.mean([slide.p_value <= 0.05 for slide in slides]))


def _print_cost() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)

    def draw(count: int, size: int) -> list[Bag]:
        shape = (size, 1024)
        return [Bag(torch.randn(shape, generator=generator), f"s{i}") for i in range(count)]

    training = BagBatch.pack(draw(100, 500))
    model = build_model("sgpmil", in_dim=1024, num_classes=2)
    model.initialise(training, seed=0)
    start = time.perf_counter()
    model.novelty.fit(training)
    print(f"fit of 50,000 x 1,024: {time.perf_counter() - start:.1f} s")
    bags = draw(4, 5000)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for _, novelty in itertools.product(range(10), (False, True)):
        start = time.perf_counter()
        predict(model, bags, novelty=novelty, warn=False)
        seconds[novelty].append(time.perf_counter() - start)
    plain, whole = (min(seconds[novelty]) * 1e6 / 20_000 for novelty in (False, True))
    print(f"prediction, microseconds an instance: {plain:.1f} without novelty, {whole:.1f} with it")
    print(f"ratio: {whole / plain:.2f}")


if __name__ == "__main__":
    main()
