"""`sgpmil demo`: the whole flow at a first look."""

import shlex
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import typer

from sgpmil.cli.commands import command
from sgpmil.cli.output import MODEL_NAMES, console, print_summary
from sgpmil.experiments.digits import run_demo
from sgpmil.options import Options

_ENCODER = "efficientnet-lite0"
_SIZE = "4096x3072"


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """Options of the demo.

    Args:
        run: Folder to write to.
        digits: Use bags of handwritten digits instead of slides; needs no optional part.
        model: Name of the model.
        num_slides: Number of synthetic slides.
        folds: Number of folds, with ``digits``.
        epochs: Number of epochs; the model's own by default.
        seed: Seed.
        resume: Continue an interrupted demo.
        overwrite: Replace an existing demo.
    """

    run: Path = Path("runs/demo")
    digits: bool = False
    model: str = "sgpmil"
    num_slides: int = 40
    folds: int = 5
    epochs: int | None = None
    seed: int = 0
    resume: bool = False
    overwrite: bool = False


@command(DemoOptions, texts={"model": f"Model: {MODEL_NAMES}."})
def demo(options: DemoOptions) -> None:
    """Run the whole flow once.

    The steps are: synthetic slides, embeddings, training, evaluation, maps.

    Example: sgpmil demo --run runs/demo
    """
    if options.digits:
        _digits(options)
        return
    again = ["--resume"] * options.resume + ["--overwrite"] * options.overwrite
    run = options.run
    _slides(
        run, _steps(run, options.num_slides, options.model, options.epochs, options.seed, again)
    )


def _steps(
    run: Path, num_slides: int, model: str, epochs: int | None, seed: int, again: list[str]
) -> list[list[str]]:
    """Return the commands of the demo."""
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
        "Synthetic slides (drawn, not of patients): half of them have a tumour on 5 % of the "
        "tissue. The model sees the labels of the slides only. Each step is a command of its own:"
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


def _digits(options: DemoOptions) -> None:
    # Bags of nine digits are too little work to share between threads.
    torch.set_num_threads(1)
    console.print(
        "Bags of nine handwritten digits (scikit-learn's, 8×8 pixels), not slides: a bag is "
        "positive when it holds a 9. The model sees the labels of the bags only.",
        highlight=False,
    )
    made = run_demo(
        options.run,
        model=options.model,
        num_folds=options.folds,
        epochs=options.epochs,
        seed=options.seed,
        resume=options.resume,
        overwrite=options.overwrite,
    )
    print_summary(made.result.summary(), f"{options.model} on digit bags, {options.folds} folds")
    console.print(f"Results: {options.run}")
    for figure in made.figures:
        console.print(f"  {figure}")
    console.print("Next, your own embeddings: sgpmil inspect FOLDER --labels LABELS.csv")
