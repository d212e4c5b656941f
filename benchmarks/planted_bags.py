"""Planted bags: a few shifted instances in large bags, and why the published settings collapse.

    python benchmarks/planted_bags.py --scale full --jobs 8     (on a GPU)
    python benchmarks/planted_bags.py --scale small             (on a CPU)

A bag holds instances of 20 background clusters in Dirichlet proportions; in positive bags .3 % of
them (small: 2 %) are shifted along one fixed direction.
"""

import argparse
import json
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgpmil.bags import Bag, BagBatch, BagDataset
from sgpmil.evaluation import evaluate, predict
from sgpmil.experiments.study import Variant
from sgpmil.models import build_model
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings

ONE_BAG = {"bags_per_step": 1, "learning_rate": 6e-4}
PAPER = {"preset": "paper"}
VARIANTS = [
    Variant("default"),
    Variant("paper", settings=PAPER, training=ONE_BAG),
    Variant("released", settings={"preset": "released"}, training=ONE_BAG),
    Variant("paper, mean weights × .1", settings={**PAPER, "mean_scale": 0.1}, training=ONE_BAG),
    Variant(
        "paper, mean weights × .1, mean starts at −4",
        settings={**PAPER, "mean_scale": 0.1, "mean_bias": -4.0},
        training=ONE_BAG,
    ),
    Variant(
        "paper, normalised by the sum",
        settings={**PAPER, "pooling": "normalised"},
        training=ONE_BAG,
    ),
    Variant("paper, softmax", settings={**PAPER, "activation": "softmax"}, training=ONE_BAG),
    Variant("paper, standardised", settings={**PAPER, "standardise": True}, training=ONE_BAG),
    Variant("default, sigmoid and sum", settings={"activation": "sigmoid"}),
]


@dataclass(frozen=True)
class Scale:
    """How large the data are."""

    train: int
    test: int
    dim: int
    smallest: int
    largest: int
    positive: float
    epochs: int


SCALES = {
    "full": Scale(300, 100, 1024, 1000, 4000, 0.003, 30),
    "medium": Scale(150, 60, 256, 300, 900, 0.008, 30),
    "small": Scale(80, 60, 128, 100, 300, 0.02, 15),
}


def planted(scale: Scale, seed: int) -> tuple[BagDataset, BagDataset]:
    """Make training and test bags."""
    generator = torch.Generator().manual_seed(seed)
    numbers = np.random.default_rng(seed)
    centres = 0.5 * torch.randn(20, scale.dim, generator=generator)
    direction = torch.randn(scale.dim, generator=generator)
    # As long as the spread of a whole cluster: seen at once by eye, lost in a bag's mean.
    shift = 0.625 * scale.dim**0.5 * direction / direction.norm()
    features, labels, truth = [], [], []
    for number in range(scale.train + scale.test):
        size = int(numbers.integers(scale.smallest, scale.largest + 1))
        cluster = numbers.choice(20, size, p=numbers.dirichlet(np.ones(20)))
        x = centres[cluster] + 0.5 * torch.randn(size, scale.dim, generator=generator)
        is_positive = np.zeros(size, dtype=np.int64)
        if number % 2:
            is_positive[: max(1, round(scale.positive * size))] = 1
            x[: int(is_positive.sum())] += shift
        features.append(x)
        labels.append(number % 2)
        truth.append(is_positive)
    data = BagDataset.from_arrays(
        features, labels, class_names=("background", "planted"), instance_labels=truth
    )
    return data.subset(data.slide_ids[: scale.train]), data.subset(data.slide_ids[scale.train :])


def _first_step(variant: Variant, train: BagDataset, seed: int) -> dict[str, float]:
    """Look at the untrained model: the size of its attention and logits."""
    torch.manual_seed(seed)
    model = build_model("sgpmil", in_dim=train.feature_dim, num_classes=2, **variant.settings)
    some = [Bag(bag.features[:100], bag.slide_id, label=bag.label) for bag in train]
    model.initialise(BagBatch.pack(some), seed=seed)
    with torch.no_grad():
        output = model.eval()(BagBatch.pack([train[i] for i in range(4)]))
    return {
        "first_attention": float(output.attention.mean()),
        "first_logit": float(output.logits.abs().mean()),
    }


def run(variant: Variant, seed: int, scale: Scale, device: str) -> dict[str, Any]:
    """Train one variant with one seed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train, test = planted(scale, seed)
    settings = TrainingSettings(
        epochs=scale.epochs, warmup_epochs=3, seed=seed, device=device, **variant.training
    )
    losses: list[float] = []
    model = fit(
        train,
        model="sgpmil",
        model_settings=variant.settings,
        training=settings,
        on_epoch=lambda metrics: losses.append(metrics["train_loss"]),
    )
    table = predict(model, test)
    found = evaluate(table)
    attention = [p.instances.attention_mean.mean() for p in table.predictions if p.instances]
    return {
        "variant": variant.name,
        "seed": seed,
        "bag_auc": found.slide.auc,
        "attention_auc": found.instance.attention_auc if found.instance else float("nan"),
        "evidence_auc": found.instance.evidence_auc if found.instance else float("nan"),
        **_first_step(variant, train, seed),
        "last_attention": float(np.mean(attention)),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def main() -> None:
    """Run the variants and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", choices=list(SCALES), default="small")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", nargs="*", help="Names of variants; all by default.")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    variants = [v for v in VARIANTS if not options.only or v.name in options.only]
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    context = multiprocessing.get_context("spawn")
    file = options.out / f"planted-{options.scale}.jsonl"
    with ProcessPoolExecutor(options.jobs, context) as pool, file.open("a") as out:
        futures = [
            pool.submit(run, variant, seed, SCALES[options.scale], options.device)
            for variant in variants
            for seed in range(options.seeds)
        ]
        for future in as_completed(futures):
            rows.append(future.result())
            out.write(json.dumps(rows[-1]) + "\n")
            out.flush()
            print(rows[-1], flush=True)
    columns = list(rows[0])[2:]
    print("| variant | seeds solved | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for variant in variants:
        found = [row for row in rows if row["variant"] == variant.name]
        solved = sum(row["bag_auc"] >= 0.999 and row["attention_auc"] >= 0.999 for row in found)
        cells = [f"{np.median([row[c] for row in found]):.3g}" for c in columns]
        print(f"| {variant.name} | {solved} of {len(found)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
