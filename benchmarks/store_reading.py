"""A packed store against a plain file and against HDF5 with a chunk an instance.

    python benchmarks/store_reading.py

The same bags (float16, 1024 features) three ways, in turn in one process: the bytes of the store's
matrix from its first to its last, into memory of a batch's size; every bag of the store once, in
another order each time, packed into batches as training takes them; and every bag of one HDF5 file
a slide in TRIDENT's layout, read with h5py alone.
*Cold*: the system was asked to forget the files before; *warm*: they were just read.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import h5py
import numpy as np

from sgpmil.bags import PackedStore, pack_bags, read_bags
from sgpmil.bags.files import write_text
from sgpmil.experiments.bench import bag_sizes
from sgpmil.training.batches import PackedBatches, store_reader

FEATURES = 1024


def write_slides(folder: Path, sizes: np.ndarray) -> None:
    """Write a file a slide as TRIDENT does: features in chunks of one instance."""
    rng = np.random.default_rng(0)
    for number, size in enumerate(sizes):
        features = rng.normal(size=(size, FEATURES)).astype(np.float16)
        with h5py.File(folder / f"slide{number:03d}.h5", "w") as file:
            shape = {"chunks": (1, FEATURES), "maxshape": (None, FEATURES)}
            file.create_dataset("features", data=features, **shape)
            coords = np.zeros((size, 2), np.int64)
            file.create_dataset("coords", data=coords, chunks=(1, 2), maxshape=(None, 2))
    rows = [f"slide{number:03d},{number % 2}" for number in range(len(sizes))]
    write_text(folder.parent / "labels.csv", "\n".join(["slide_id,label", *rows]))


def forget(*files: Path) -> None:
    """Ask the system to drop files from its memory."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Write the files, read them in turn, and print speeds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=135)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bags-per-step", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where to write; needs 10 MB a bag")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        slides, store = Path(name) / "slides", Path(name) / "store"
        slides.mkdir()
        write_slides(slides, bag_sizes(options.bags, seed=0))
        pack_bags(read_bags(slides, Path(name) / "labels.csv"), store)
        measure(slides, store, options.rounds, options.bags_per_step)


def measure(slides: Path, store: Path, rounds: int, bags_per_step: int) -> None:
    """Read in turn, cold and warm."""
    matrix = store / "features.npy"
    files = sorted(slides.glob("*.h5"))
    bags = PackedStore.open(store).dataset()
    reader = store_reader(bags)
    rng = np.random.default_rng(0)

    def sequential() -> None:
        buffer = bytearray(matrix.stat().st_size * bags_per_step // len(bags))
        with matrix.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass

    def shuffled() -> None:
        order = rng.permutation(len(bags)).tolist()
        groups = [order[i : i + bags_per_step] for i in range(0, len(order), bags_per_step)]
        batches = PackedBatches(bags, groups, reader)
        for number in range(len(batches)):
            batches[number]

    def chunked() -> None:
        for path in rng.permutation(np.array(files, dtype=object)):
            with h5py.File(path) as file:
                file["features"][()]

    ways: dict[str, Callable[[], None]] = {
        "the store's bytes in order": sequential,
        f"the store, shuffled, {bags_per_step} bags a step": shuffled,
        "HDF5, a chunk an instance": chunked,
    }
    size = matrix.stat().st_size
    print(f"{size / 1e9:.2f} GB, {len(bags)} slides, median of {rounds}")
    print("| | cold GB/s | warm GB/s |\n|---|---|---|")
    found: dict[tuple[str, bool], list[float]] = {}
    for _ in range(rounds):
        for warm in (False, True):
            for name, read in ways.items():
                if not warm:
                    forget(matrix, *files)
                else:
                    read()
                start = time.perf_counter()
                read()
                found.setdefault((name, warm), []).append(time.perf_counter() - start)
    speed = {key: size / median(values) / 1e9 for key, values in found.items()}
    for name in ways:
        print(f"| {name} | {speed[name, False]:.2f} | {speed[name, True]:.2f} |")
    first, second, third = ways
    for warm, word in ((False, "cold"), (True, "warm")):
        print(
            f"{word}: shuffled / in order {speed[second, warm] / speed[first, warm]:.2f}, "
            f"shuffled / HDF5 {speed[second, warm] / speed[third, warm]:.1f}"
        )


if __name__ == "__main__":
    main()
