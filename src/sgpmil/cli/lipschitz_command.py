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
    if not (run / "run.json").exists():
        return {run.name if run.is_dir() else run.stem: run}
    from sgpmil.runs.run_folder import read_run

    folder = read_run(run)
    trained = [name for name in folder.folds if (folder.fold(name) / "checkpoint.json").exists()]
    if not trained:
        raise CheckpointError(
            f"Expected a trained fold in {run}, but got none. Go on with the run (--resume)."
        )
    if len(trained) < len(folder.folds):
        missing = len(folder.folds) - len(trained)
        console.print(f"{missing} of {len(folder.folds)} folds are not trained.")
    return {f"fold {name}": folder.fold(name) for name in trained}
