"""`sgpmil demo` and `doctor`: commands for a first look."""

import platform
import shlex
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
import typer

from sgpmil.cli.commands import command
from sgpmil.cli.output import MODEL_NAMES, console, facts, print_summary
from sgpmil.experiments.digits import run_demo
from sgpmil.options import Options

_ENCODER = "efficientnet-lite0"
_SIZE = "4096x3072"
_CORE = (
    "sgpmil",
    "torch",
    "gpytorch",
    "lightning-fabric",
    "numpy",
    "scikit-learn",
    "h5py",
    "pyarrow",
)
_PARTS = {
    "slides (read slide files)": ("openslide", 'pip install "sgpmil[slides]"'),
    "encoders (embed patches)": ("timm", 'pip install "sgpmil[encoders]"'),
    "export (hub, ONNX)": ("onnxscript", 'pip install "sgpmil[export]"'),
    "viewer (web page)": ("fastapi", 'pip install "sgpmil[viewer]"'),
    "ray (several machines)": ("ray", 'pip install "sgpmil[ray]"'),
    "TensorBoard": ("tensorboard", 'pip install "sgpmil[tracking]"'),
    "MLflow": ("mlflow", "pip install mlflow"),
    "Weights & Biases": ("wandb", "pip install wandb"),
}


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


def doctor() -> None:
    """Show versions, the GPU and the optional parts.

    Example: sgpmil doctor
    """
    facts(
        "Versions",
        [("python", platform.python_version()), *((name, _version(name)) for name in _CORE)],
    )
    if torch.cuda.is_available():
        gpu = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        console.print(f"GPU: {gpu} (CUDA {torch.version.cuda}).")
    else:
        console.print(
            "GPU: none that PyTorch can use; everything runs on the CPU "
            f"({torch.get_num_threads()} threads)."
        )
    facts(
        "Optional parts",
        [
            (name, "installed" if find_spec(module) else f"not installed: {how}")
            for name, (module, how) in _PARTS.items()
        ],
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
