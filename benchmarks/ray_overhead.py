"""What Ray costs: short runs against the ideal, and the driver's memory while it predicts.

`runs`: short trainings on Ray with two CPUs, against two ideals. One is the sum of what the runs
themselves took there, divided by two: nothing waits, and both CPUs end together. The other is two
plain processes that divide the same trainings evenly among them, without a queue, in turn with Ray.
All are timed from when both workers are ready to the end of the last run.

`memory`: memory of the process that calls `predict_folder` on Ray, while workers predict.

    python benchmarks/ray_overhead.py runs
    python benchmarks/ray_overhead.py memory --bags 20000
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

WORKERS = 2

_RAY_NICENESS = 15
"""Niceness that Ray gives its workers: on a busy machine it decides how fast they are."""


@dataclass(frozen=True)
class Begin:
    """A job that waits until every worker has one."""

    number: int
    folder: Path

    def wait(self) -> None:
        """Wait for the others."""
        (self.folder / str(self.number)).touch()
        while len(list(self.folder.iterdir())) < WORKERS:
            time.sleep(0.005)


def train(seed: int) -> tuple[float, float]:
    """Train a small model; return when that began and ended."""
    from sgpmil.bags.dataset import BagDataset
    from sgpmil.training.fit import fit

    start = time.time()
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(200, 64)) + i % 2 for i in range(40)]
    bags = BagDataset.from_arrays(arrays, [i % 2 for i in range(40)])
    fit(bags, model="abmil", training={"epochs": 15, "seed": seed, "device": "cpu"})
    return start, time.time()


def work() -> Callable[[Begin | int], tuple[float, float] | None]:
    """Return the function that runs a job."""
    import sgpmil.training.fit  # noqa: F401 - a part of the start

    def run(job: Begin | int) -> tuple[float, float] | None:
        return job.wait() if isinstance(job, Begin) else train(job)

    return run


def on_ray(seeds: list[int]) -> tuple[float, float, float]:
    """Run on Ray; return the seconds until all ended, of the runs alone, and of the start."""
    from sgpmil.scaleout.ray_cluster import RayExecutor

    times: list[tuple[float, float]] = []
    called = time.time()
    with TemporaryDirectory() as folder:
        RayExecutor().run(
            work,
            [*(Begin(number, Path(folder)) for number in range(WORKERS)), *seeds],
            on_change=lambda running: None,
            on_done=lambda job, found: times.append(found) if found else None,
            on_death=lambda job: sys.exit(f"a worker died with {job}"),
        )
    first = min(start for start, _ in times)
    alone = sum(end - start for start, end in times) / WORKERS
    return max(end for _, end in times) - first, alone, first - called


def _block(number: int, folder: Path, seeds: list[int], results: "multiprocessing.Queue") -> None:
    torch.set_num_threads(1)
    os.nice(max(0, _RAY_NICENESS - os.nice(0)))
    run = work()
    run(Begin(number, folder))
    results.put([train(seed) for seed in seeds])


def ideal(seeds: list[int]) -> float:
    """Return the seconds of processes that each run their share of the seeds."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with TemporaryDirectory() as folder:
        blocks = [
            context.Process(target=_block, args=(n, Path(folder), seeds[n::WORKERS], results))
            for n in range(WORKERS)
        ]
        for block in blocks:
            block.start()
        times = [each for _ in blocks for each in results.get()]
        for block in blocks:
            block.join()
    return max(end for _, end in times) - min(start for start, _ in times)


def compare_runs(count: int, rounds: int) -> None:
    """Print the seconds of both, round by round."""
    import ray

    from sgpmil.scaleout.ray_cluster import connect

    connect()
    ratios, others = [], []
    print(
        "| on Ray s | its runs alone, halved s | ratio | two plain processes s | ratio | start s |"
    )
    print("|---|---|---|---|---|---|")
    for _ in range(rounds):
        seeds = list(range(count))
        found, alone, start = on_ray(seeds)
        plain = ideal(seeds)
        ratios.append(found / alone)
        others.append(found / plain)
        cells = (found, alone, ratios[-1], plain, others[-1], start)
        print("".join(f"| {cell:.3f} " for cell in cells) + "|", flush=True)
    print(
        f"{count} runs, {WORKERS} CPUs, medians: {statistics.median(ratios):.3f} of the runs "
        f"alone, {statistics.median(others):.3f} of plain processes"
    )
    ray.shutdown()


def memory_mib() -> float:
    """Return the memory of this process, without what it shares."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_memory(count: int, instances: int) -> None:
    """Predict on Ray, and print the driver's memory along the way."""
    import sgpmil
    from sgpmil.runs import predict as module
    from sgpmil.runs.predict import PredictOptions, predict_folder

    with TemporaryDirectory() as name:
        place = Path(name)
        (place / "features").mkdir()
        rng = np.random.default_rng(0)
        for number in range(count):
            values = rng.normal(size=(instances, 32)).astype(np.float32) + number % 2
            np.save(place / "features" / f"slide-{number:06d}.npy", values)
        arrays = [rng.normal(size=(20, 32)) + i % 2 for i in range(20)]
        bags = sgpmil.BagDataset.from_arrays(arrays, [i % 2 for i in range(20)])
        folder = place / "fold"
        sgpmil.fit(bags, model="sgpmil", training={"epochs": 1, "device": "cpu"}, folder=folder)
        samples: list[tuple[int, float]] = []
        stop, done = threading.Event(), [0]
        elsewhere = module._predict_elsewhere

        def counted(executor, prediction, parts, bar) -> None:  # noqa: ANN001
            advance = bar.advance

            def note(num: int = 1) -> None:
                advance(num)
                done[0] += num

            bar.advance = note
            elsewhere(executor, prediction, parts, bar)
            done[0] = count

        module._predict_elsewhere = counted

        def sample() -> None:
            while not stop.wait(0.1):
                samples.append((done[0], memory_mib()))

        thread = threading.Thread(target=sample)
        before = memory_mib()
        thread.start()
        started = time.time()
        predict_folder(
            PredictOptions(
                model=folder / "checkpoint.safetensors",
                features=place / "features",
                out=place / "p",
                on="ray",
            )
        )
        seconds = time.time() - started
        stop.set()
        thread.join()
        print(f"{count} bags of {instances} instances in {seconds:.0f} s; MiB of the driver:")
        print(f"before {before:.0f}; most in all {max(found for _, found in samples):.0f}")
        print("| slides done | most MiB |\n|---|---|")
        for tenth in range(0, 11, 2):
            low, high = count * tenth / 10, count * (tenth + 2) / 10
            found = [mib for slides, mib in samples if low <= slides < high]
            if found:
                what = "merging" if tenth == 10 else f"{low:,.0f} to {high:,.0f}"
                print(f"| {what} | {max(found):.0f} |")


def main() -> None:
    """Run one of the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("runs", "memory"))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bags", type=int, default=20_000)
    parser.add_argument("--instances", type=int, default=50)
    given = parser.parse_args()
    todo = {
        "runs": partial(compare_runs, given.runs, given.rounds),
        "memory": partial(measure_memory, given.bags, given.instances),
    }
    todo[given.what]()


if __name__ == "__main__":
    main()
