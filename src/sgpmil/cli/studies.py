"""`sgpmil experiment ablations`, `stress`, `stability` and `lipschitz`: studies of designs."""

import shlex
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

from sgpmil.cli.commands import command
from sgpmil.cli.output import console, grid
from sgpmil.experiments.ablation_designs import AXES
from sgpmil.experiments.ablation_study import (
    ABLATION_SETS,
    AblationOptions,
    compare_ablations,
    plan_ablations,
)
from sgpmil.experiments.ablation_table import write_ablation_tables
from sgpmil.experiments.design_study import (
    DesignJob,
    DesignStudyOptions,
    ScoredRun,
    read_scored,
)
from sgpmil.experiments.jobs import unfinished
from sgpmil.experiments.lipschitz_study import (
    LipschitzStudyOptions,
    compare_lipschitz,
    plan_lipschitz,
    write_lipschitz_tables,
)
from sgpmil.experiments.seed_spreads import COLUMN_NAMES, column_interval
from sgpmil.experiments.stability_study import (
    STABILITY_DESIGNS,
    StabilityOptions,
    measure_stability,
    plan_stability,
    read_stability,
)
from sgpmil.experiments.stability_table import failures, write_stability_tables
from sgpmil.experiments.stress_study import (
    STRESS_AXES,
    STRESS_MODELS,
    StressOptions,
    compare_stress,
    plan_stress,
)
from sgpmil.experiments.stress_table import write_stress_tables
from sgpmil.experiments.study import FiledJob
from sgpmil.experiments.uncertainty_study import parse_seeds
from sgpmil.notebook import counted
from sgpmil.options import as_flags
from sgpmil.terminal import harmless

_PRINTED = ("auc", "ace", "nll", "attention_auc", "best_auc")

_AXES = ", ".join(dict.fromkeys(axis for axes in AXES.values() for axis in axes))


@command(
    AblationOptions,
    names={"sets": "set"},
    texts={
        "sets": f"Only this data set ({', '.join(ABLATION_SETS)}); may be repeated. By default "
        "digits and colon, where they are; camelyon needs no data, but a GPU.",
        "axis": f"Only this axis ({_AXES}); may be repeated.",
    },
)
def ablations(options: AblationOptions) -> None:
    """Change one setting of SGPMIL at a time, and run the grid of the paper's table.

    The axes are around the default and around the paper's settings. Every seed draws bags of its
    own. A stopped study resumes when the command runs again.

    Example: sgpmil experiment ablations --data data --set digits --base default --jobs 8

    Example: sgpmil experiment ablations --set camelyon --device gpu --jobs 3
    """
    _study(options, plan_ablations(options), compare_ablations, write_ablation_tables)


@command(
    StressOptions,
    texts={
        "axis": f"Only this axis ({', '.join(STRESS_AXES)}); may be repeated. By default noise and "
        "bags, which take digits; witness needs no data, but a GPU.",
        "model": f"Only this model ({', '.join(STRESS_MODELS)}); may be repeated.",
    },
)
def stress(options: StressOptions) -> None:
    """Put every model under stress: few targets, wrong labels, few training bags.

    Every seed draws bags of its own. A stopped study resumes when the command runs again.

    Example: sgpmil experiment stress --data data --axis bags --jobs 8

    Example: sgpmil experiment stress --axis witness --device gpu --jobs 4
    """
    _study(options, plan_stress(options), compare_stress, write_stress_tables)


def _study(
    options: DesignStudyOptions,
    jobs: Sequence[DesignJob],
    run: Callable[..., dict[str, str]],
    write: Callable[[Path, Sequence[int]], tuple[Path, ...]],
) -> None:
    if options.dry_run:
        _show_plan(options, jobs)
        return
    if options.tables:
        _end(options.out, _show_tables(options, jobs, write), {}, is_stopped=False)
        return
    errors: dict[str, str] = {}
    stopped = False
    console.print(f"{counted(len(jobs), 'run')} into {options.out}.")
    try:
        errors = run(options, jobs, show_progress=True)
    except KeyboardInterrupt:
        stopped = True
    _end(options.out, _show_tables(options, jobs, write), errors, is_stopped=stopped)


def show_runs(jobs: Sequence[FiledJob], out: Path) -> set[str]:
    """List the runs of a study; return the keys of those that are to do."""
    todo = {file.key for file in unfinished([job.file for job in jobs], out, overwrite=True)}
    for job in jobs:
        console.print(f"{job.file.key}{'' if job.file.key in todo else ' (done)'}")
    console.print(f"{len(todo)} of {len(jobs)} runs to do, into {out}.")
    return todo


def _show_plan(options: DesignStudyOptions, jobs: Sequence[DesignJob]) -> None:
    """List the runs, and estimate their time from the finished ones of the same kind."""
    todo = show_runs(jobs, options.out)
    finished = read_scored(options.out)
    left = [job for job in jobs if job.file.key in todo]
    known = [_seconds_like(job, finished) for job in left]
    sure = [seconds for seconds in known if seconds is not None]
    if sure:
        hours = statistics.fmean(sure) * len(left) / options.jobs / 3600
        console.print(
            f"About {hours:.1f} hours in {counted(options.jobs, 'process', 'processes')}, by the "
            f"finished runs ({len(sure)} of {len(left)} have one of their kind)."
        )


def _seconds_like(job: DesignJob, finished: Sequence[ScoredRun]) -> float | None:
    same = [
        run.seconds
        for run in finished
        if (run.data_set, run.design) == (job.data_set.name, job.design.name)
    ]
    return statistics.median(same) if same else None


def _show_tables(
    options: DesignStudyOptions,
    jobs: Sequence[DesignJob],
    write: Callable[[Path, Sequence[int]], tuple[Path, ...]],
) -> tuple[Path, ...]:
    """Write the tables of the seeds, and print the columns that matter most."""
    seeds = parse_seeds(options.seeds)
    runs = read_scored(options.out, seeds)
    for data_set in dict.fromkeys(job.data_set.name for job in jobs):
        names = dict.fromkeys(j.design.name for j in jobs if j.data_set.name == data_set)
        here = {
            name: [r for r in runs if r.data_set == data_set and r.design == name] for name in names
        }
        rows = [
            (name, len(own), *(column_interval(own, column).text for column in _PRINTED))
            for name, own in here.items()
            if own
        ]
        if rows:
            header = ["design", "seeds", *(COLUMN_NAMES[column] for column in _PRINTED)]
            grid(data_set, header, [[str(cell) for cell in row] for row in rows])
    return write(options.out, seeds)


@command(
    LipschitzStudyOptions,
    names={"sets": "set"},
    texts={"sets": f"Only this data set ({', '.join(ABLATION_SETS)}); may be repeated."},
)
def lipschitz_study(options: LipschitzStudyOptions) -> None:
    """Bound how much trained models amplify a change of an instance, and check the bounds.

    SGPMIL, AGP and ABMIL are trained on digits and colon. A stopped study resumes when the command
    runs again.

    Example: sgpmil experiment lipschitz --data data --seeds 0-4
    """
    jobs = plan_lipschitz(options)
    if options.dry_run:
        _show_plan(options, jobs)
        return
    errors: dict[str, str] = {}
    stopped = False
    if not options.tables:
        console.print(f"{counted(len(jobs), 'run')} into {options.out}.")
        try:
            errors = compare_lipschitz(options, jobs, show_progress=True)
        except KeyboardInterrupt:
            stopped = True
    written = write_lipschitz_tables(options.out, parse_seeds(options.seeds))
    _end(options.out, written, errors, is_stopped=stopped)


@command(
    StabilityOptions,
    texts={"design": f"Only this design ({', '.join(STABILITY_DESIGNS)}); may be repeated."},
)
def stability(options: StabilityOptions) -> None:
    """Train under hostile conditions, and count what fails.

    A training fails by an error, or by a loss, a weight or a prediction that is not finite. A
    stopped study resumes when the command runs again.

    Example: sgpmil experiment stability --jobs 8
    """
    jobs = plan_stability(options)
    if options.dry_run:
        todo = unfinished([job.file for job in jobs], options.out, overwrite=True)
        console.print(f"{len(todo)} of {len(jobs)} runs to do, into {options.out}.")
        return
    errors: dict[str, str] = {}
    stopped = False
    if not options.tables:
        console.print(f"{counted(len(jobs), 'run')} into {options.out}.")
        try:
            errors = measure_stability(options, jobs, show_progress=True)
        except KeyboardInterrupt:
            stopped = True
    written = write_stability_tables(options.out, options.runs)
    runs = read_stability(options.out, options.runs)
    grid(
        "Failed trainings",
        ["design", "trainings", "failed"],
        [
            [name, str(len(own)), str(failures(own))]
            for name in STABILITY_DESIGNS
            if (own := [run for run in runs if run.design == name])
        ],
    )
    _end(options.out, written, errors, is_stopped=stopped)


def _end(
    out: Path, written: Sequence[Path], errors: Mapping[str, str], *, is_stopped: bool
) -> None:
    """Name the files, and say what failed or how to go on."""
    files = ", ".join(path.name for path in written)
    console.print(f"Written to {shlex.quote(str(out))}: {files}")
    if is_stopped:
        typer.echo("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130)
    report_errors(errors)


def report_errors(errors: Mapping[str, str]) -> None:
    """Name the runs that failed, and say so in the exit code."""
    if not errors:
        return
    typer.echo(f"{len(errors)} failed; run the command again to retry:", err=True)
    for job, error in errors.items():
        typer.echo(harmless(as_flags(f"  {job}: {error}")), err=True)
    raise typer.Exit(1)
