r"""Time of a study on several workers, and where more of them stop helping.

Workers take jobs in their order, each as soon as it is free. Before its first job, a worker starts
and reads the features, which all workers read at once from one store. Then

.. math:: T(W) = s + \frac{F}{\min(r, R / W)} + \text{makespan of } (c + t_j)_j \text{ over } W

with start $s$, features of $F$ bytes, reading speed of a worker $r$ and of the store for all
together $R$, and $c$ seconds between two jobs. No study is shorter than its longest job.
``benchmarks/study_scaling.py`` measures the constants and checks the times against Ray.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from sgpmil.errors import SettingsError


@dataclass(frozen=True)
class WorkerCosts:
    """Costs of a worker beside its jobs.

    Args:
        start_seconds: From the call until a worker takes its first job, without reading.
        seconds_between: From the end of a job until the next one runs.
        worker_bytes: Bytes a second that one worker reads.
        store_bytes: Bytes a second that the folder of the features gives all workers together.
    """

    start_seconds: float
    seconds_between: float
    worker_bytes: float
    store_bytes: float


@dataclass(frozen=True)
class ScaledStudy:
    """Time of a study on several workers.

    Args:
        workers: Number of workers.
        seconds: From the call to the end of the last job.
        reading: Seconds in which all workers read features.
        longest: Seconds of the longest job, below which no number of workers comes.
        busy: Share of the workers' time in which jobs ran.
    """

    workers: int
    seconds: float
    reading: float
    longest: float
    busy: float


def scale_study(
    jobs: Sequence[float], workers: int, *, feature_bytes: int, costs: WorkerCosts
) -> ScaledStudy:
    """Estimate the time of jobs on several workers.

    Args:
        jobs: Seconds of each job alone, in the order in which they are started.
        workers: Number of workers. Jobs are never divided, so more than the jobs stay idle.
        feature_bytes: Bytes that every worker reads before its first job.
        costs: Costs of a worker.

    Raises:
        SettingsError: There is no worker or no job.

    Example:
        >>> costs = WorkerCosts(1.0, 0.0, worker_bytes=10.0, store_bytes=20.0)
        >>> scale_study([4.0, 2.0, 2.0], 2, feature_bytes=10, costs=costs).seconds
        6.0
    """
    if workers < 1 or not jobs:
        raise SettingsError(
            f"Expected at least one worker and one job, but got {workers} and {len(jobs)}."
        )
    hired = min(workers, len(jobs))
    reading = feature_bytes / min(costs.worker_bytes, costs.store_bytes / hired)
    free = [costs.start_seconds + reading] * hired
    for seconds in jobs:
        heapq.heapreplace(free, free[0] + costs.seconds_between + seconds)
    total = max(free)
    return ScaledStudy(workers, total, reading, max(jobs), sum(jobs) / (workers * total))
