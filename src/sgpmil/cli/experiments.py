"""`sgpmil bench` and `experiment`: measurements and comparisons of models."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.measure import Measurement
from rich.table import Table

from sgpmil.cli.commands import command
from sgpmil.cli.output import MODEL_NAMES, console, facts, grid
from sgpmil.cli.studies import (
    ablations,
    lipschitz_study,
    report_errors,
    show_runs,
    stability,
    stress,
)
from sgpmil.experiments.bench import BenchOptions, BenchResult, bench_models
from sgpmil.experiments.cohorts.checks import CohortCheck, check_cohort
from sgpmil.experiments.cohorts.cohort import COHORTS
from sgpmil.experiments.cohorts.cohort import ROWS as COHORT_ROWS
from sgpmil.experiments.cohorts.measures import LOCALISED
from sgpmil.experiments.cohorts.plan import CohortOptions, CohortPlan, plan_cohort
from sgpmil.experiments.cohorts.report import write_report
from sgpmil.experiments.cohorts.study import train_cohort
from sgpmil.experiments.cohorts.tables import StudyResults, metric_rows
from sgpmil.experiments.compare_models import (
    CompareModelsOptions,
    compare_models,
    plan_comparison,
    time_epochs,
)
from sgpmil.experiments.jobs import StudyPlan
from sgpmil.experiments.mnist_rows import ROWS
from sgpmil.experiments.mnist_study import MnistOptions, compare_on_mnist, plan_mnist
from sgpmil.experiments.mnist_table import (
    HEADER,
    mnist_cells,
    read_mnist_runs,
    write_mnist_tables,
)
from sgpmil.experiments.model_table import COLUMNS, cells, read_rows, write_table
from sgpmil.experiments.study import Job
from sgpmil.experiments.uncertainty_designs import DESIGNS
from sgpmil.experiments.uncertainty_sets import UNCERTAINTY_SETS
from sgpmil.experiments.uncertainty_study import (
    UncertaintyJob,
    UncertaintyOptions,
    compare_uncertainty,
    parse_seeds,
    plan_uncertainty,
)
from sgpmil.experiments.uncertainty_table import (
    column_name,
    format_spread,
    read_runs,
    spreads,
    write_tables,
)
from sgpmil.notebook import counted
from sgpmil.terminal import HarmlessConsole

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Compare models on real data sets."
)


@command(BenchOptions)
def bench(options: BenchOptions) -> None:
    """Measure time and memory.

    The bags have random features and exp(N(log 2200, 0.6)) instances each, from 200 to 12,000: 270
    to train on and 129 to predict.

    Example: sgpmil bench --model sgpmil --model abmil
    """
    found = bench_models(options, show_progress=True)
    _print_bench(found)
    names = ", ".join(path.name for path in found.files)
    console.print(f"Written to {shlex.quote(str(options.out))}: {names}")


def _print_bench(found: BenchResult) -> None:
    settings, load = found.settings, found.settings.workload
    grid(
        f"{load.train_bags} training and {load.test_bags} test bags, sizes × {load.scale:g}, "
        f"{settings.device}, median of {settings.repeats}",
        ["model", "parameters", "train s/epoch", "predict s", "GiB, both"],
        [
            (row.model, row.error, "", "", "")
            if row.error is not None
            else (
                row.model,
                f"{row.parameters:,}",
                _seconds(row.train_seconds),
                _seconds(row.predict_seconds),
                f"{_gibibytes(row.train_bytes)}, {_gibibytes(row.predict_bytes)}",
            )
            for row in found.rows
        ],
    )


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _gibibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**30:.2f}"


@app.callback()
def _experiment() -> None:
    pass  # without it, typer would make the only command the whole group


@app.command("models")
@command(
    CompareModelsOptions,
    names={"sets": "set"},
    texts={"model": f"Only this model ({MODEL_NAMES}); may be repeated."},
)
def models(options: CompareModelsOptions) -> None:
    """Train every model on real data sets and write one table.

    A stopped comparison resumes when the command runs again.

    Example: sgpmil experiment models --data data --set colon --seeds 1
    """
    jobs = plan_comparison(options)
    sets = dict.fromkeys(job.data_set.name for job in jobs)
    names = dict.fromkeys(job.variant.name for job in jobs)
    what = f"{', '.join(names)} on {', '.join(sets)}"
    if options.timing:
        console.print(f"Timing {what}.")
        _time(options, jobs)
        return
    console.print(f"{what}: {counted(len(jobs), 'run')} into {options.out}.")
    try:
        errors = compare_models(options, jobs, show_progress=True)
    except KeyboardInterrupt:
        _show_table(options.out, jobs)
        typer.echo("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130) from None
    _show_table(options.out, jobs)
    report_errors(errors)


@app.command("uncertainty")
@command(
    UncertaintyOptions,
    names={"sets": "set"},
    texts={
        "sets": f"Only this data set ({', '.join(UNCERTAINTY_SETS)}); may be repeated. By default "
        "all that are there, but for those of full size, which need a GPU.",
        "row": f"Only this design ({', '.join(DESIGNS)}) or model; may be repeated.",
    },
)
def uncertainty(options: UncertaintyOptions) -> None:
    """Measure what the uncertainty of designs is worth.

    Every seed draws training and test bags of its own. A stopped study resumes when the command
    runs again.

    Example: sgpmil experiment uncertainty --data data --set digits --seeds 0-9 --jobs 8
    """
    jobs = plan_uncertainty(options)
    if options.dry_run:
        show_runs(jobs, options.out)
        return
    console.print(f"{counted(len(jobs), 'run')} into {options.out}.")
    try:
        errors = compare_uncertainty(options, jobs, show_progress=True)
    except KeyboardInterrupt:
        _show_uncertainty(options, jobs)
        typer.echo("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130) from None
    _show_uncertainty(options, jobs)
    report_errors(errors)


@app.command("mnist")
@command(
    MnistOptions,
    texts={"row": f"Only this row of the table ({', '.join(ROWS)}); may be repeated."},
)
def mnist(options: MnistOptions) -> None:
    """Train every model on bags of all MNIST digits, for the SGPMIL paper's table.

    60,000 digits in bags of nine to train on, 10,000 to test, with a network of images in front of
    each model. Every seed deals the digits anew. A stopped study resumes when the command runs
    again.

    Example: sgpmil experiment mnist --data data --row sgpmil --row abmil --seeds 0-4
    """
    jobs = plan_mnist(options)
    if options.dry_run:
        show_runs(jobs, options.out)
        return
    console.print(f"{counted(len(jobs), 'run')} into {options.out}.")
    try:
        errors = compare_on_mnist(options, jobs, show_progress=True)
    except KeyboardInterrupt:
        _show_mnist(options)
        typer.echo("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130) from None
    _show_mnist(options)
    report_errors(errors)


def _show_mnist(options: MnistOptions) -> None:
    """Write the tables of all results in the folder, and print the main one."""
    runs = read_mnist_runs(options.out)
    for data_set in dict.fromkeys(run.data_set for run in runs):
        here = [run for run in runs if run.data_set == data_set]
        rows = [mnist_cells(here, row) for row in dict.fromkeys(run.row for run in here)]
        _print_fitting(f"{data_set}; in parentheses: the paper", HEADER, rows)
    written = write_mnist_tables(options.out)
    if written:
        console.print(f"Written to {options.out}: {', '.join(path.name for path in written)}")


@app.command("cohort")
@command(
    CohortOptions,
    arguments=["cohort"],
    lists=["regions"],
    texts={
        "cohort": f"Cohort of the paper: {', '.join(COHORTS)}.",
        "model": f"Only this row of the table ({', '.join(COHORT_ROWS)}), or another model "
        f"({MODEL_NAMES}); may be repeated.",
    },
)
def cohort(options: CohortOptions) -> None:
    """Train every model of the paper on one of its cohorts, to the paper's tables and figures.

    A stopped study resumes when the command runs again.

    Example: sgpmil experiment cohort camelyon16 --features features --labels labels.csv --dry-run
    """
    if options.dry_run:
        found = check_cohort(options, show_progress=True)
        _show_check(found, options)
        if not found.is_ready:
            raise typer.Exit(1)
        return
    plan = plan_cohort(options)
    num = len(plan.runs) * len(plan.folds)
    rows = dict.fromkeys(run.row.title for run in plan.runs)
    console.print(f"{', '.join(rows)} on {plan.cohort.title}: {counted(num, 'fold')}.")
    try:
        errors = train_cohort(plan, options, show_progress=True)
    except KeyboardInterrupt:
        _show_cohort(plan, options)
        typer.echo("Interrupted. Run the command again to continue.", err=True)
        raise typer.Exit(130) from None
    _show_cohort(plan, options)
    report_errors(errors)


def _show_cohort(plan: CohortPlan, options: CohortOptions) -> None:
    """Write tables and figures of what is finished, and print the first table."""
    files = write_report(plan, options)
    if not files:
        return
    results = StudyResults.read(plan)
    for level, metrics in (("slides", plan.cohort.metrics), ("instances", LOCALISED)):
        is_localised = level == "instances"
        if is_localised and not results.has_instances:
            continue
        header, rows = metric_rows(results, metrics, localised=is_localised)
        plain = [tuple(cell.replace("**", "") for cell in row) for row in rows]
        _print_fitting(f"{plan.cohort.title}, {level}", header, plain)
    console.print(f"Written to {plan.out}: results.md, and {len(files) - 1} other files.")


def _show_check(found: CohortCheck, options: CohortOptions) -> None:
    rows = [(one.about, f"{'✗ ' if one.is_problem else ''}{one.text}") for one in found.findings]
    facts(f"Files of {options.cohort}", rows)
    estimate = found.estimate
    if estimate is not None:
        grid(
            f"Estimated from {estimate.hardware}, one after another",
            ("model", "epochs", "time"),
            [
                (one.row.title, _range(one.epochs, str), _range(one.seconds, _duration))
                for one in estimate.rows
            ],
        )
        where = "the GPU" if estimate.is_gpu else "each process"
        memory = _gibibytes(estimate.process_bytes * estimate.jobs)
        features, store, runs, free = map(
            _gibibytes,
            (estimate.feature_bytes, estimate.store_bytes, estimate.run_bytes, found.free_bytes),
        )
        facts(
            "In all",
            [
                ("time", f"{_range(estimate.seconds, _duration)}, `jobs={estimate.jobs}`"),
                ("memory", f"up to {memory} GiB, and {features} GiB of features in {where}"),
                (
                    "disk",
                    f"{store} GiB of packed features, {runs} GiB of runs; {free} GiB are free",
                ),
            ],
        )
    ready = "Ready. Run the command without --dry-run."
    console.print(ready if found.is_ready else "Not ready: see the lines with ✗.")


def _range(values: tuple[Any, Any], text: Callable[[Any], str]) -> str:
    least, most = map(text, values)
    return least if least == most else f"{least} to {most}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


app.command("ablations")(ablations)
app.command("stress")(stress)
app.command("stability")(stability)
app.command("lipschitz")(lipschitz_study)

_SHORT = ("auc", "ace", "nll", "nll_t", "errors_max", "best", "process_share")


def _show_uncertainty(options: UncertaintyOptions, jobs: Sequence[UncertaintyJob]) -> None:
    """Write the tables of the seeds, and print the columns that matter most."""
    seeds = parse_seeds(options.seeds)
    runs = read_runs(options.out, seeds)
    for data_set in dict.fromkeys(job.data_set for job in jobs):
        here = [run for run in runs if run.data_set == data_set]
        shifted = dict.fromkeys(k for run in here for k in run.columns if k.startswith("auc@"))
        columns = [*_SHORT[:-2], *shifted, *_SHORT[-2:]]
        rows = []
        for design in dict.fromkeys(run.design for run in here):
            found = spreads(here, design, columns)
            rows.append((design, *(format_spread(found[column]) for column in columns)))
        title = f"{data_set}, seeds {options.seeds}"
        _print_fitting(title, ["design", *map(column_name, columns)], rows)
    written = write_tables(options.out, seeds, options.reference, seeds_text=options.seeds)
    console.print(f"Written to {options.out}: {', '.join(path.name for path in written)}")


def _time(options: CompareModelsOptions, jobs: list[Job]) -> None:
    timed = time_epochs(options, jobs, show_progress=True)
    rows = [
        (found.data_set, found.model, "–" if found.seconds is None else f"{found.seconds:.3f}")
        for found in timed
    ]
    grid("Seconds an epoch", ("data set", "model", "s/epoch"), rows)
    if StudyPlan.read(options.out).jobs:
        _show_table(options.out, jobs)
    report_errors({f"{f.data_set}/{f.model}": f.error for f in timed if f.error is not None})


def _show_table(out: Path, jobs: list[Job]) -> None:
    """Write the table of all results in the folder, and print the data sets of these jobs."""
    rows = read_rows(out)
    if not rows:
        return
    for data_set in dict.fromkeys(job.data_set.name for job in jobs):
        _print_fitting(data_set, COLUMNS, [cells(r) for r in rows if r.data_set == data_set])
    console.print(f"Written to {' and '.join(str(path) for path in write_table(out, rows))}")


_WIDEST = 500
_DISPENSABLE = ("parameters", "worst AUC", "NLL", "balanced accuracy", "s/epoch", "ACE")


def _print_fitting(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whole, or on a narrow terminal without the columns that matter least."""
    # A file or a pipe has no width to keep to.
    place = console if console.is_terminal else HarmlessConsole(width=_WIDEST, markup=False)
    shown = list(header)
    for column in (None, *_DISPENSABLE):
        shown = [name for name in shown if name != column]
        table = Table(*shown, title=title, title_justify="left")
        for row in rows:
            table.add_row(*(cell for name, cell in zip(header, row, strict=True) if name in shown))
        unbound = place.options.update(width=_WIDEST)
        if Measurement.get(place, unbound, table).maximum <= place.width:
            break
    place.print(table)
