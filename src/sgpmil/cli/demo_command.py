"""`sgpmil demo`: everything once, on data that comes with the package."""

import shlex
import time
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.options import Overwrite, Resume
from sgpmil.cli.output import MODEL_NAMES, console, print_summary

__all__ = ["demo"]

_ENCODER = "efficientnet-lite0"
_SIZE = "4096x3072"


def demo(
    run: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("runs/demo"),
    digits: Annotated[
        bool,
        typer.Option("--digits", help="Bags of handwritten digits instead: needs no slides part."),
    ] = False,
    model: Annotated[str, typer.Option(help=f"{MODEL_NAMES}.")] = "sgpmil",
    num_slides: Annotated[int, typer.Option(help="Number of synthetic slides.")] = 40,
    folds: Annotated[int, typer.Option(help="Number of folds of --digits.")] = 5,
    epochs: Annotated[
        int | None, typer.Option(help="Number of epochs; the model's own by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Everything once: synthetic slides, embeddings, training, evaluation, maps (no download)."""
    if digits:
        _digits(run, model, folds, epochs, seed, resume, overwrite)
        return
    again = ["--resume"] * resume + ["--overwrite"] * overwrite
    _slides(run, _steps(run, num_slides, model, epochs, seed, again))


def _steps(
    run: Path, num_slides: int, model: str, epochs: int | None, seed: int, again: list[str]
) -> list[list[str]]:
    """Write the demo down as commands."""
    phantoms, embeddings = run / "phantoms", run / "embeddings"
    features = embeddings / "20x_256px_0px_overlap" / f"features_{_ENCODER}"
    length = () if epochs is None else ("--epochs", epochs)
    steps: list[tuple[object, ...]] = [
        ("phantom", phantoms, "--num-slides", num_slides, "--size", _SIZE, "--seed", seed),
        ("extract", phantoms / "slides", "--out", embeddings, "--encoder", _ENCODER),
        (
            *("train", "--features", features, "--labels", phantoms / "labels.csv"),
            *("--run", run / "run", "--model", model, *length, "--seed", seed, *again),
        ),
        (
            *("evaluate", run / "run", "--annotations", phantoms / "annotations"),
            *("--out", run / "evaluation", "--overwrite"),
        ),
        (
            *("explain", run / "run", "--slides", phantoms / "slides"),
            *("--annotations", phantoms / "annotations", "--most", 4),
            *("--out", run / "explanation", "--overwrite"),
        ),
    ]
    return [[str(word) for word in step] for step in steps]


def _slides(run: Path, steps: list[list[str]]) -> None:
    """Run the commands."""
    from sgpmil.cli.main import app

    start = time.perf_counter()
    console.print(
        "Synthetic slides (drawn, not patients'): half of them have a tumour on 5 % of the tissue. "
        "The model is told the slides' labels alone. Each step is a command of its own:"
    )
    for step in steps:
        console.print(f"\n$ sgpmil {shlex.join(step)}", style="bold")
        failure = app(step, standalone_mode=False)
        if failure:
            raise typer.Exit(failure)
    console.print("\nMaps of where the model looked, over the slides and their tumours:")
    for path in sorted((run / "explanation" / "maps").glob("*.png")):
        console.print(f"  {path}")
    console.print(f"Evaluation: {run / 'evaluation'}")
    console.print(f"All of it took {time.perf_counter() - start:.0f} s.")
    console.print("Next, your own slides: sgpmil extract SLIDES --out EMBEDDINGS")


def _digits(
    run: Path,
    model: str,
    folds: int,
    epochs: int | None,
    seed: int,
    resume: bool,
    overwrite: bool,
) -> None:
    import torch

    from sgpmil.experiments.digits import run_demo

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
