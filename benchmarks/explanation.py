"""How long a slide of 200,000 patches takes to explain, and how much memory.

    python benchmarks/explanation.py [--patches 200000] [--classes 2] [--only NAME …]

Makes scores and coordinates of a slide (two pieces of tissue whose grids are not aligned with each
other) and runs each step in a process of its own: the map of the attention's mean and standard
deviation, each export of it, the figures, and the command ``sgpmil explain`` as a whole: maps, key
patches and prototypes of embeddings with 1,024 features. Prints seconds of the step alone, and the
peak memory of the whole process. "start" is what importing the package and making the scores takes;
the command's seconds include its own start.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.exports import (
    write_patch_table,
    write_qupath_geojson,
    write_score_tiff,
    write_tiatoolbox_overlay,
)
from sgpmil.explanation.maps import ScoreMap, patch_side, placed_coords, score_map

SIDE = 512
PROTOTYPES = 32
FEATURES = 1024

Step = Callable[[InstanceScores, tuple[str, ...], Path], None]


def make_scores(num_patches: int, num_classes: int) -> InstanceScores:
    """Make the scores of a slide: a large piece of tissue and, beside it, a small one."""
    rng = np.random.default_rng(0)
    columns = int(np.sqrt(num_patches))
    index = np.arange(num_patches)
    coords = np.stack([index % columns, index // columns], axis=1) * SIDE
    coords[-num_patches // 10 :] += (37, 3 * SIDE + 11)
    evidence = rng.normal(size=(num_patches, num_classes)).astype(np.float32)
    return InstanceScores(
        attention_mean=rng.random(num_patches).astype(np.float32),
        attention_std=rng.random(num_patches).astype(np.float32),
        evidence_mean=evidence,
        evidence_std=np.abs(evidence) / 10,
        coords=coords,
        patch_size=SIDE,
    )


def make_maps(scores: InstanceScores) -> dict[str, ScoreMap]:
    """Make the maps of a slide's attention."""
    place = placed_coords(scores), patch_side(scores)
    return {
        "attention mean": score_map(*place, scores.attention_mean),
        "attention sd": score_map(*place, scores.attention_std),
    }


def _start(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    """Do nothing."""


def _map(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    make_maps(scores)


def _tiff(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    write_score_tiff(folder / "slide.ome.tiff", make_maps(scores), mpp=0.25)


def _qupath(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    rng = np.random.default_rng(1)
    write_qupath_geojson(
        folder / "slide.geojson",
        "slide",
        scores,
        classes,
        prototypes=rng.integers(PROTOTYPES, size=scores.num_instances),
        similarity=rng.random(scores.num_instances).astype(np.float32),
    )


def _tiatoolbox(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    write_tiatoolbox_overlay(folder / "slide.geojson", "slide", scores, classes)


def _parquet(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    write_patch_table(folder / "slide.parquet", "slide", scores, classes)


def _csv(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    write_patch_table(folder / "slide.csv", "slide", scores, classes)


def _figure(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    from sgpmil.report.figures.canvas import save_figure
    from sgpmil.report.figures.map_figures import attention_map_figure

    save_figure(attention_map_figure(scores, "slide", 1, classes[1]), folder / "map.png")


def _patches(scores: InstanceScores, classes: tuple[str, ...], folder: Path) -> None:
    from sgpmil.explanation.key_patches import key_patches
    from sgpmil.report.figures.canvas import save_figure
    from sgpmil.report.figures.patch_figures import key_patch_figure

    found = key_patches(scores, 1)
    save_figure(key_patch_figure(scores, found, "slide", classes[1]), folder / "patches.png")


STEPS: dict[str, Step] = {
    "start": _start,
    "map": _map,
    "map and TIFF": _tiff,
    "QuPath GeoJSON": _qupath,
    "TIAToolbox overlay": _tiatoolbox,
    "Parquet": _parquet,
    "CSV": _csv,
    "figure of the map": _figure,
    "figure of patches": _patches,
}
COMMAND = "sgpmil explain"
"""The step that runs the command, which measures itself."""


def write_fold(folder: Path, num_patches: int, num_classes: int) -> tuple[Path, Path]:
    """Write a fold that tested one slide with an untrained model; returns it and its embeddings."""
    import h5py
    import torch

    from sgpmil.evaluation.prediction import Prediction
    from sgpmil.models import build_model, save_model
    from sgpmil.runs.prediction_folder import write_prediction_folder

    torch.manual_seed(0)
    scores = make_scores(num_patches, num_classes)
    names = tuple(f"class {index}" for index in range(num_classes))
    rng = np.random.default_rng(2)
    (folder / "features").mkdir()
    with h5py.File(folder / "features" / "slide.h5", "w") as file:
        features = file.create_dataset("features", (num_patches, FEATURES), np.float16)
        for first in range(0, num_patches, 10_000):
            part = features[first : first + 10_000]
            features[first : first + 10_000] = rng.standard_normal(part.shape, np.float32)
        file["coords"] = scores.coords
        file["coords"].attrs["patch_size_level0"] = SIDE
    model = build_model("sgpmil", in_dim=FEATURES, num_classes=num_classes)
    probs = np.full((2, num_classes), 1 / num_classes)
    prediction = Prediction.from_samples("slide", "case", 1, probs, scores)
    write_prediction_folder(folder / "fold", [prediction], ClassTarget(names))
    save_model(model, folder / "fold" / "checkpoint.safetensors", class_names=names)
    return folder / "fold", folder / "features"


def run_command(num_patches: int, num_classes: int) -> None:
    """Run the command in a process of its own, and print what it took as JSON."""
    with tempfile.TemporaryDirectory() as place:
        # Made in another process, whose memory is not the command's.
        with ProcessPoolExecutor(1) as pool:
            made = pool.submit(write_fold, Path(place), num_patches, num_classes)
            fold, features = made.result()
        out = Path(place) / "out"
        words = ["explain", fold, "--features", features, "--out", out]
        command = [sys.executable, "-m", "sgpmil", *(str(word) for word in words)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
        started = time.perf_counter()
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if status:
            raise SystemExit("sgpmil explain failed.")
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(json.dumps({"seconds": seconds, "mebibytes": _mebibytes(used), "size": size / 2**20}))


def run_step(name: str, num_patches: int, num_classes: int) -> None:
    """Run one step here, and print what it took as JSON."""
    scores = make_scores(num_patches, num_classes)
    classes = tuple(f"class {index}" for index in range(num_classes))
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        STEPS[name](scores, classes, Path(folder))
        seconds = time.perf_counter() - started
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"seconds": seconds, "mebibytes": _mebibytes(used), "size": size / 2**20}))


def _mebibytes(used: resource.struct_rusage) -> float:
    # Kilobytes, but bytes on macOS.
    return used.ru_maxrss / 2**20 if sys.platform == "darwin" else used.ru_maxrss / 2**10


def main() -> None:
    """Run every step in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patches", type=int, default=200_000)
    parser.add_argument("--classes", type=int, default=2)
    names = [*STEPS, COMMAND]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--step", choices=names, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == COMMAND:
        run_command(options.patches, options.classes)
        return
    if options.step is not None:
        run_step(options.step, options.patches, options.classes)
        return
    print(f"{options.patches:,} patches, {options.classes} classes")
    print(f"{'step':<20}{'seconds':>10}{'peak MiB':>10}{'file MiB':>10}")
    for name in options.only:
        command = [sys.executable, __file__, "--step", name]
        command += ["--patches", str(options.patches), "--classes", str(options.classes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
        took = json.loads(done.stdout)
        print(f"{name:<20}{took['seconds']:>10.2f}{took['mebibytes']:>10.0f}{took['size']:>10.1f}")


if __name__ == "__main__":
    main()
