"""`sgpmil demo`: the whole flow at a first look."""

import math
import shlex
import sys
import time
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import typer

from sgpmil.cli.commands import command
from sgpmil.cli.output import MODEL_NAMES, console, print_summary
from sgpmil.errors import RunFolderError
from sgpmil.evaluation.bootstrap import Intervals
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.experiments.digits import run_demo
from sgpmil.explanation.slide_choice import ChosenSlide, example_slides
from sgpmil.options import Options
from sgpmil.report.evaluate import EvaluateOptions, evaluate_run
from sgpmil.runs.description import is_run
from sgpmil.runs.material import read_material

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


@command(DemoOptions, names={"run": "run,out"}, texts={"model": f"Model: {MODEL_NAMES}."})
def demo(options: DemoOptions) -> None:
    """Run the whole flow once.

    The steps are: synthetic slides, embeddings, training, evaluation, maps, report.

    Example: sgpmil demo --run runs/demo
    """
    if options.digits:
        _digits(options)
    else:
        _slides(options)


def _slides(options: DemoOptions) -> None:
    """Go from synthetic slides to a report, a command at a time."""
    start = time.perf_counter()
    run, phantoms = options.run / "run", options.run / "phantoms"
    embeddings = options.run / "embeddings"
    features = embeddings / "20x_256px_0px_overlap" / f"features_{_ENCODER}"
    if is_run(run) and not (options.resume or options.overwrite):
        raise RunFolderError(
            f"The run {run} exists already. Resume it with `resume=True`, or replace it with "
            "`overwrite=True`."
        )
    steps = _Steps(options.run / "log.txt")
    console.print(
        "Synthetic slides (drawn, not of patients): half of them have a tumour on 5 % of the "
        "tissue. The model sees the labels of the slides only. Each step is a command of its own; "
        f"what it prints is in {steps.log}."
    )
    size = ("--num-slides", options.num_slides, "--size", _SIZE)
    steps.take("phantom", phantoms, *size, "--seed", options.seed)
    steps.take("extract", phantoms / "slides", "--out", embeddings, "--encoder", _ENCODER)
    length = () if options.epochs is None else ("--epochs", options.epochs)
    again = ("--resume",) * options.resume + ("--overwrite",) * options.overwrite
    steps.take(
        *("train", "--features", features, "--labels", phantoms / "labels.csv", "--run", run),
        *("--model", options.model, *length, "--seed", options.seed, *again),
    )
    annotations = ("--annotations", phantoms / "annotations")
    steps.show("evaluate", run, *annotations)
    _print_findings(run, phantoms / "annotations")
    shown = _examples(run)
    only = tuple(word for one in shown.values() for word in ("--only", one.slide_id))
    pictures = ("--slides", phantoms / "slides", *annotations)
    # The report draws the prototypes.
    steps.take("explain", run, *pictures, *only, "--prototypes", "none", "--overwrite")
    steps.take("report", run, *pictures, "--overwrite")
    console.print("\nThree of the slides, and their maps:")
    for kind, one in shown.items():
        prediction = one.prediction
        predicted = prediction.predicted_class
        name = one.fold.test.target.names[predicted]
        console.print(
            f"  {kind}: {one.slide_id}, {name} {prediction.probability_text(predicted)}, "
            f"{run / 'explanation' / 'maps' / f'{one.name}.png'}"
        )
    console.print(f"\nAll of it took {time.perf_counter() - start:.0f} s.")
    console.print("Next, your own slides: sgpmil extract SLIDES --out EMBEDDINGS")
    console.print(f"Open {run / 'report.html'} in a browser.")
    if find_spec("sgpmil.viewer"):
        console.print(f"Look into the slides: sgpmil view {shlex.quote(str(run))}")


class _Steps:
    """Commands that run one after another; what they print goes to a file.

    Bars of progress are shown where standard error is a terminal.

    Args:
        log: The file; replaced where it exists.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("", encoding="utf-8")

    def show(self, *words: object) -> list[str]:
        """Print a command, and return its words."""
        step = [str(word) for word in words]
        console.print(f"\n$ sgpmil {shlex.join(step)}", style="bold")
        return step

    def take(self, *words: object) -> None:
        """Print a command, run it, and print how long it took.

        Raises:
            typer.Exit: It failed.
            SgpmilError: As of the command.
        """
        from sgpmil.cli.main import app

        step, start = self.show(*words), time.perf_counter()
        with self.log.open("a", encoding="utf-8") as file, ExitStack() as redirected:
            file.write(f"$ sgpmil {shlex.join(step)}\n")
            redirected.enter_context(redirect_stdout(file))
            if not sys.stderr.isatty():
                redirected.enter_context(redirect_stderr(file))
            failure = app(step, standalone_mode=False)
        if failure:
            console.print(f"This step failed. {self.log} says why.", style="red")
            raise typer.Exit(failure)
        console.print(f"  {time.perf_counter() - start:.0f} s")


def _examples(run: Path) -> dict[str, ChosenSlide]:
    """Choose a slide of each class that is called rightly, and the least certain one."""
    material = read_material(run)
    chosen = example_slides(material, 1)
    names = material.target.names
    found = {
        f"rightly called {names[one.prediction.predicted_class]}": one
        for one in reversed(chosen.best)
    }
    return found | {"unsure": chosen.uncertain[0]}


def _print_findings(run: Path, annotations: Path) -> None:
    """Measure the run as ``sgpmil evaluate`` does, and print the results in a few lines."""
    options = EvaluateOptions(predictions=run, annotations=annotations)
    assessment = evaluate_run(options).assessment
    total, right = int(assessment.confusion.sum()), int(assessment.confusion.trace())
    means = {metric.name: metric.mean for metric in assessment.summary}
    interval = "" if assessment.overall is None else _interval(assessment.overall)
    console.print("  Each slide was predicted by a model that was not trained on it:")
    console.print(
        f"  {right} of {total} slides are called rightly; AUC {means['auc']:.3f}{interval}."
    )
    found = [
        f"{kind} {means[f'{kind}_auc']:.3f}"
        for kind in CLASS_SCORES
        if not math.isnan(means.get(f"{kind}_auc", math.nan))
    ]
    if found:
        console.print(
            f"  Patches of the tumours are found with an AUC of {', '.join(found)} "
            "(0.5 is chance), though no outline was shown in training."
        )
    for note in dict.fromkeys(assessment.notes):
        console.print(f"  {note}")


def _interval(intervals: Intervals) -> str:
    found = intervals.of("auc")
    return f" ({intervals.level:.0%} interval {found.low:.3f}–{found.high:.3f})"


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
