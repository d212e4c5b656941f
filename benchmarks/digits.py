"""The sampling schemes and likelihoods, and the models, on bags of handwritten digits.

python benchmarks/digits.py --table sampling
"""

import argparse
from pathlib import Path

from colon import TABLES, table

from sgpmil.bags import BagDataset, Fold, make_kfold
from sgpmil.experiments.digits import DEMO_TRAINING, digit_bags
from sgpmil.experiments.study import StudySet, plan_jobs, run_jobs


def load() -> tuple[BagDataset, tuple[Fold, ...]]:
    """Make the bags and five folds."""
    bags = digit_bags()
    return bags, make_kfold(bags.label_table(), num_folds=5)


def main() -> None:
    """Run a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", choices=list(TABLES), default="sampling")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    variants = TABLES[options.table]
    jobs = plan_jobs(
        StudySet("digits", load), variants, seeds=options.seeds, training=DEMO_TRAINING
    )
    out = options.out / f"digits-{options.table}"
    results = run_jobs(jobs, out, processes=options.jobs)
    for part in ("val", "test"):
        print(f"\n{part}\n{table(results, variants, part)}")


if __name__ == "__main__":
    main()
