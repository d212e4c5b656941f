"""Time of the paper's studies on 1, 8 and 64 GPUs, and a check of the model behind it.

    python benchmarks/study_scaling.py check
    python benchmarks/study_scaling.py table

`check` runs jobs of unequal lengths on real Ray workers and compares the time with that of
`sgpmil.experiments.cohorts.scaling`. The jobs sleep and the workers declare no CPU, so that many
workers on one machine stand for as many machines; what is measured is the dispatch. The costs of a
worker are fitted to one worker, and the times of several are predicted by them.

`table` lists the studies of the paper with the times of jobs on one NVIDIA H200.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sgpmil.bags.splits import Fold
from sgpmil.experiments.cohorts.cohort import COHORTS, ROWS
from sgpmil.experiments.cohorts.costs import fold_seconds
from sgpmil.experiments.cohorts.scaling import ScaledStudy, WorkerCosts, scale_study

COSTS = WorkerCosts(start_seconds=22.0, seconds_between=0.01, worker_bytes=2.1e9, store_bytes=1.2e9)
"""Start: some 6 s until a worker is ready (`check`), and 16 s for the kernels of a new machine.
Reading: a packed store on a local disk (docs/performance.md), and a network of 10 Gbit/s."""

WORKERS = (1, 8, 64)
NETWORKS = (("1 Gbit/s", 0.12e9), ("10 Gbit/s", 1.2e9), ("100 Gbit/s", 12e9))


def sleeper() -> Callable[[float], tuple[float, float]]:
    """Return the function that runs a job."""

    def run(seconds: float) -> tuple[float, float]:
        began = time.time()
        time.sleep(seconds)
        return began, time.time()

    return run


def measure(jobs: list[float], workers: int) -> tuple[float, float, list[tuple[float, float]]]:
    """Run jobs on Ray; return the seconds until all ended, until the last worker began, and all."""
    from sgpmil.scaleout.ray_cluster import RayExecutor

    times: list[tuple[float, float]] = []
    called = time.time()
    RayExecutor(cpus=16 / workers).run(
        sleeper,
        jobs,
        on_change=lambda running: None,
        on_done=lambda job, found: times.append(found),
        on_death=lambda job: sys.exit(f"a worker died with {job}"),
    )
    begun = sorted(began for began, _ in times)[:workers]
    return max(ended for _, ended in times) - called, begun[-1] - called, times


def check(rounds: int) -> None:
    """Print measured and predicted times."""
    import ray

    ray.init(num_cpus=16, include_dashboard=False, object_store_memory=2**28, log_to_driver=False)
    rng = np.random.default_rng(0)
    measure([0.0] * 2, 2)  # the first call starts Ray's own processes
    starts, between = [], []
    for _ in range(rounds):
        total, start, times = measure([0.2] * 20, 1)
        starts.append(start)
        between.append((total - start - sum(end - began for began, end in times)) / 19)
    costs = WorkerCosts(statistics.median(starts), statistics.median(between), 1.0, 1.0)
    print(f"start {costs.start_seconds:.2f} s, between jobs {costs.seconds_between * 1e3:.1f} ms\n")
    print("| workers | jobs | last worker began | measured s | predicted s | ratio |")
    print("|---|---|---|---|---|---|")
    for workers in (2, 4, 8, 16):
        # A few jobs are much longer than the others, as TransMIL's and AGP's folds are.
        jobs = sorted(np.minimum(rng.lognormal(0, 1.2, 6 * workers), 12).tolist(), reverse=True)
        found = []
        for _ in range(rounds):
            total, start, _ = measure(jobs, workers)
            # How long workers take to start depends on how many share this machine's cores.
            own = replace(costs, start_seconds=start)
            predicted = scale_study(jobs, workers, feature_bytes=0, costs=own).seconds
            found.append((start, total, predicted, total / predicted))
        middle = [statistics.median(column) for column in zip(*found, strict=True)]
        cells = "".join(f"| {value:.2f} " for value in middle)
        print(f"| {workers} | {len(jobs)} {cells}|", flush=True)
    ray.shutdown()


def study_jobs(name: str) -> tuple[list[float], int]:
    """Return the seconds of the jobs of a study on an H200, as they are started, and its bytes."""
    cohort = COHORTS[name]
    slides = [f"s{i}" for i in range(sum(cohort.parts))]
    sizes = dict.fromkeys(slides, cohort.patches)
    train, val, _ = cohort.parts
    fold = Fold("0", slides[:train], slides[train : train + val], slides[train + val :])
    each = [fold_seconds(row, cohort, fold, sizes, "cuda")[1] for row in ROWS.values()]
    # Fold by fold, in each the longest first; seeds of a row are rows of their own.
    one = sorted(each * len(cohort.seeds), reverse=True)
    return one * cohort.folds, cohort.num_slides * cohort.patches * 2048


def hours(seconds: float) -> str:
    """Return a time in hours or minutes."""
    return f"{seconds / 3600:.1f} h" if seconds >= 5400 else f"{seconds / 60:.1f} min"


def table() -> None:
    """Print the tables of studies."""
    columns = "".join(f" {workers} GPU |" for workers in WORKERS)
    print(f"| study | jobs | longest job |{columns} share busy |")
    print("|---|---|---|" + "---|" * (len(WORKERS) + 1))
    for name, cohort in COHORTS.items():
        jobs, size = study_jobs(name)
        found = [scale_study(jobs, w, feature_bytes=size, costs=COSTS) for w in WORKERS]
        times = "".join(f" {hours(one.seconds)} |" for one in found)
        busy = ", ".join(f"{one.busy:.2f}" for one in found)
        print(f"| {cohort.title} | {len(jobs)} | {hours(max(jobs))} |{times} {busy} |")
    print("\n| study on 64 GPUs |" + "".join(f" {name} |" for name, _ in NETWORKS))
    print("|---|" + "---|" * len(NETWORKS))
    for name, cohort in COHORTS.items():
        jobs, size = study_jobs(name)
        cells = []
        for _, speed in NETWORKS:
            costs = replace(COSTS, store_bytes=speed)
            found_here: ScaledStudy = scale_study(jobs, 64, feature_bytes=size, costs=costs)
            whole, reading = hours(found_here.seconds), hours(found_here.reading)
            cells.append(f" {whole}, {reading} of it reading |")
        print(f"| {cohort.title} |{''.join(cells)}")


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("check", "table"))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.what == "check":
        check(given.rounds)
    else:
        table()


if __name__ == "__main__":
    main()
