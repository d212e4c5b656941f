"""`sgpmil lipschitz`."""

from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.output import console, grid
from sgpmil.errors import CheckpointError

__all__ = ["lipschitz"]


def lipschitz(
    run: Annotated[
        Path, typer.Argument(help="A run, the folder of a fold, or a .safetensors file.")
    ],
    raw_features: Annotated[
        bool,
        typer.Option(
            "--raw-features",
            help="Bound changes of the features as they come, not of standardised ones.",
        ),
    ] = False,
) -> None:
    """Bound how much a model can amplify a change of an instance (sgpmil, agp, abmil)."""
    from sgpmil.evaluation.lipschitz import lipschitz_paths, summarise_paths
    from sgpmil.models import load_model

    models = _models(run)
    paths = [
        lipschitz_paths(load_model(path)[0], raw_features=raw_features) for path in models.values()
    ]
    grid(
        f"{run}: Lipschitz bounds on {'raw' if raw_features else 'standardised'} features",
        ["path", *models, *(["mean ± sd"] if len(models) > 1 else [])],
        [
            [
                summary.name,
                *(f"{value:.4g}" for value in summary.values),
                *([f"{summary.mean:.4g} ± {summary.sd:.2g}"] if len(models) > 1 else []),
            ]
            for summary in summarise_paths(paths)
        ],
    )
    for path in paths[0]:
        console.print(f"{path.name}: {' × '.join(factor.name for factor in path.factors)}")
    console.print("'all layers' bounds no path: it leaves out the pooling and the posterior.")


def _models(run: Path) -> dict[str, Path]:
    from sgpmil.runs.run import Run, is_run

    if not is_run(run):
        return {run.name if run.is_dir() else run.stem: run}
    folds = Run.open(run).folds
    trained = {f"fold {name}": f.checkpoint for name, f in folds.items() if f.checkpoint}
    if not trained:
        raise CheckpointError(
            f"Expected a trained fold in {run}, but got none. Go on with the run (--resume)."
        )
    if len(trained) < len(folds):
        console.print(f"{len(folds) - len(trained)} of {len(folds)} folds are not trained.")
    return trained
