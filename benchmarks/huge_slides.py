"""Slides of a hundred thousand and a million instances: memory and time.

    python benchmarks/huge_slides.py

Writes a packed store with one slide of so many instances (float16, 1024 features), then, in a
process of its own each: predicts it, and takes one training step of the model with AdamW. The
memory is that of the process less the memory-mapped file, at its peak.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from sgpmil.bags import Bag, BagBatch, PackedStore
from sgpmil.bags.store import PackedSlide, StoreIndex
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import predict
from sgpmil.experiments.peak_memory import PeakMemory
from sgpmil.models import build_model

FEATURES = 1024
ROWS = 2**15


def write_store(folder: Path, num_instances: int) -> None:
    """Write a store of one slide, without holding it in memory."""
    rng = np.random.default_rng(0)
    block = rng.normal(size=(ROWS, FEATURES)).astype(np.float16)
    shape = (num_instances, FEATURES)
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float16, shape)
    for start in range(0, num_instances, ROWS):
        features[start : start + ROWS] = np.roll(block, start % FEATURES, 1)[
            : num_instances - start
        ]
    features.flush()
    unknown = (None, None, None, False, False, "")
    slide = PackedSlide("slide", "slide", 1, num_instances, *unknown)
    index = StoreIndex("float16", FEATURES, ClassTarget(("no", "yes")), (slide,))
    (folder / "index.json").write_text(index.to_json())


def measure(job: str, model: str, folder: Path) -> dict[str, float]:
    """Predict the slide of a store, or train on it for a step."""
    bag: Bag = PackedStore.open(folder).dataset()[0]
    torch.manual_seed(0)
    network = build_model(model, in_dim=FEATURES, num_classes=2)
    start = time.perf_counter()
    with PeakMemory(torch.device("cpu")) as peak:
        if job == "predict":
            predict(network, [bag])
        else:
            optimiser = torch.optim.AdamW(network.parameters(), lr=1e-4)
            batch = BagBatch.pack([bag])
            network.train()
            output = network(batch)
            network.loss(output, batch.labels, num_bags=270).total.backward()
            optimiser.step()
    return {"seconds": time.perf_counter() - start, "peak_gib": (peak.bytes or 0) / 2**30}


def main() -> None:
    """Measure each size in processes of their own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--train", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--model", default="sgpmil")
    parser.add_argument("--folder", type=Path, help="where to write; needs 2 KiB an instance")
    parser.add_argument("--one", nargs=2, metavar=("JOB", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.one[0], options.model, Path(options.one[1]))))
        return
    print("| job | instances | seconds | peak GiB beyond the file |\n|---|---|---|---|")
    for job in ("predict", "train"):
        for size in getattr(options, job):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                write_store(Path(folder), size)
                words = [sys.executable, __file__, "--model", options.model, "--one", job, folder]
                done = subprocess.run(words, check=True, capture_output=True, text=True)  # noqa: S603
                found = json.loads(done.stdout)
            print(f"| {job} | {size:,} | {found['seconds']:.1f} | {found['peak_gib']:.2f} |")


if __name__ == "__main__":
    main()
