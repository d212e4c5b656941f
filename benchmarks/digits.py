"""The sampling schemes and likelihoods, and the models, on bags of handwritten digits.

python benchmarks/digits.py --table sampling
"""

import argparse
from pathlib import Path

from colon import TABLES
from variants import run_variants, table

from sgpmil.bags import make_kfold
from sgpmil.experiments.demo import DEMO_TRAINING
from sgpmil.experiments.digits import digit_bags


def main() -> None:
    """Run a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=list(TABLES), default="sampling")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    folds = make_kfold(digit_bags().label_table(), num_folds=5)
    rows = run_variants(
        digit_bags,
        folds,
        TABLES[options.table],
        seeds=options.seeds,
        training=DEMO_TRAINING,
        out=options.out / f"digits-{options.table}.jsonl",
        jobs=options.jobs,
    )
    for part in ("val", "test"):
        print(f"\n{part}\n{table(rows, TABLES[options.table], part)}")


if __name__ == "__main__":
    main()
