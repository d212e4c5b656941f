"""Speed of extraction, against bare OpenSlide calls in as many processes.

    OMP_WAIT_POLICY=passive python benchmarks/extraction.py [--slide FILE] [--workers 2]

Three figures, in one run:

- tiles a second of the whole of `extract_slides` with an encoder that costs nothing, as a ratio to
  processes that do nothing but call OpenSlide's `read_region` for the same tiles;
- the share of the time that EfficientNet-lite0 is at work;
- the peak memory of all processes.

Without --slide it draws a synthetic one (plain TIFF, which we read with tifffile). With a scanner's
file both sides read through OpenSlide. Processes are started before the clock and stopped after it.
The command line sets the variable itself.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from pathlib import Path

import h5py
import numpy as np
import torch

from sgpmil.phantoms import PhantomSettings, make_scene, write_phantom
from sgpmil.slides.encoders import Encoder, load_encoder
from sgpmil.slides.extraction import ExtractionSettings, extract_slides, extraction_progress
from sgpmil.slides.extraction.jobs import SlideJob
from sgpmil.slides.patches import ExtractionFolder, PatchSettings


class FreeEncoder(Encoder):
    """An encoder that costs nothing: the first pixel."""

    name = "free"
    dim = 3
    input_size = 256
    device = torch.device("cpu")
    fingerprint = "free"

    def encode(self, patches: torch.Tensor) -> torch.Tensor:
        """Return the first pixel of each patch."""
        return patches[:, 0, 0].float()


class Clock:
    """A progress bar that records when the first slide begins and the last one ends."""

    def __init__(self, bar: object) -> None:
        self.bar = bar
        self.start = self.last = 0.0

    def end(self, outcome: object) -> None:
        """Read the clock when the embeddings are on disk."""
        self.last = time.perf_counter()
        self.bar.end(outcome)

    def begin(self, slide_id: str, num_patches: int) -> None:
        """Start the clock with the first tile."""
        self.start = self.start or time.perf_counter()
        self.bar.begin(slide_id, num_patches)

    def __getattr__(self, name: str) -> object:
        return getattr(self.bar, name)


def extract(
    slide: Path, out: Path, encoder: Encoder, workers: int, overlap: int
) -> tuple[float, float, Path]:
    """Extract a slide; return the seconds since the first tile and those of encoding."""
    patches = PatchSettings(overlap=overlap, magnification=20.0)
    settings = ExtractionSettings(patches=patches, num_workers=workers)
    folder = ExtractionFolder.of(out, patches)
    with extraction_progress(1, show=False) as bar:
        clock = Clock(bar)
        job = SlideJob(slide, unstated_magnification=20.0)
        done = extract_slides([job], encoder, folder, settings, clock)
        seconds = clock.last - clock.start
    failed = [outcome for outcome in done.outcomes if outcome.status not in ("done", "kept")]
    if failed:
        raise SystemExit(failed[0].reason)
    return seconds, done.encoding_seconds, folder.features_folder(encoder.name)


def read_bare(path: Path, coords: np.ndarray, side: int) -> int:
    """Call OpenSlide for tiles, and do nothing with them."""
    import openslide

    with openslide.OpenSlide(path) as slide:
        for x, y in coords.tolist():
            slide.read_region((x, y), 0, (side, side))
    return len(coords)


def bare_seconds(slide: Path, features: Path, workers: int, pool: ProcessPoolExecutor) -> float:
    """Time the bare calls for the very tiles that were extracted, shared out evenly."""
    with h5py.File(features / f"{slide.stem}.h5") as file:
        coords, side = file["coords"][()], int(file["coords"].attrs["patch_size_level0"])
    parts = [(slide, part, side) for part in np.array_split(coords, workers)]
    start = time.perf_counter()
    list(pool.map(read_bare, *zip(*parts, strict=True)))
    return time.perf_counter() - start


class PeakMemory:
    """Peak of the resident memory of this process and its children."""

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self.peak = max(self.peak, _resident(os.getpid()))


def _resident(pid: int) -> int:
    """Sum the proportional memory of a process and its descendants, in bytes."""
    total = 0
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1]) * 1024
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            total += sum(_resident(int(child)) for child in children.read_text().split())
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        pass  # it has ended meanwhile
    return total


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--slide", type=Path, help="a scanner's file, at 20×")
    parser.add_argument("--size", default="12000x9000", help="of the synthetic slide")
    parser.add_argument("--overlap", type=int, default=0, help="for more tiles of a small slide")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-encoder", action="store_true", help="leave out EfficientNet-lite0")
    given = parser.parse_args()
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        slide = given.slide
        if slide is None:
            slide = place / "phantom.tiff"
            width, height = map(int, given.size.split("x"))
            write_phantom(slide, make_scene(0, PhantomSettings(size=(width, height))))
        pool = ProcessPoolExecutor(given.workers, mp_context=get_context("spawn"))
        stack.enter_context(pool)
        memory = stack.enter_context(PeakMemory())
        ratios, speeds = [], []
        for repeat in range(given.repeats + 1):  # the first warms up
            out = place / f"free-{repeat}"
            ours, _, features = extract(slide, out, FreeEncoder(), given.workers, given.overlap)
            bare = bare_seconds(slide, features, given.workers, pool)
            with h5py.File(features / f"{slide.stem}.h5") as file:
                tiles = len(file["coords"])
            if repeat:
                ratios.append(bare / ours)
                speeds.append((tiles / ours, tiles / bare))
        print(f"{slide.name}: {tiles:,} tiles of 256 px, {given.workers} processes")
        print(
            f"  extraction, free encoder   {statistics.median(s for s, _ in speeds):8.0f} tiles/s"
        )
        print(
            f"  bare read_region           {statistics.median(s for _, s in speeds):8.0f} tiles/s"
        )
        print(
            f"  ratio, median of {len(ratios)}         {statistics.median(ratios):8.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})"
        )
        if not given.no_encoder:
            encoder = load_encoder("efficientnet-lite0", device="auto")
            seconds, busy, _ = extract(slide, place / "real", encoder, given.workers, given.overlap)
            print(f"  efficientnet-lite0 on {encoder.device.type}: {tiles / seconds:.0f} tiles/s,")
            print(f"    at work {busy / seconds:.0%} of the time")
        print(f"  peak memory of all processes {memory.peak / 2**20:,.0f} MiB")


if __name__ == "__main__":
    main()
