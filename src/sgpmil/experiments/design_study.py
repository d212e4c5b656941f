"""Studies of designs on data sets that are drawn anew from each seed: jobs, scores, files.

A *design* is a model with settings (`sgpmil.experiments.uncertainty_designs`). `run_designs` trains
each design on each data set with each seed and writes one file for each finished run; a stopped
study resumes with the next call. `read_scored` reads them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.summary import evaluate
from sgpmil.experiments.jobs import JobFile, is_done, read_result
from sgpmil.experiments.study import job_errors, run_jobs
from sgpmil.experiments.uncertainty_designs import Design, Trained, train_design
from sgpmil.experiments.uncertainty_sets import UncertaintySet, content_digest
from sgpmil.processes import compute_device
from sgpmil.scaleout.executors import PlaceOptions

FOLD = "run"
"""Name of the only fold: every seed draws bags of its own."""


@dataclass(frozen=True)
class DrawnSet:
    """A data set that is drawn from each seed.

    Args:
        name: Its name, and that of its folder of results.
        draw: Draws the bags of a seed. Every process calls it, so it can be pickled.
        about: Description in a sentence.
        design: Description of the bags; results of another description are not mixed with it.
        place: Folder that the bags are made of; None where they are made of random numbers.
        independent: Whether seeds draw training and test bags of their own; where they divide the
            same bags, runs are not independent.
    """

    name: str
    draw: Callable[[int], UncertaintySet]
    about: str = ""
    design: object = None
    place: Path | None = None
    independent: bool = True

    def fingerprint(self) -> str:
        """Return a digest that changes with the description, or with the files."""
        return content_digest(self.design, self.place)


@dataclass(frozen=True, kw_only=True)
class DesignStudyOptions(PlaceOptions):
    """Options that studies of designs share.

    Args:
        data: Folder of data sets: mnist/ and colon/; sets that are not there are left out.
        out: Folder of the results.
        seeds: Seeds, such as 0-4; each draws bags of its own.
        jobs: Processes on this machine, of one thread each.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        quick: Few and small bags and two epochs, to test whether everything works. Needs a folder
            of its own (``out``).
        dry_run: List the runs with the time that they may take, and stop.
        tables: Write tables and figures of the runs that are there, and stop.
        overwrite: Run jobs again whose results are of other settings.
    """

    data: Path = Path("data")
    out: Path = Path("runs/study")
    seeds: str = "0-4"
    jobs: int = 2
    device: str = "auto"
    quick: bool = False
    dry_run: bool = False
    tables: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class DesignJob:
    """A design on a data set with a seed.

    Args:
        design: The design.
        data_set: The data set.
        seed: Seed of bags and training.
        fingerprint: Digest of the data set.
        device: Device to train on.
    """

    design: Design
    data_set: DrawnSet
    seed: int
    fingerprint: str
    device: str

    @property
    def file(self) -> JobFile:
        """The file of its result, with the settings that the result must have."""
        return JobFile(
            data_set=self.data_set.name,
            variant=self.design.name,
            fold=FOLD,
            seed=self.seed,
            settings={**self.design.resolved(), "data": self.fingerprint},
        )


def plan_designs(
    sets: Sequence[DrawnSet], designs: Sequence[Design], seeds: Sequence[int], device: str
) -> list[DesignJob]:
    """Return the jobs: all sets and designs of a seed, then those of the next.

    A study that is stopped early then has as many seeds of one design as of another.

    Raises:
        SettingsError: There is no such device, or a design is impossible.
    """
    compute_device(device)  # once, not in every job
    prints = {one.name: one.fingerprint() for one in sets}
    jobs = [
        DesignJob(design, one, seed, prints[one.name], device)
        for seed in seeds
        for one in sets
        for design in designs
    ]
    for job in jobs:
        job.file.check()
    return jobs


def run_designs(
    options: DesignStudyOptions, jobs: Sequence[DesignJob], *, show_progress: bool = False
) -> dict[str, str]:
    """Train and measure the designs that are not done yet.

    Args:
        options: Folder of the results, and where jobs run.
        jobs: The jobs.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    results = run_jobs(
        jobs,
        options.out,
        work=_TrainAndScore,
        executor=options.executor(options.jobs, needs_shared_folder=True),
        conditions={"quick": options.quick},
        overwrite=options.overwrite,
        progress=show_progress,
    )
    return job_errors(jobs, results)


class _TrainAndScore:
    """Trains and measures designs, and keeps the data set that it drew last."""

    def __init__(self) -> None:
        self.drawn: tuple[str, int] | None = None
        self.data: UncertaintySet | None = None

    def __call__(self, job: DesignJob) -> dict[str, Any]:
        wanted = (job.data_set.name, job.seed)
        data = self.data
        if data is None or wanted != self.drawn:
            self.data = data = None  # two large sets at once may not fit into memory
            self.data = data = job.data_set.draw(job.seed)
            self.drawn = wanted
        trained = train_design(job.design, data, device=job.device)
        return {
            "device": compute_device(job.device).type,
            "parameters": sum(model.num_parameters() for model in trained.models),
            "num_train": len(data.train),
            "num_test": len(data.test.bags),
            "columns": score(trained, data),
        }


def score(trained: Trained, data: UncertaintySet) -> dict[str, float | None]:
    """Measure predictions of the test bags.

    Returns:
        Every metric of `sgpmil.evaluation.metrics` that is defined, ``best_auc``, the largest
        instance AUC of a score, and ``seconds_per_epoch``.
    """
    table = trained.predict(data.test.bags)
    found = {key: value for key, value in evaluate(table).row.items() if value is not None}
    areas = [found[f"{kind}_auc"] for kind in CLASS_SCORES if f"{kind}_auc" in found]
    known = [area for area in areas if not math.isnan(area)]
    if known:
        found["best_auc"] = max(known)
    if trained.seconds_per_epoch is not None:
        found["seconds_per_epoch"] = trained.seconds_per_epoch
    return {key: None if math.isnan(value) else float(value) for key, value in found.items()}


@dataclass(frozen=True)
class ScoredRun:
    """A finished run.

    Args:
        data_set: Name of the data set.
        design: Name of the design.
        seed: Seed.
        columns: Values of `score` or of `sgpmil.experiments.uncertainty_measures.measure`.
        num_train: Number of training bags.
        num_test: Number of test bags.
        parameters: Number of trainable parameters.
        seconds: Seconds that the run took.
    """

    data_set: str
    design: str
    seed: int
    columns: Mapping[str, float | None]
    num_train: int
    num_test: int
    parameters: int
    seconds: float

    @classmethod
    def from_result(cls, found: Mapping[str, Any]) -> "ScoredRun":
        """Return the run of a result file."""
        keys = {field.name: field.name for field in fields(cls)} | {"design": "variant"}
        return cls(**{name: found[key] for name, key in keys.items()})


def read_scored(out: Path, seeds: Sequence[int] | None = None) -> list[ScoredRun]:
    """Read the finished runs of a folder.

    Results that another machine wrote may be copied into the folder.

    Args:
        out: Folder of the results.
        seeds: Only these seeds.
    """
    runs = []
    for path in sorted(out.glob(f"*/*/{FOLD}-seed*.json")):
        found = read_result(path)
        if found is None or not is_done(found) or "columns" not in found:
            continue
        if seeds is None or found["seed"] in seeds:
            runs.append(ScoredRun.from_result(found))
    return runs
