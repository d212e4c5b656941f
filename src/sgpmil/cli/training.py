"""`sgpmil train` and `init`: commands that train."""

import math
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import Fold
from sgpmil.bags.target import OrdinalTarget
from sgpmil.cli.commands import command
from sgpmil.cli.output import MODEL_NAMES, console, grid, listed, print_summary
from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import Recipe
from sgpmil.experiments.train import (
    TrainOptions,
    label_columns,
    read_data,
    write_starter_recipe,
)
from sgpmil.experiments.train import train as train_run
from sgpmil.experiments.tune import TuneOptions, shown_value
from sgpmil.experiments.tune import tune as tune_recipe
from sgpmil.notebook import counted
from sgpmil.options import Options
from sgpmil.processes import is_first_process
from sgpmil.runs.run import Run
from sgpmil.scaleout.slurm import slurm_array
from sgpmil.training.cross_validation import select_folds

_SHOWN_TRIALS = 10


@command(
    TrainOptions,
    lists=["classes", "order"],
    names={"assignments": "set", "num_nodes": "nodes"},
    texts={"model": f"Model: {MODEL_NAMES}. Each has its own training settings."},
)
def train(
    options: TrainOptions,
    print_slurm: Annotated[
        bool,
        typer.Option(
            "--print-slurm",
            help="Train nothing: print a Slurm job array of this command, a task a fold.",
        ),
    ] = False,
) -> None:
    """Train on every fold.

    Example: sgpmil train --features embeddings --labels labels.csv --run runs/first

    Example: sgpmil train --recipe recipe.yaml --set training.weight-decay=1e-4
    """
    console.quiet = not is_first_process()
    if print_slurm:
        _print_slurm(options)
        return
    if options.num_nodes > 1 and "MASTER_ADDR" in os.environ:
        address = os.environ["MASTER_ADDR"]
        console.print(f"Waiting until {options.num_nodes} machines train, at {address}.")
    trained = train_run(options, show_progress=True, on_data=_print_data)
    result, run = trained.result, options.run
    print_summary(
        result.summary(), f"{trained.recipe.model.name}, {counted(len(result.metrics), 'fold')}"
    )
    figures = counted(len(trained.figures), "figure")
    console.print(f"Results: {run}, {figures} in {run / 'figures'}")
    opened, place = Run.open(run), shlex.quote(str(run))
    # All folds predict together, once all are done.
    first = shlex.quote(str(opened.folds[result.metrics[0].fold].path))
    model = first if opened.unfinished else place
    console.print(f"Next: sgpmil predict {model} NEW_FEATURES   or   sgpmil evaluate {place}")


def _print_slurm(options: TrainOptions) -> None:
    if not options.is_local or options.devices * options.num_nodes > 1:
        raise SettingsError(
            "Expected a job array of folds that each train on one device, but got `on`, `devices` "
            "or `nodes` as well. Leave them out."
        )
    if not float(options.gpus_per_job).is_integer():
        raise SettingsError(
            f"Expected whole GPUs for a task of Slurm (`gpus_per_job`), but got "
            f"{options.gpus_per_job:g}. Slurm shares none."
        )
    recipe = options.load_recipe()
    _, folds = read_data(recipe.data)  # what would fail in every task fails here
    script = slurm_array(
        ["sgpmil", *(word for word in sys.argv[1:] if word.replace("_", "-") != "--print-slurm")],
        select_folds(folds, options.fold or None),
        run=options.run,
        cpus=max(1, round(options.cpus_per_job)),
        gpus=int(options.gpus_per_job),
    )
    typer.echo(script, nl=False)


def _print_data(recipe: Recipe, bags: BagDataset, folds: Sequence[Fold]) -> None:
    columns = label_columns(recipe.data)
    if columns:
        console.print(f"Columns of {recipe.data.labels}: {columns}.", highlight=False)
    order = ", ".join(f"{index} = {name}" for index, name in enumerate(bags.target.names))
    order += " (ordered)" if isinstance(bags.target, OrdinalTarget) else ""
    made = "" if recipe.data.splits else " made by patient"
    console.print(
        f"{counted(len(bags), 'slide')} of {counted(bags.feature_dim, 'feature')}, classes "
        f"{order}; {counted(len(folds), 'fold')}{made}.",
        highlight=False,
    )


@command(
    TuneOptions,
    arguments=["recipe"],
    names={"assignments": "set"},
)
def tune(options: TuneOptions) -> None:
    """Search for the settings of a recipe that are best on validation slides.

    The trials run through Ray Tune, on this machine or on a cluster. They cannot read the test
    slides. The result is a recipe for sgpmil train.

    Example: sgpmil tune recipe.yaml --space training.learning-rate=1e-5..1e-3:log --trials 20

    Example: sgpmil tune recipe.yaml --space model.settings.num-inducing=16,32,64 --on ray
    """

    def say(bags: BagDataset, folds: Sequence[str], num_hidden: int) -> None:
        console.print(
            f"Fold {', '.join(folds)}: {counted(len(bags), 'slide')} to train and validate on; "
            f"{counted(num_hidden, 'test slide')} out of reach.",
            highlight=False,
        )

    found = tune_recipe(options, show_progress=True, on_data=say)
    keys = list(found.best.values)
    grid(
        f"The best of {counted(len(found.trials), 'trial')}, {found.metric.name} on validation",
        [found.metric.short_name, "epochs" if len(found.folds) == 1 else "folds", *keys],
        [
            [
                f"{found.value(trial):.4f}",
                str(0 if trial.progress is None else trial.progress.step),
                *(shown_value(trial.values[key]) for key in keys),
            ]
            for trial in found.trials[:_SHOWN_TRIALS]
            if not math.isnan(found.value(trial))
        ],
    )
    num_failed = sum(math.isnan(found.value(trial)) for trial in found.trials)
    if num_failed:
        console.print(f"{counted(num_failed, 'trial')} failed; the reasons are in {found.table}.")
    console.print(f"Written to {found.path} and {found.table}.")
    recipe, folds = shlex.quote(str(found.path)), " ".join(f"--fold {name}" for name in found.folds)
    console.print(f"Next: sgpmil train --recipe {recipe} {folds} --run RUN")
    if found.spoilt:
        console.print(
            f"Test slides of fold {listed(found.spoilt)} were trained or validated on in this "
            "search: results there would be too good."
        )


@dataclass(frozen=True, kw_only=True)
class InitOptions(Options):
    """Options of `init`.

    Args:
        path: Recipe to write.
        overwrite: Replace an existing file.
    """

    path: Path = Path("recipe.yaml")
    overwrite: bool = False


@command(InitOptions, arguments=["path"])
def init(options: InitOptions) -> None:
    """Write a recipe.

    Example: sgpmil init recipe.yaml
    """
    write_starter_recipe(options.path, overwrite=options.overwrite)
    console.print(f"Written to {options.path}. Edit it, then: sgpmil train --recipe {options.path}")
