"""Seconds of a step and of a prediction of every row of the paper's table, by the size of a bag.

    python benchmarks/cohort_costs.py --device cpu --sizes 300 900 2700 --out costs-cpu.json
    python benchmarks/cohort_costs.py --sizes 300 1000 3000 10000 --out costs-gpu.json

`sgpmil.experiments.cohorts.costs` has the coefficients that are printed: seconds are
$a + b n + c n^2 + d n^3$ for a bag of n patches, none below 0, fitted to relative errors. On a CPU
it is the time of the process on one core, which other processes do not lengthen. Memory is the peak
of a training or prediction with bags of that size.
"""

import argparse
import json
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from scipy.optimize import nnls

from sgpmil.bags.dataset import BagDataset
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.cohorts.cohort import COHORTS, ROWS, Row, row_training
from sgpmil.experiments.peak_memory import PeakMemory
from sgpmil.gpu.resident import where_it_fits
from sgpmil.processes import compute_device
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings

_DIM = 1024
_POWERS = (0, 1, 2, 3)
_MOST = {"cpu": 6_000, "cuda": 40_000}
"""Patches of all bags of a measurement, at most."""


@dataclass
class Measured:
    """Seconds of a bag of some size, of its part of an epoch and of its prediction, and memory."""

    row: str
    size: int
    train: float
    predict: float
    memory: int
    parameters: int


def bags_of(size: int, count: int) -> BagDataset:
    """Make bags of one size whose features are noise."""
    generator = torch.Generator().manual_seed(size)
    features = [torch.randn(size, _DIM, generator=generator).half() for _ in range(count)]
    side = int(size**0.5) + 1
    cells = np.stack(np.divmod(np.arange(size), side), axis=1) * 256
    return BagDataset.from_arrays(
        features,
        [i % 2 for i in range(count)],
        class_names=("no", "yes"),
        coords=[cells] * count,
        patch_size=256,
    )


def measure(row: Row, size: int, device: torch.device, clock: Callable[[], float]) -> Measured:
    """Measure a row on bags of one size."""
    training = row_training(row, COHORTS["camelyon16"], seed=0, device=str(device.type))
    most = _MOST[device.type]
    count = max(4, min(64, most // size))
    if training.bags_per_step > 4:
        count = max(count, min(64, 4 * most // size))
    bags = where_it_fits(bags_of(size, count), device)
    warm, timed = (3, 5) if device.type == "cuda" else (1, 2)
    ends: list[float] = []
    settings = {
        **{name: value for name, value in asdict(training).items() if name != "device"},
        "device": "gpu" if device.type == "cuda" else "cpu",
        "epochs": warm + timed,
        "select": "last",
        "patience": 0,
    }
    with PeakMemory(device, with_kept=True) as training_peak:
        model = fit(
            bags,
            model=row.model,
            model_settings=row.settings,
            training=TrainingSettings(**settings),
            on_epoch=lambda _: ends.append(clock()),
        )
    epoch = median(b - a for a, b in pairwise(ends[warm - 1 :]))
    times = []
    with PeakMemory(device, with_kept=True) as predicting_peak:
        for _ in range(3 if device.type == "cuda" else 1):
            began = clock()
            predict(model, bags, device=device, warn=False)
            times.append(clock() - began)
    memory = max(training_peak.bytes or 0, predicting_peak.bytes or 0)
    parameters = model.num_parameters()
    return Measured(row.name, size, epoch / count, min(times) / count, memory, parameters)


def fitted(sizes: list[int], seconds: list[float]) -> list[float]:
    """Fit coefficients of the powers of the size, none below 0, to relative errors."""
    powers = np.array([[float(size) ** p for p in _POWERS] for size in sizes])
    weights = 1 / np.array(seconds)
    scale = (powers * weights[:, None]).max(axis=0)
    found, _ = nnls(powers * weights[:, None] / scale, np.ones(len(seconds)))
    return [float(value) for value in found / scale]


def main() -> None:
    """Measure, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sizes", type=int, nargs="+", default=[300, 1000, 3000, 10_000])
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    device = compute_device(chosen.device)
    is_cpu = device.type == "cpu"
    if is_cpu:
        torch.set_num_threads(1)
    clock = time.process_time if is_cpu else time.perf_counter
    rows = [row for row in ROWS.values() if not chosen.model or row.name in chosen.model]
    found: list[Measured] = []
    for row in rows:
        for size in chosen.sizes:
            try:
                found.append(measure(row, size, device, clock))
            except Exception as error:  # noqa: BLE001 - one size that is too large is not the others'
                print(row.name, size, type(error).__name__, str(error)[:120], flush=True)
                continue
            print(found[-1], flush=True)
    coefficients = {}
    for row in rows:
        own = [one for one in found if one.row == row.name]
        if own:
            sizes = [one.size for one in own]
            train = fitted(sizes, [one.train for one in own])
            coefficients[row.name] = (train, fitted(sizes, [one.predict for one in own]))
            print(row.name, *(", ".join(f"{v:.3g}" for v in c) for c in coefficients[row.name]))
    name = platform.processor() or platform.machine()
    content = {
        "device": name if is_cpu else torch.cuda.get_device_name(),
        "measured": [asdict(one) for one in found],
        "coefficients": coefficients,
    }
    chosen.out.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
