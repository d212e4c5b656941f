"""Speed of the viewer, beside a plain OpenSlide DeepZoom server in the same run.

    python benchmarks/viewer.py [--size 40000] [--slides 10000] [--clients 50]

- Median time of a tile, cold (never asked for before) and warm (asked for again), of a slide of
  40,000 × 40,000 pixels and of maps of its 25,000 patches. Tiles are spread over the levels that a
  screen shows, one client, one connection.
- First paint, and first row, of a worklist of 10,000 slides in Chromium.
- Many clients at once, each with tiles of its own: errors, tiles a second, memory of the server.

The slide is a phantom of 8,000 × 8,000 pixels, repeated. The plain server is Starlette with
OpenSlide's DeepZoomGenerator and a generator a thread, as OpenSlide's own example does it.
"""

import argparse
import http.client
import math
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.runs.run import Run

PLAIN_SERVER = """
import sys, threading
from io import BytesIO
import uvicorn
from openslide import OpenSlide
from openslide.deepzoom import DeepZoomGenerator
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
kept = threading.local()
def tile(request):
    if not hasattr(kept, "generator"):
        kept.generator = DeepZoomGenerator(OpenSlide(sys.argv[1]), 254, 1)
    place = request.path_params
    image = kept.generator.get_tile(place["level"], (place["column"], place["row"]))
    content = BytesIO()
    image.save(content, "JPEG", quality=85)
    return Response(content.getvalue(), media_type="image/jpeg")
app = Starlette(routes=[Route("/slides/0_files/{level:int}/{column:int}_{row:int}.jpg", tile)])
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""
PATCHES = 158
"""Patches along a side: 24,964 in all."""


def write_big_slide(path: Path, size: int) -> None:
    """Write a pyramid that repeats a phantom."""
    import tifffile

    from sgpmil.phantoms import PhantomSettings, make_scene, write_phantom
    from sgpmil.slides.reading import open_slide

    side = min(8000, size)
    with tempfile.TemporaryDirectory() as place:
        file_name = Path(place) / "phantom.tiff"
        write_phantom(file_name, make_scene(0, PhantomSettings(size=(side, side))))
        with open_slide(file_name) as slide:
            level = slide.read(0, 0, side, side)
    options = {"tile": (256, 256), "photometric": "rgb", "compression": "jpeg"}
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        width = size
        for number in range(7):
            if number:
                half = level.shape[0] // 2
                level = level.reshape(half, 2, half, 2, 3).mean(axis=(1, 3)).astype(np.uint8)
                width //= 2
            per_cm = 1e4 / 0.25 / 2**number
            file.write(
                _tiles(level, width),
                shape=(width, width, 3),
                dtype=np.uint8,
                subfiletype=int(number > 0),
                resolution=(per_cm, per_cm),
                resolutionunit="CENTIMETER",
                metadata=None,
                **options,
            )


def _tiles(level: np.ndarray, width: int) -> Iterator[np.ndarray]:
    side = level.shape[0]
    for top in range(0, width, 256):
        rows = np.arange(top, top + 256) % side
        for left in range(0, width, 256):
            yield level[rows[:, None], np.arange(left, left + 256) % side]


def write_run(path: Path, names: list[str], scores: InstanceScores | None) -> None:
    """Write a run of one fold whose predictions are drawn."""
    rng = np.random.default_rng(0)
    rows = []
    for number, name in enumerate(names):
        samples = rng.beta(2, 2, size=(8, 1)) * 0.3 + rng.uniform(0, 0.7)
        samples = np.concatenate([1 - samples, samples], axis=1)
        rows.append(Prediction.from_samples(name, f"case-{number}", number % 2, samples, scores))
    fold = Fold("0", ("training",), (), tuple(names))
    run = Run.create(path, (fold,), {"model": "sgpmil"}, data={"folder": None, "labels": None})
    run.folds["0"].write(PredictionTable(tuple(rows), ClassTarget(("normal", "tumour"))))


@contextmanager
def server(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until a block ends."""
    started = subprocess.Popen(command)  # noqa: S603
    try:
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield started
    finally:
        started.terminate()
        started.wait(20)


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


class Client:
    """One connection that stays open."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def get(self, path: str) -> float:
        """Ask for a path, and return the seconds that it took."""
        start = time.perf_counter()
        self.connection.request("GET", path)
        answer = self.connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        return time.perf_counter() - start


def tile_paths(size: int, count: int, seed: int, kind: str) -> list[str]:
    """Draw distinct tiles, each level from a whole slide on a screen to full resolution alike."""
    draw = random.Random(seed)
    last = (size - 1).bit_length()
    tile = 254 if kind == "slide" else 256
    found: dict[str, None] = {}
    while len(found) < count:
        level = draw.randint(last - 6, last)
        most = math.ceil(math.ceil(size / 2 ** (last - level)) / tile) - 1
        place = f"{level}/{draw.randint(0, most)}_{draw.randint(0, most)}"
        if kind == "slide":
            found[f"/slides/0_files/{place}.jpg"] = None
        else:
            found[f"/maps/0/{kind}/1_files/{place}.png"] = None
    return list(found)


def memory(process: "subprocess.Popen[bytes]", field: str) -> float:
    """Return a memory of a process in MiB."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith(field))
    return int(line.split()[1]) / 1024


def measure_tiles(port: int, size: int, count: int, kinds: list[str], name: str) -> None:
    """Print the median time of tiles, cold and warm."""
    client = Client(port)
    for kind in kinds:
        client.get(tile_paths(size, 1, 99, kind)[0])  # opens the slide, reads the scores
        paths = tile_paths(size, count, 1, kind)
        cold = [client.get(path) for path in paths]
        warm = [client.get(path) for path in paths]
        for state, times in (("cold", cold), ("warm", warm)):
            middle, high = statistics.median(times), statistics.quantiles(times, n=20)[-1]
            print(
                f"{name:8s} {kind:10s} {state}: median {1e3 * middle:6.1f} ms, "
                f"95 % {1e3 * high:6.1f} ms",
                flush=True,
            )


def measure_clients(
    process: "subprocess.Popen[bytes]", port: int, size: int, clients: int, name: str
) -> None:
    """Print errors, tiles a second and memory of many clients at once."""
    errors: list[str] = []
    lock = threading.Lock()

    def work(number: int) -> None:
        client = Client(port)
        kind = "slide" if number % 2 == 0 or name == "plain" else "evidence"
        for path in tile_paths(size, 200, 1000 + number, kind):
            try:
                client.get(path)
            except (OSError, RuntimeError, http.client.HTTPException) as error:
                with lock:
                    errors.append(str(error))
                client = Client(port)

    before = memory(process, "VmRSS")
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        list(threads.map(work, range(clients)))
    seconds = time.perf_counter() - start
    print(
        f"{name:8s} {clients} clients × 200 tiles: {len(errors)} errors, "
        f"{200 * clients / seconds:.0f} tiles a second, memory {before:.0f} → "
        f"{memory(process, 'VmRSS'):.0f} MiB (peak {memory(process, 'VmHWM'):.0f})",
        flush=True,
    )
    for text in errors[:3]:
        print("  ", text)


def measure_worklist(port: int, num: int) -> None:
    """Print the first paint of the worklist in Chromium."""
    from playwright.sync_api import sync_playwright

    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"]
    paints, rows = [], []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        for _ in range(5):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("tbody tr")
            rows.append(page.evaluate("performance.now()"))
            entry = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
            paints.append(page.evaluate(entry))
            page.close()
        browser.close()
    print(
        f"worklist of {num:,} slides: first paint {statistics.median(paints):.0f} ms, first row "
        f"{statistics.median(rows):.0f} ms (median of 5, Chromium)"
    )


def main() -> None:
    """Measure tiles, the worklist and many clients."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=int, default=40_000)
    parser.add_argument("--slides", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--tiles", type=int, default=150)
    parser.add_argument("--folder", type=Path, help="keeps the data, to be used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        slides = folder / "slides"
        slides.mkdir(parents=True, exist_ok=True)
        big = slides / "big.tiff"
        if not big.exists():
            write_big_slide(big, options.size)
        step = options.size // PATCHES
        axis = np.arange(PATCHES) * step
        coords = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
        rng = np.random.default_rng(0)
        attention = rng.dirichlet(np.ones(len(coords)))
        logit = rng.normal(size=(len(coords), 2))
        scores = InstanceScores(
            attention,
            attention / 5,
            attention[:, None] * logit,
            attention[:, None] * np.abs(logit) / 5,
            coords=coords,
            patch_size=step,
        )
        if not (folder / "run").exists():
            write_run(folder / "run", ["big"], scores)
        if not (folder / "many").exists():
            write_run(folder / "many", [f"slide-{i:05d}" for i in range(options.slides)], None)
        print(f"{options.size:,} × {options.size:,} pixels, {len(coords):,} patches")
        view = [sys.executable, "-m", "sgpmil", "view", "--no-browser"]
        port = free_port()
        command = [*view, str(folder / "run"), "--slides", str(slides), "--port", str(port)]
        with server(command, port) as process:
            kinds = ["slide", "attention", "evidence"]
            measure_tiles(port, options.size, options.tiles, kinds, "viewer")
            measure_clients(process, port, options.size, options.clients, "viewer")
        port = free_port()
        with server([sys.executable, "-c", PLAIN_SERVER, str(big), str(port)], port) as process:
            measure_tiles(port, options.size, options.tiles, ["slide"], "plain")
            measure_clients(process, port, options.size, options.clients, "plain")
        port = free_port()
        with server([*view, str(folder / "many"), "--port", str(port)], port):
            measure_worklist(port, options.slides)


if __name__ == "__main__":
    main()
