"""Study of a cohort of the paper: every model on every fold, to the paper's tables and figures.

``sgpmil experiment cohort`` plans a study (`plan_cohort`), trains it (`train_cohort`) and writes
its tables and figures (`write_report`). A study that was stopped resumes from the last checkpoint
of each fold.
"""

import resource
import shutil
import time
import warnings
from functools import partial
from multiprocessing import parent_process
from pathlib import Path

import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.experiments.cohorts.measures import Cost, MeasuredFold, measure
from sgpmil.experiments.cohorts.plan import MEASURES, CohortJob, CohortOptions, CohortPlan
from sgpmil.experiments.study import count_job, sentence
from sgpmil.processes import compute_device
from sgpmil.progress import progress_bar
from sgpmil.runs.run import Run, RunFold, run_lock
from sgpmil.training.cross_validation import cross_validate
from sgpmil.training.fold import bags_near
from sgpmil.training.fold_files import read_metrics


def train_cohort(
    plan: CohortPlan,
    options: CohortOptions,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train and measure every fold of every row that is not done.

    Args:
        plan: The plan of the study.
        options: Where jobs run.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each job that failed.

    Raises:
        RunFolderError: Another process writes to the folder.
    """
    errors: dict[str, str] = {}
    executor = options.executor(options.jobs, needs_shared_folder=True)
    if options.overwrite:
        executor.require_room()
    with run_lock(plan.out):
        if options.overwrite:
            for run in plan.runs:
                for folder in (run.path(plan.out), (plan.out / MEASURES / run.name)):
                    shutil.rmtree(folder, ignore_errors=True)
        jobs = plan.jobs(side_by_side=options.is_local)
        total = len(plan.runs) * len(plan.folds)
        num_left = sum(len(job.folds) for job in jobs)
        with progress_bar(
            plan.cohort.title, total, "folds", num_done=total - num_left, show=show_progress
        ) as bar:

            def finish(job: CohortJob, error: str | None) -> None:
                if error is not None:
                    errors[job.key] = error
                bar.advance(len(job.folds) - 1)
                count_job(bar, job.key, error)

            executor.run(
                partial(CohortWorker, plan),
                jobs,
                on_change=lambda running: bar.show_table([one.row(one.job.key) for one in running]),
                on_done=finish,
                on_death=lambda _: (
                    "Its process was killed, perhaps because memory ran out: use fewer `jobs`."
                ),
            )
    return errors


class CohortWorker:
    """Trains and measures jobs in one process, whose bags stay where they are read fastest.

    Args:
        plan: The plan of the study.
    """

    def __init__(self, plan: CohortPlan) -> None:
        self.plan = plan
        self.device = compute_device(plan.device)
        self.bags: BagDataset = bags_near(plan.data.bags, self.device)

    def __call__(self, job: CohortJob) -> str | None:
        """Run a job; return its error where it failed."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._run(job)
        except Exception as error:  # noqa: BLE001 - any failure of a job is its own, not the study's
            return sentence(error)
        except KeyboardInterrupt:  # the parent ends its processes, and reports for them
            if parent_process() is None:
                raise
            raise SystemExit(130) from None
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # other processes share the GPU
        return None

    def _run(self, job: CohortJob) -> None:
        plan, run = self.plan, job.run
        path = run.path(plan.out)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        began = time.perf_counter()
        trained = {fold: _num_epochs(path / f"fold-{fold}") for fold in job.folds}
        cross_validate(
            self.bags,
            plan.data.folds,
            model=run.row.model,
            model_settings=run.row.settings,
            training=plan.training(run),
            run=path,
            data=plan.data.reading,
            resume=True,
            only_folds=job.folds,
            allow_missing=plan.allow_missing,
            on_shared_case=plan.cohort.shared_case,
            progress=False,
        )
        seconds = (time.perf_counter() - began) / len(job.folds)
        for name in job.folds:
            fold = Run.open(path).folds[name]
            # A fold that only had to be measured keeps what its training took.
            before = MeasuredFold.read(run.measured(plan.out, name))
            ran = _num_epochs(fold.path) > trained[name]
            cost = self._cost(fold, seconds) if ran or before is None else before.cost
            measure(
                fold.load(),
                plan.annotations,
                min_coverage=plan.min_coverage,
                positive_classes=plan.cohort.positive_classes,
                cost=cost,
            ).write(run.measured(plan.out, name))

    def _cost(self, fold: RunFold, seconds: float) -> Cost:
        is_cuda = self.device.type == "cuda"
        return Cost(
            seconds=seconds,
            epochs=_num_epochs(fold.path),
            gpu_bytes=torch.cuda.max_memory_reserved(self.device) if is_cuda else 0,
            host_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            device=torch.cuda.get_device_name(self.device) if is_cuda else "CPU",
        )


def _num_epochs(folder: Path) -> int:
    return len(read_metrics(folder))
