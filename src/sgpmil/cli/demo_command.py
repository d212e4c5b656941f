"""`sgpmil demo`: everything once, on data that comes with a package."""

from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.options import Overwrite, Resume
from sgpmil.cli.output import console, print_summary
from sgpmil.cli.train_command import MODEL_NAMES

__all__ = ["demo"]


def demo(
    run: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    model: Annotated[str, typer.Option(help=f"{MODEL_NAMES}.")] = "sgpmil",
    folds: Annotated[int, typer.Option(help="Number of folds.")] = 5,
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs; the model's own by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train, predict and measure on bags of real handwritten digits (no download)."""
    import torch

    from sgpmil.experiments.demo import run_demo

    # Bags of nine digits are too little work to share: a second thread only gets in the way.
    torch.set_num_threads(1)
    console.print(
        "Bags of nine handwritten digits (scikit-learn's, 8×8 pixels), not slides: a bag is "
        "positive when it holds a 9. The model is told the bags' labels alone.",
        highlight=False,
    )
    made = run_demo(
        run,
        model=model,
        num_folds=folds,
        epochs=epochs,
        seed=seed,
        resume=resume,
        overwrite=overwrite,
    )
    print_summary(made.result.summary(), f"{model} on digit bags, {folds} folds")
    console.print(f"Results: {run}")
    for figure in made.figures:
        console.print(f"  {figure}")
    console.print("Next, your own embeddings: sgpmil inspect FOLDER --labels LABELS.csv")
