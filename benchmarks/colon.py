"""SGPMIL and ABMIL on nuclei of colon histology, and the sampling schemes and likelihoods.

    python benchmarks/colon.py --data DATA/colon --table models
    python benchmarks/colon.py --data DATA/colon --table sampling

DATA/colon holds features/*.h5 in TRIDENT's layout with instance labels, labels.csv and splits/.
"""

import argparse
from functools import partial
from pathlib import Path

from variants import Variant, run_variants, table

from sgpmil.bags import BagDataset, read_bags, read_splits
from sgpmil.gp import SAMPLING_SCHEMES
from sgpmil.models.likelihood import LIKELIHOODS
from sgpmil.training.settings import TrainingSettings

PUBLISHED = {"epochs": 20, "learning_rate": 6e-4, "bags_per_step": 1}
TABLES = {
    "models": [
        Variant("sgpmil"),
        Variant("abmil", "abmil"),
        Variant("abmil, learning rate 1e-3", "abmil", training={"learning_rate": 1e-3}),
        Variant("sgpmil, paper", settings={"preset": "paper"}, training=PUBLISHED),
        Variant("sgpmil, released", settings={"preset": "released"}, training=PUBLISHED),
        Variant("agp", "agp"),
    ],
    "sampling": [
        Variant(f"{s}, {k}", settings={"sampling": s, "likelihood": k})
        for s in SAMPLING_SCHEMES
        for k in LIKELIHOODS
    ],
}


def load(data: Path) -> BagDataset:
    """Read the bags into memory."""
    return read_bags(data / "features", data / "labels.csv").in_memory()


def main() -> None:
    """Run a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", choices=list(TABLES), default="models")
    parser.add_argument("--only", help="Only variants whose name starts with this.", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    bags = load(options.data)
    folds = read_splits(options.data / "splits", bags.label_table())
    variants = [v for v in TABLES[options.table] if v.name.startswith(options.only)]
    rows = run_variants(
        partial(load, options.data),
        folds,
        variants,
        seeds=options.seeds,
        training=TrainingSettings(device=options.device),
        out=options.out / f"colon-{options.table}.jsonl",
        jobs=options.jobs,
    )
    for part in ("val", "test"):
        print(
            f"\n{part}, {len(folds)} folds × {options.seeds} seeds\n{table(rows, variants, part)}"
        )


if __name__ == "__main__":
    main()
