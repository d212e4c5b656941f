"""`sgpmil evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.output import console, print_summary

__all__ = ["evaluate"]


def evaluate(
    predictions: Annotated[
        Path,
        typer.Argument(
            help="A run, the folder of a fold or of predictions, a predictions.parquet, or a CSV "
            "with columns slide_id, label, p_0, p_1, …"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write the metrics, a row a fold, to this .parquet.")
    ] = None,
) -> None:
    """Measure predictions: ours, or any other system's."""
    from sgpmil.evaluation import evaluate as evaluate_table
    from sgpmil.evaluation import read_predictions, summarise, write_metrics
    from sgpmil.evaluation.prediction_folder import read_prediction_folder
    from sgpmil.training.run_folder import read_run

    if (predictions / "run.json").exists():
        run = read_run(predictions)
        done = [name for name in run.folds if run.is_done(name)]
        if len(done) < len(run.folds):
            console.print(f"{len(run.folds) - len(done)} of {len(run.folds)} folds are not done.")
        folds = [evaluate_table(run.read(name), name) for name in done]
    elif predictions.is_dir():
        folds = [evaluate_table(read_prediction_folder(predictions), "0")]
    else:
        folds = [evaluate_table(read_predictions(predictions), "0")]
    print_summary(summarise(folds), str(predictions))
    if out is not None:
        write_metrics(out, folds)
        console.print(f"Written to {out}")
