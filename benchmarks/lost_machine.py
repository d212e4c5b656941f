"""Extraction and prediction of many slides on a Ray cluster that loses a machine half-way.

Both run once here and once on two machines of a cluster, real Ray nodes on this computer. One of
them is removed without a warning when half of the results are on disk. The script ends with an
error unless all files of both are equal and nothing temporary is left.

    python benchmarks/lost_machine.py --slides 200
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

DATED = ("predictions.parquet", "provenance.json")
"""Files that say when and where they were made."""

_STORE = 2**28


@contextmanager
def losing(results: Path, pattern: str, count: int) -> Iterator[None]:
    """Give a cluster of two machines, and remove one when ``count`` results are there."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": _STORE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    lost = cluster.add_node(num_cpus=1, object_store_memory=_STORE)
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    ended = threading.Event()

    def lose() -> None:
        while len(list(results.rglob(pattern))) < count and not ended.wait(0.05):
            pass
        if not ended.is_set():
            there = len(list(results.rglob(pattern)))
            cluster.remove_node(lost, allow_graceful=False)
            print(f"    a machine was removed with {there} results on disk", flush=True)

    watcher = threading.Thread(target=lose)
    watcher.start()
    yield
    early = watcher.is_alive()
    ended.set()
    watcher.join()
    if early:
        sys.exit("Everything had ended before half of the results were there.")
    ray.shutdown()
    cluster.shutdown()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files, hidden ones too, by their paths in the folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def compare(what: str, run: Callable[..., Any], place: Path, pattern: str, slides: int) -> None:
    """Run here and on a cluster that loses a machine, and compare all files."""
    print(f"{what} of {slides} slides", flush=True)
    started = time.time()
    run(out=place / f"{what}-here")
    alone = time.time() - started
    with losing(place / f"{what}-there", pattern, slides // 2):
        started = time.time()
        run(out=place / f"{what}-there", on="ray")
        there = time.time() - started
    files = [contents(place / f"{what}-{where}") for where in ("here", "there")]
    names = [set(found) for found in files]
    differing = sorted(
        names[0] ^ names[1]
        | {
            name
            for name in names[0] & names[1]
            if Path(name).name not in DATED and files[0][name] != files[1][name]
        }
    )
    if differing:
        sys.exit(f"{len(differing)} files differ: {', '.join(differing[:5])}")
    found = sum(1 for name in names[1] if Path(name).match(pattern))
    print(
        f"    {found} of {slides} results, {len(names[1])} files, all equal, nothing temporary; "
        f"{alone:.0f} s here, {there:.0f} s on the cluster",
        flush=True,
    )


def main() -> None:
    """Extract and predict."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slides", type=int, default=200)
    given = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    torch.set_num_threads(1)  # as a job of one core has: more threads sum in another order

    import sgpmil
    from sgpmil.phantoms.folder import PhantomOptions, draw_phantoms
    from sgpmil.runs.predict import PredictOptions, predict_folder
    from sgpmil.slides.extraction.extract import ExtractOptions, extract_folder

    with TemporaryDirectory() as name:
        place = Path(name)
        draw_phantoms(
            PhantomOptions(out=place / "phantoms", num_slides=given.slides, size=(1536, 1152))
        )

        def extract(**where: Any) -> None:
            extract_folder(
                ExtractOptions(slides=place / "phantoms/slides", patch_size=224, **where)
            )

        compare("extraction", extract, place, "*features_*/*.h5", given.slides)

        features = next((place / "extraction-here").rglob("features_*"))
        rng = np.random.default_rng(0)
        bags = sgpmil.read_bags(features)
        arrays = [rng.normal(size=(20, bags.feature_dim)) + i % 2 for i in range(20)]
        train = sgpmil.BagDataset.from_arrays(arrays, [i % 2 for i in range(20)])
        model = place / "fold"
        sgpmil.fit(train, model="sgpmil", training={"epochs": 1, "device": "cpu"}, folder=model)

        def predict(**where: Any) -> None:
            checkpoint = model / "checkpoint.safetensors"
            predict_folder(PredictOptions(model=checkpoint, features=features, **where))

        compare("prediction", predict, place, "attention/*.h5", given.slides)


if __name__ == "__main__":
    main()
