"""`sgpmil experiment`: comparisons on real data sets."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from sgpmil.cli.output import MODEL_NAMES, console, grid

if TYPE_CHECKING:
    from sgpmil.experiments.study import Job

__all__ = ["app", "models"]

app = typer.Typer(no_args_is_help=True, help="Compare models on real data sets.")


@app.callback()
def _experiment() -> None:
    pass  # without it, typer would make the only command the whole group


@app.command("models")
def models(
    data: Annotated[
        Path,
        typer.Option(
            help="Folder of data sets: colon/, mnist/, classic_mil/*.npz; any of them will do."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/models"),
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Only this data set (colon, mnist, musk1, musk2, fox, tiger, elephant); may be "
            "repeated. All that are there by default.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"Only this model ({MODEL_NAMES}); may be repeated."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of seeds. By default 3 on colon and mnist, 1 on the others."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes, of one thread each.")] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    epochs: Annotated[
        int | None,
        typer.Option(
            help="Epochs of every model, whatever is its own: 1 to see whether all of it works. "
            "Takes a folder of its own (--out)."
        ),
    ] = None,
    timing: Annotated[
        bool,
        typer.Option(
            "--timing",
            help="Train nothing to its end, but time an epoch of each model, one after another in "
            "this process.",
        ),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Run jobs again whose results are of other settings."),
    ] = False,
) -> None:
    """Train every model on real data sets and write one table; a second call goes on."""
    from sgpmil.experiments.model_study import (
        choose_models,
        choose_sets,
        plan_model_study,
        plan_timing,
    )
    from sgpmil.processes import compute_device

    compute_device(device)  # found out now, not by every job
    chosen_sets, chosen_models = choose_sets(data, sets or ()), choose_models(model or ())
    what = f"{', '.join(chosen_models)} on {', '.join(chosen_sets)}"
    if timing:
        console.print(f"Timing {what}.")
        _time(plan_timing(data, chosen_sets, chosen_models, device=device), out)
        return
    planned = plan_model_study(
        data, chosen_sets, chosen_models, seeds=seeds, epochs=epochs, device=device
    )
    console.print(f"{what}: {len(planned)} runs into {out}.")
    _run(planned, out, processes=jobs, epochs=epochs, overwrite=overwrite)


def _run(
    jobs: "list[Job]", out: Path, *, processes: int, epochs: int | None, overwrite: bool
) -> None:
    from sgpmil.experiments.job_files import is_done
    from sgpmil.experiments.study import run_jobs

    try:
        results = run_jobs(
            jobs, out, processes=processes, conditions={"epochs": epochs}, overwrite=overwrite
        )
    except KeyboardInterrupt:
        _show_table(out, jobs)
        typer.echo("Interrupted. Call again to go on.", err=True)
        raise typer.Exit(130) from None
    _show_table(out, jobs)
    pairs = zip(jobs, results, strict=True)
    _report({job.file.key: found["error"] for job, found in pairs if not is_done(found)})


def _time(jobs: "list[Job]", out: Path) -> None:
    from sgpmil.experiments.job_files import StudyPlan
    from sgpmil.experiments.job_progress import job_progress
    from sgpmil.experiments.model_timing import time_models

    with job_progress(len(jobs), done=0, show=True) as bar:
        timed = time_models(
            jobs, out, on_start=lambda key: bar.running([key]), on_done=bar.finished
        )
    rows = [
        (found.data_set, found.model, "–" if found.seconds is None else f"{found.seconds:.3f}")
        for found in timed
    ]
    grid("Seconds an epoch", ("data set", "model", "s/epoch"), rows)
    if StudyPlan.read(out).jobs:
        _show_table(out, jobs)
    _report({f"{f.data_set}/{f.model}": f.error for f in timed if f.error is not None})


def _show_table(out: Path, jobs: "list[Job]") -> None:
    """Write the table of all that the folder holds, and print the data sets of these jobs."""
    from sgpmil.experiments.model_rows import read_rows
    from sgpmil.experiments.model_table import COLUMNS, cells, write_table

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
    place = console if console.is_terminal else Console(width=_WIDEST, markup=False)
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


def _report(errors: dict[str, str]) -> None:
    """Name the jobs that failed, and say so in the exit code."""
    if not errors:
        return
    typer.echo(f"{len(errors)} failed; the same call tries again:", err=True)
    for job, error in errors.items():
        typer.echo(f"  {job}: {error}", err=True)
    raise typer.Exit(1)
