"""A cross-validation of slides of usual sizes, from the packed store to written predictions.

python benchmarks/cross_validation.py --bags-per-step 1 2 32 --folds-at-once 1 4 8
"""

import argparse
import gc
import itertools
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sgpmil.bags import BagDataset, Fold, PackedStore, pack_bags
from sgpmil.experiments.bench import Workload, bag_sizes
from sgpmil.processes import compute_device
from sgpmil.training.cross_validation import cross_validate
from sgpmil.training.fabric import start_fabric


def store(folder: Path, workload: Workload) -> PackedStore:
    """Pack bags of random features in half precision."""
    count = workload.train_bags + workload.test_bags
    rng = np.random.default_rng(0)
    sizes = bag_sizes(count, workload.seed, workload.scale)
    pool = rng.standard_normal((int(sizes.max()) + 4096, workload.in_dim), dtype=np.float32)
    # Windows of one matrix: to draw a billion numbers would take longer than what is measured.
    starts = rng.integers(0, 4096, count)
    bags = [pool[s : s + n].astype(np.float16) for s, n in zip(starts, sizes, strict=True)]
    dataset = BagDataset.from_arrays(bags, [i % 2 for i in range(count)], class_names=("a", "b"))
    return pack_bags(dataset, folder, dtype="float16")


def folds(bags: BagDataset, count: int, num_train: int) -> list[Fold]:
    """Draw training and test slides anew for each fold."""
    found = []
    for k in range(count):
        order = np.random.default_rng(k).permutation(len(bags))
        ids = [bags.slide_ids[i] for i in order]
        found.append(
            Fold(name=str(k), train=tuple(ids[:num_train]), val=(), test=tuple(ids[num_train:]))
        )
    return found


def main() -> None:
    """Time it, the process's first as well as later ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--bags-per-step", type=int, nargs="+", default=[2])
    parser.add_argument("--folds-at-once", type=int, nargs="+", help="As many as pay by default.")
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args()
    workload = Workload(scale=options.scale)
    start_fabric()  # its import takes seconds, and belongs to no way
    print(compute_device("auto"), torch.cuda.get_device_name() if torch.cuda.is_available() else "")
    with tempfile.TemporaryDirectory() as folder:
        store(Path(folder) / "store", workload)
        ways = itertools.product(options.bags_per_step, options.folds_at_once or [None])
        for bags_per_step, at_once in ways:
            run = Path(folder) / f"run-{bags_per_step}-{at_once}"
            if torch.cuda.is_available():  # what the way before kept for reuse is not this one's
                gc.collect()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            bags = PackedStore.open(Path(folder) / "store").dataset()
            cross_validate(
                bags,
                folds(bags, options.folds, workload.train_bags),
                training={"epochs": options.epochs, "bags_per_step": bags_per_step},
                run=run,
                folds_at_once=at_once,
                progress=False,
            )
            seconds = time.perf_counter() - begin
            written = len(list(run.glob("*/predictions.parquet")))
            how = f"{bags_per_step} bags a step, {at_once or 'as many as pay'} at once"
            memory = torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else 0
            print(f"{how}: {seconds:.1f} s, {written} folds, {memory:.1f} GiB", flush=True)


if __name__ == "__main__":
    main()
