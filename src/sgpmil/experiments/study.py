"""Studies: models with settings, over data sets, folds and seeds; one file for each finished job.

A *variant* is a model with settings; a *job* is one variant on one fold of one data set with one
seed. `run_jobs` runs the unfinished jobs, in processes of one thread each. Each job writes its own
file, whole or not at all. So a stopped study resumes with the next call and loses at most the jobs
that were running.
"""

import hashlib
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

import sgpmil
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.splits import Fold, check_folds
from sgpmil.errors import RunFolderError, SettingsError, SgpmilError
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.summary import evaluate
from sgpmil.experiments.jobs import JobFile, StudyPlan, is_done, unfinished
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import resolve_settings
from sgpmil.processes import compute_device
from sgpmil.progress import ProgressBar, progress_bar
from sgpmil.runs.run import run_lock
from sgpmil.scaleout.executors import Executor, LocalExecutor
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings, default_training


@dataclass(frozen=True)
class Variant:
    """A model with settings, under a name.

    Args:
        name: Its name, and that of its folder of results.
        model: A name of `sgpmil.list_models`.
        settings: Settings of the model that differ from its defaults.
        training: Training settings that differ from those it starts from.
    """

    name: str
    model: str = "sgpmil"
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StudySet:
    """A data set of a study.

    Args:
        name: Its name, and that of its folder of results.
        load: Reads its bags and folds. Every process calls it, so it can be pickled: a function
            of a module, or a `functools.partial` of one.
    """

    name: str
    load: Callable[[], tuple[BagDataset, Sequence[Fold]]]


@dataclass(frozen=True)
class Job:
    """One variant on one fold with one seed.

    Args:
        variant: The variant.
        data_set: The data set.
        fold: Name of the fold.
        training: Training settings, seed included.
        fingerprint: Digest of the bags and of the fold.
    """

    variant: Variant
    data_set: StudySet
    fold: str
    training: TrainingSettings
    fingerprint: str

    @property
    def file(self) -> JobFile:
        """The file of its result, with the settings that the result must have."""
        resolved = resolve_settings(self.variant.model, self.variant.settings)
        training = asdict(self.training)
        del training["device"]  # where it ran, not what
        return JobFile(
            data_set=self.data_set.name,
            variant=self.variant.name,
            fold=self.fold,
            seed=self.training.seed,
            settings={
                "model": self.variant.model,
                "model_settings": vars(resolved),
                "training": training,
                "data": self.fingerprint,
            },
        )


def load_set(data_set: StudySet) -> tuple[BagDataset, dict[str, Fold]]:
    """Read the bags of a data set into memory, and its folds by name.

    Raises:
        SplitError: The folds do not fit the bags, or leak.
    """
    bags, folds = data_set.load()
    return bags.in_memory(), {f.name: f for f in check_folds(folds, bags.label_table())}


def plan_jobs(
    data_set: StudySet,
    variants: Sequence[Variant],
    *,
    seeds: int,
    training: TrainingSettings | None = None,
    device: str = "auto",
) -> list[Job]:
    """Make the jobs of a data set: all variants and folds with the first seed, then the next.

    Args:
        data_set: The data set; it is read once, for its folds and its fingerprint.
        variants: The variants.
        seeds: Number of seeds, counted from 0. They fix the training, not the data.
        training: Settings that variants start from; each model's own where None.
        device: Device to train on.

    Raises:
        SettingsError: A setting is unknown or impossible, or a name cannot be a folder's.
        SplitError: The folds do not fit the bags, or leak.
    """
    if seeds < 1:
        raise SettingsError(f"Expected at least one seed, but got {seeds}.")
    bags, folds = load_set(data_set)
    # By content, not by the files' times: a copy of the data on another machine is the same.
    content = replace(bags, source=MemorySource(list(bags))).fingerprint()
    prints = {
        fold.name: hashlib.sha256(repr((content, fold)).encode()).hexdigest()[:16]
        for fold in folds.values()
    }
    settings = {v.name: _training(v, training, device) for v in variants}
    if len(settings) < len(variants):
        raise SettingsError("Expected every variant of a study once, but got a name twice.")
    jobs = [
        Job(variant, data_set, fold, replace(settings[variant.name], seed=seed), prints[fold])
        for seed in range(seeds)
        for variant in variants
        for fold in folds
    ]
    for job in jobs:
        job.file.check()
    return jobs


@runtime_checkable
class FiledJob(Protocol):
    """A job with a file of its result."""

    @property
    def file(self) -> JobFile:
        """The file, with the settings that the result must have."""
        ...


_Job = TypeVar("_Job", bound=FiledJob)


def run_jobs(
    jobs: Sequence[_Job],
    out: Path,
    *,
    work: "Callable[[], Callable[[_Job], dict[str, Any]]] | None" = None,
    processes: int = 1,
    executor: Executor | None = None,
    conditions: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Run the jobs that are not done yet and return the results of all, in the order given.

    A job that fails writes its error. It does not stop the others, and the next call tries it
    again.

    Args:
        jobs: The jobs.
        out: Folder of the results.
        work: Makes the function that computes the result of a job; called once in every process,
            so that it can keep what jobs share. By default a variant is trained and tested.
        processes: Number of processes, of one thread each; 1 works in this one.
        executor: Executor of the jobs, in place of these processes. Its workers write to `out`.
        conditions: Settings that all results in the folder must share.
        overwrite: Run jobs again whose results are of other settings or data.
        progress: Whether to show a progress bar.

    Raises:
        RunFolderError: The folder is of other conditions, a result is of other settings or data,
            another process writes to the folder, or it cannot be written.
    """
    files = [job.file for job in jobs]
    with run_lock(out):
        plan = StudyPlan.read(out).joined(files, conditions or {}, out)
        todo_keys = {file.key for file in unfinished(files, out, overwrite)}
        todo = [job for job in jobs if job.file.key in todo_keys]
        try:
            plan.write(out)
            with progress_bar(
                "Running", len(jobs), "jobs", num_done=len(jobs) - len(todo), show=progress
            ) as bar:
                (executor or LocalExecutor(processes)).run(
                    partial(_JobRunner, out.absolute(), work or _TrainAndTest),
                    todo,
                    on_change=lambda running: bar.show_table(
                        [one.row(one.job.file.key) for one in running]
                    ),
                    on_done=lambda job, error: count_job(bar, job.file.key, error),
                    on_death=partial(_note_death, out),
                )
        except OSError as error:
            raise RunFolderError(f"Could not write to {out}: {error}.") from error
        lost = {"status": "failed", "error": "Its result is gone."}
        return [file.read(out) or lost for file in files]


def job_errors(jobs: Sequence[FiledJob], results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the error of each job that failed, by the job's key."""
    pairs = zip(jobs, results, strict=True)
    return {job.file.key: found["error"] for job, found in pairs if not is_done(found)}


def count_job(bar: ProgressBar, job: str, error: str | None) -> None:
    """Count a job; print that it failed and, in a log file, that it is done."""
    bar.advance()
    if error is not None:
        bar.say(f"{job} failed: {error}")
    else:
        bar.log(f"{bar.count}: {job}")


def sentence(error: Exception) -> str:
    """Return the text of an error in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, SgpmilError) else f"{type(error).__name__}: {text}"


def _training(variant: Variant, start: TrainingSettings | None, device: str) -> TrainingSettings:
    start = default_training(variant.model) if start is None else start
    try:
        return replace(start, **{"device": device, **variant.training})
    except TypeError as error:
        raise SettingsError(f"In the training of '{variant.name}': {error}.") from error


class _JobRunner:
    """Runs jobs in one process, and writes their results.

    Args:
        out: Folder of the results.
        work: Makes the function that computes the result of a job.
    """

    def __init__(self, out: Path, work: Callable[[], Callable[[Any], dict[str, Any]]]) -> None:
        self.out = out
        self.work = work()

    def __call__(self, job: FiledJob) -> str | None:
        """Run a job and write its result; return its error where it failed."""
        result: dict[str, Any] = {
            "status": "done",
            "error": None,
            "versions": {"sgpmil": sgpmil.__version__, "torch": str(torch.__version__)},
        }
        started = time.perf_counter()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                result |= self.work(job)
        except Exception as error:  # noqa: BLE001 - any failure of a job is its own, not the study's
            result |= {"status": "failed", "error": sentence(error)}
        result["seconds"] = time.perf_counter() - started
        result["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        job.file.write(self.out, result)
        error_text: str | None = result["error"]
        return error_text


class _TrainAndTest:
    """Trains and tests variants, and keeps the data set that it read last."""

    name = ""

    def __call__(self, job: Job) -> dict[str, Any]:
        if job.data_set.name != self.name:  # jobs come a data set at a time
            self.bags, self.folds = load_set(job.data_set)
            self.name = job.data_set.name
        device = compute_device(job.training.device).type
        return {"device": device, **_train_and_test(job, self.bags, self.folds[job.fold])}


def _note_death(out: Path, job: FiledJob) -> str:
    error = "Its process was killed, perhaps because memory ran out: use fewer `jobs`."
    job.file.write(out, {"status": "failed", "error": error})
    return error


def _train_and_test(job: Job, bags: BagDataset, fold: Fold) -> dict[str, Any]:
    ends: list[float] = []
    # Where nothing is chosen by validation, it would only take time.
    with_val = bool(fold.val) and (job.training.select == "best" or job.training.patience > 0)
    model = fit(
        bags.subset(fold.train),
        val=bags.subset(fold.val) if with_val else None,
        model=job.variant.model,
        model_settings=job.variant.settings,
        training=job.training,
        on_epoch=lambda _: ends.append(time.perf_counter()),
    )
    epochs = [after - before for before, after in pairwise(ends)]
    result: dict[str, Any] = {
        "parameters": model.num_parameters(),
        "epochs_run": len(ends),
        "seconds_per_epoch": statistics.median(epochs) if epochs else None,
        "class_names": list(bags.target.names),
    }
    device = compute_device(job.training.device)
    for part in ("val", "test"):
        ids = fold.part(part)
        if ids:
            result[part] = _scores(model, bags.subset(ids), device)
    return result


def _scores(model: MILModel, bags: BagDataset, device: torch.device) -> dict[str, Any]:
    table = predict(model, bags, device=device, warn=False)
    return {
        # JSON has no NaN.
        "metrics": {
            key: None if math.isnan(value) else value
            for key, value in evaluate(table).row.items()
            if value is not None
        },
        "slide_ids": list(table.slide_ids),
        "labels": table.labels.tolist(),
        "probs": table.probs.tolist(),
        "std": table.std.tolist(),
    }
