"""Size, time and memory of models as ONNX graphs.

    python benchmarks/onnx_graphs.py transmil dgrmil [--patches 50000] [--features 1024]

Writes each model at its published size, with random weights, as a graph; runs it by ONNX Runtime
and by PyTorch on one slide of random patches, each in a process of its own, and compares them.
``model/preset`` is a preset of a model, for example ``transmil/released``. Seconds are of processor
time: all cores together.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Job:
    """A model, and the slide that it predicts."""

    name: str
    patches: int
    features: int
    path: Path

    def slide(self) -> np.ndarray:
        """Draw the slide."""
        shape = (self.patches, self.features)
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--patches", type=int, default=50_000)
    parser.add_argument("--features", type=int, default=1024)
    options = parser.parse_args()
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            job = Job(name, options.patches, options.features, Path(folder) / "model.onnx")
            seconds = _alone(_write, job)
            size = job.path.stat().st_size / 1e6
            print(f"{name}: written in {seconds:.1f} s, {size:.1f} MB")
            found, by_graph, graph_peak = _alone(_run_graph, job)
            expected, by_torch, torch_peak = _alone(_run_torch, job)
        print(f"  ONNX Runtime {by_graph:.1f} s, peak {graph_peak:.2f} GB")
        print(f"  PyTorch      {by_torch:.1f} s, peak {torch_peak:.2f} GB")
        differences = [float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True)]
        print(
            f"  largest differences of probabilities {differences[0]:.1g}, "
            f"of attention {differences[1]:.1g} (largest {expected[1].max():.1g})"
        )


def _alone(function: Any, job: Job) -> Any:
    """Call a function in a new process, whose memory is then its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, job).result()


def _models(job: Job) -> list[Any]:
    import torch

    from sgpmil.models import build_model

    torch.manual_seed(0)
    name, _, preset = job.name.partition("/")
    settings = {"preset": preset} if preset else {}
    return [build_model(name, in_dim=job.features, num_classes=2, **settings).eval()]


def _write(job: Job) -> float:
    from sgpmil.evaluation.onnx_graph import write_graph

    models = _models(job)
    started = time.process_time()
    write_graph(job.path, models)
    return time.process_time() - started


def _run_graph(job: Job) -> tuple[list[np.ndarray], float, float]:
    import onnxruntime

    session = onnxruntime.InferenceSession(job.path, providers=["CPUExecutionProvider"])
    slide, started = job.slide(), time.process_time()
    found = session.run(None, {"features": slide})
    return found, time.process_time() - started, _peak()


def _run_torch(job: Job) -> tuple[list[np.ndarray], float, float]:
    import torch

    from sgpmil.evaluation.onnx_graph import PredictionGraph

    graph = PredictionGraph(_models(job))
    slide, started = torch.from_numpy(job.slide()), time.process_time()
    with torch.inference_mode():
        found = [part.numpy() for part in graph(slide)]
    return found, time.process_time() - started, _peak()


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
