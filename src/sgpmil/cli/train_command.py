"""`sgpmil train` and `init`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.options import (
    CaseColumn,
    Classes,
    Device,
    LabelColumn,
    Labels,
    Overwrite,
    Resume,
    SharedCase,
    SkipBad,
    SkipMissing,
    SlideColumn,
    SlideTable,
    class_tuple,
)
from sgpmil.cli.output import console, print_summary
from sgpmil.models import BUILT_IN

__all__ = ["MODEL_NAMES", "init", "train"]

MODEL_NAMES = f"{', '.join(BUILT_IN)}, or a plug-in's"
"""The models of this package, by name."""


def train(
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="Recipe: a YAML file, or one of the package's own (paper, released); the other "
            "options replace its values."
        ),
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Folder of bag files, packed store, or .npz of many bags.")
    ] = None,
    labels: Labels = None,
    splits: Annotated[
        Path | None,
        typer.Option(
            help="CLAM, Patho-Bench or STAMP splits. Without them, five patient-grouped folds "
            "are made."
        ),
    ] = None,
    run: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/latest"),
    model: Annotated[
        str | None,
        typer.Option(
            help=f"{MODEL_NAMES}. Unless told otherwise, each is trained with its own settings."
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Settings of the model: default; released for most; paper for sgpmil; vis and enc "
            "for bayesmil. How it is trained stays; --recipe paper has both."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    bags_per_step: Annotated[
        int | None,
        typer.Option(
            help="Bags packed into a step. Without --learning-rate, the model's own rate is scaled "
            "by the root of how many times its own number of bags this is."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed.")] = None,
    device: Device = None,
    fold: Annotated[
        list[str] | None, typer.Option(help="Run only this fold; may be repeated.")
    ] = None,
    folds_at_once: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=8,
            help="Folds trained side by side on a GPU. By itself as many as are faster than one "
            "after another; fewer need less of its memory. Results are the same.",
        ),
    ] = None,
    devices: Annotated[
        int,
        typer.Option(
            min=1,
            help="GPUs that divide each step's bags among them; with --device cpu, processes.",
        ),
    ] = 1,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, such as training.weight-decay=1e-4."),
    ] = None,
    classes: Classes = None,
    slide_column: SlideColumn = None,
    label_column: LabelColumn = None,
    case_column: CaseColumn = None,
    slide_table: SlideTable = None,
    skip_missing: SkipMissing = False,
    skip_bad: SkipBad = False,
    cache: Annotated[
        Path | None, typer.Option(help="Packed store to make of the bags and read from.")
    ] = None,
    shared_case: SharedCase = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train on every fold, test each on its own test set, and draw the figures."""
    from sgpmil.experiments.recipe import load_recipe
    from sgpmil.experiments.recipe_run import read_data, run_recipe
    from sgpmil.report.figures.run_figures import write_run_figures

    loaded = load_recipe(
        recipe,
        values={
            "data.features": features,
            "data.labels": labels,
            "data.splits": splits,
            "data.classes": class_tuple(classes),
            "data.slide_column": slide_column,
            "data.label_column": label_column,
            "data.case_column": case_column,
            "data.slide_table": slide_table,
            "data.skip_missing": skip_missing or None,
            "data.skip_bad": skip_bad or None,
            "data.cache": cache,
            "data.shared_case": shared_case,
            "model.name": model,
            "model.settings.preset": preset,
            "training.epochs": epochs,
            "training.learning_rate": learning_rate,
            "training.bags_per_step": bags_per_step,
            "training.seed": seed,
            "training.device": device,
        },
        assignments=assignments or (),
    )
    bags, folds = read_data(loaded.data)
    order = ", ".join(f"{index} = {name}" for index, name in enumerate(bags.target.names))
    console.print(
        f"{len(bags)} slides of {bags.feature_dim} features, classes {order}; "
        f"{len(folds)} folds{'' if loaded.data.splits else ' made by patient'}.",
        highlight=False,
    )
    result = run_recipe(
        loaded,
        bags,
        folds,
        run,
        resume=resume,
        overwrite=overwrite,
        only_folds=fold,
        folds_at_once=folds_at_once,
        devices=devices,
    )
    figures = write_run_figures(run / "figures", result.predictions)
    print_summary(result.summary(), f"{loaded.model.name}, {len(result.metrics)} folds")
    console.print(f"Results: {run}, {len(figures)} figures in {run / 'figures'}")
    first = shlex.quote(str(run / f"fold-{result.metrics[0].fold}"))
    console.print(
        f"Next: sgpmil predict {first} NEW_FEATURES   or   sgpmil evaluate {shlex.quote(str(run))}"
    )


def init(
    path: Annotated[Path, typer.Argument(help="Recipe to write.")] = Path("recipe.yaml"),
    overwrite: Overwrite = False,
) -> None:
    """Write a commented recipe to start from."""
    from sgpmil.bags.files import write_text
    from sgpmil.errors import SettingsError
    from sgpmil.experiments.recipe import starter_recipe

    if path.exists() and not overwrite:
        raise SettingsError(f"{path} exists already. Replace it with --overwrite.")
    write_text(path, starter_recipe())
    console.print(f"Written to {path}. Edit it, then: sgpmil train --recipe {path}")
