"""Seconds an epoch of every model, one after another in one process of one thread.

A study's own processes share caches, memory and cores, so what they measure of each other is not
the models' own speed.
"""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import write_text
from sgpmil.experiments.job_pool import one_thread
from sgpmil.experiments.model_rows import TIMING_FILE
from sgpmil.experiments.study import Job, load_set, sentence
from sgpmil.processes import compute_device
from sgpmil.runs.run import run_lock
from sgpmil.training.fit import fit

__all__ = ["TIMED_EPOCHS", "Timed", "time_models"]

TIMED_EPOCHS = 3
"""Epochs that are timed, after one to warm up."""


@dataclass(frozen=True)
class Timed:
    """What timing a model came to.

    Args:
        data_set: Name of the data set.
        model: Name of the model.
        seconds: Median seconds of an epoch; None where it failed.
        error: Why it failed.
    """

    data_set: str
    model: str
    seconds: float | None
    error: str | None


def time_models(
    jobs: Sequence[Job],
    out: Path,
    *,
    on_start: Callable[[str], None],
    on_done: Callable[[str, str | None], None],
) -> list[Timed]:
    """Time an epoch of each job's model, without validation, and write ``timing.json``.

    Times of other models and data sets in the file stay. It is written after every model, so
    that an interruption loses one at most.

    Args:
        jobs: Jobs of one fold and one seed each.
        out: Folder of the results.
        on_start: Called with the name of a job that begins.
        on_done: Called with its name and, where it failed, its error when it is done.

    Raises:
        RunFolderError: Another process writes to the folder; its work would be timed along.
    """
    timed = []
    path = out / TIMING_FILE
    with run_lock(out), one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = _read(path)
        for data_set, group in groupby(jobs, key=lambda job: job.data_set):
            bags, folds = load_set(data_set)
            for job in group:
                on_start(job.file.key)
                train = bags.subset(folds[job.fold].train)
                found = _time(job, train)
                timed.append(found)
                if found.seconds is not None:
                    times.setdefault(found.data_set, {})[found.model] = {
                        "seconds_per_epoch": found.seconds,
                        "device": compute_device(job.training.device).type,
                        "bags": len(train),
                        "bags_per_step": job.training.bags_per_step,
                    }
                    write_text(path, json.dumps(times, indent=1))
                on_done(job.file.key, found.error)
    return timed


def _time(job: Job, train: BagDataset) -> Timed:
    names = job.data_set.name, job.variant.name
    try:
        return Timed(*names, _seconds_per_epoch(job, train), None)
    except Exception as error:  # noqa: BLE001 - one model's failure is not the others'
        return Timed(*names, None, sentence(error))


def _seconds_per_epoch(job: Job, train: BagDataset) -> float:
    ends: list[float] = []
    fit(
        train,
        model=job.variant.model,
        model_settings=job.variant.settings,
        training=replace(job.training, epochs=1 + TIMED_EPOCHS, select="last", patience=0),
        on_epoch=lambda _: ends.append(time.perf_counter()),
    )
    return statistics.median(after - before for before, after in pairwise(ends))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
