"""Comparison of every model on real data sets.

The command ``sgpmil experiment models`` calls `compare_models`, or with ``timing`` `time_epochs`.
"""

from dataclasses import dataclass
from pathlib import Path

from sgpmil.experiments.model_study import (
    Timed,
    choose_models,
    choose_sets,
    plan_model_study,
    plan_timing,
    time_models,
)
from sgpmil.experiments.study import Job, count_job, job_errors, run_jobs
from sgpmil.processes import compute_device
from sgpmil.progress import progress_bar
from sgpmil.scaleout.executors import PlaceOptions


@dataclass(frozen=True, kw_only=True)
class CompareModelsOptions(PlaceOptions):
    """Options of `compare_models`.

    Args:
        data: Folder of data sets: colon/, mnist/, classic_mil/*.npz; any of them will do.
        out: Folder of the results.
        sets: Only this data set (colon, mnist, musk1, musk2, fox, tiger, elephant); may be
            repeated. All existing ones by default.
        model: Only this model; may be repeated.
        seeds: Number of seeds. By default 3 on colon and mnist, 1 on the others.
        jobs: Processes on this machine, of one thread each.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        epochs: Epochs of every model instead of its own; 1 tests whether everything works. Needs
            a folder of its own (``out``).
        timing: Do not train to the end; time an epoch of each model, one after another in this
            process.
        overwrite: Run jobs again whose results are of other settings.
    """

    data: Path
    out: Path = Path("runs/models")
    sets: tuple[str, ...] = ()
    model: tuple[str, ...] = ()
    seeds: int | None = None
    jobs: int = 2
    device: str = "auto"
    epochs: int | None = None
    timing: bool = False
    overwrite: bool = False


def plan_comparison(options: CompareModelsOptions) -> list[Job]:
    """Return the jobs: a model, a data set, a fold and a seed each.

    Raises:
        SettingsError: There is no such device, data set or model.
    """
    compute_device(options.device)  # once, not in every job
    sets, models = choose_sets(options.data, options.sets), choose_models(options.model)
    if options.timing:
        return plan_timing(options.data, sets, models, device=options.device)
    return plan_model_study(
        options.data.absolute(),  # workers may have another folder
        sets,
        models,
        seeds=options.seeds,
        epochs=options.epochs,
        device=options.device,
    )


def compare_models(
    options: CompareModelsOptions, jobs: list[Job] | None = None, *, show_progress: bool = False
) -> dict[str, str]:
    """Train every model on real data sets. A stopped comparison resumes where it left off.

    Args:
        options: The data sets, models and seeds.
        jobs: Jobs of `plan_comparison`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each job that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_comparison(options) if jobs is None else jobs
    results = run_jobs(
        jobs,
        options.out,
        executor=options.executor(options.jobs, needs_shared_folder=True),
        conditions={"epochs": options.epochs},
        overwrite=options.overwrite,
        progress=show_progress,
    )
    return job_errors(jobs, results)


def time_epochs(
    options: CompareModelsOptions, jobs: list[Job] | None = None, *, show_progress: bool = False
) -> list[Timed]:
    """Time an epoch of every model, one after another in this process.

    Args:
        options: The data sets and models, with ``timing``.
        jobs: Jobs of `plan_comparison`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Raises:
        RunFolderError: Another process writes to the folder.
    """
    jobs = plan_comparison(options) if jobs is None else jobs
    with progress_bar("Timing", len(jobs), "models", show=show_progress) as bar:
        return time_models(
            jobs,
            options.out,
            on_start=lambda key: bar.show(state=key),
            on_done=lambda key, error: count_job(bar, key, error),
        )
