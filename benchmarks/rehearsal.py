"""A rehearsal of a cohort's study on synthetic embeddings, with its wall time and peak memory.

    python benchmarks/rehearsal.py camelyon16 --labels labels.csv --splits splits --work runs/full

The features are made once. The study is stopped after `--stop-after` seconds; the same command
continues it. Tables and figures of what is finished, and `calls.json` with times and memory,
are copied to `--report`.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

from sgpmil.experiments.cohorts.plan import CohortOptions, plan_cohort
from sgpmil.experiments.cohorts.rehearsal import RehearsalOptions, write_rehearsal
from sgpmil.experiments.cohorts.report import write_report
from sgpmil.experiments.cohorts.study import train_cohort


class Watch:
    """A thread that notes the peak memory of machine and GPU, and stops the study in time."""

    def __init__(self, stop_at: float | None, log: Path) -> None:
        self.stop_at = stop_at
        self.gpu_bytes = 0
        self.host_bytes = 0
        self.busy: list[int] = []
        self._log = log
        self._began = time.perf_counter()
        self._base = _used_memory()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    @property
    def mean_busy(self) -> float:
        """Mean percentage of the time in which the GPU had a kernel."""
        return sum(self.busy) / len(self.busy) if self.busy else 0.0

    def _look(self) -> None:
        looks = 0
        while not self._ended.wait(0.5):
            self.host_bytes = max(self.host_bytes, _used_memory() - self._base)
            used, busy = _used_gpu()
            self.gpu_bytes = max(self.gpu_bytes, used)
            self.busy.append(busy)
            looks += 1
            if looks % 40 == 0:  # what is known stays, should the machine end the process
                text = (
                    f"{time.perf_counter() - self._began:.0f} s, GPU {used / 2**30:.0f} GiB, "
                    f"peak {self.gpu_bytes / 2**30:.0f} GiB, busy {self.mean_busy:.0f} %, host "
                    f"peak {self.host_bytes / 2**30:.0f} GiB"
                )
                with self._log.open("a") as file:
                    file.write(text + "\n")
            if self.stop_at is not None and time.perf_counter() > self.stop_at:
                self.stop_at = None
                os.kill(os.getpid(), signal.SIGINT)


def _used_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    values = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return values["MemTotal"] - values["MemAvailable"]


def _used_gpu() -> tuple[int, int]:
    """Return the used bytes of the first GPU, and the percentage of time it is busy."""
    query = "--query-gpu=memory.used,utilization.gpu"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=10, check=False
        )
        used, busy = found.stdout.splitlines()[0].split(",")
        return int(used) * 2**20, int(busy)
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
        return 0, 0


def start_mps(folder: Path) -> bool:
    """Start NVIDIA's multi-process service, by which processes share a GPU at the same time."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return False
    (folder / "log").mkdir(parents=True, exist_ok=True)
    before = dict(os.environ)
    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(folder)
    os.environ["CUDA_MPS_LOG_DIRECTORY"] = str(folder / "log")
    try:
        subprocess.run([control, "-d"], check=True, timeout=20, capture_output=True)  # noqa: S603
        probe = "import torch; print(float(torch.ones(8, device='cuda').sum()))"
        found = subprocess.run(  # noqa: S603
            [sys.executable, "-c", probe], capture_output=True, text=True, timeout=90, check=True
        )
        if found.stdout.strip() == "8.0":
            return True
    except (OSError, subprocess.SubprocessError) as error:
        print(f"No multi-process service: {error}", flush=True)
    stop_mps()
    os.environ.clear()
    os.environ.update(before)
    return False


def stop_mps() -> None:
    """Stop the service."""
    command = ["nvidia-cuda-mps-control"]
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, input="quit\n", text=True, timeout=20, check=False)  # noqa: S603


def main() -> None:
    """Make the features, run the study, and report."""
    began = time.perf_counter()
    # A shell starts what runs in the background deaf to interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cohort")
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--splits", type=Path)
    parser.add_argument("--work", type=Path, required=True, help="Folder of features and study.")
    parser.add_argument("--report", type=Path, help="Folder for tables and figures.")
    parser.add_argument("--scale", type=float, default=1.0, help="Factor of the slides' sizes.")
    parser.add_argument("--share", type=float, default=1.0, help="Share of the slides.")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--fold", action="append", default=[])
    parser.add_argument("--seed", type=int, action="append", default=[])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--form", choices=("store", "trident"), default="store")
    parser.add_argument("--annotations", action="store_true", help="Label instances by outlines.")
    parser.add_argument("--stop-after", type=float, help="Seconds, the features included.")
    parser.add_argument("--maps", action="store_true", help="Draw maps of slides.")
    parser.add_argument("--mps", action="store_true", help="Share a GPU by NVIDIA's service.")
    chosen = parser.parse_args()

    data, study = chosen.work / "data", chosen.work / "study"
    data.parent.mkdir(parents=True, exist_ok=True)
    stop_at = None if chosen.stop_after is None else began + chosen.stop_after
    record: dict[str, object] = {}
    # Before this process uses the GPU itself.
    is_shared = chosen.mps and start_mps(Path("/tmp") / f"mps-{os.getpid()}")  # noqa: S108
    if not (data / "done").exists():
        shutil.rmtree(data, ignore_errors=True)
        made = write_rehearsal(
            RehearsalOptions(
                cohort=chosen.cohort,
                labels=chosen.labels,
                splits=chosen.splits,
                out=data,
                form=chosen.form,
                scale=chosen.scale,
                share=chosen.share,
                dim=chosen.dim,
                device=chosen.device,
            )
        )
        (data / "done").touch()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        record |= {"slides": made.num_slides, "patches": made.num_patches}
        record["seconds_features"] = round(time.perf_counter() - began, 1)
        print(f"{made.num_slides} slides of {made.num_patches:,} patches", flush=True)
    if chosen.report is not None:
        chosen.report.mkdir(parents=True, exist_ok=True)
    watch = Watch(stop_at, (chosen.report or chosen.work) / "memory.log")
    options = CohortOptions(
        cohort=chosen.cohort,
        features=data / "features",
        labels=data / "labels.csv",
        splits=data / "splits",
        annotations=data / "annotations" if chosen.annotations else None,
        out=study,
        model=tuple(chosen.model),
        fold=tuple(chosen.fold),
        seed=tuple(chosen.seed),
        epochs=chosen.epochs,
        jobs=chosen.jobs,
        device=chosen.device,
        maps=chosen.maps,
    )
    plan = plan_cohort(options)
    errors: dict[str, str] = {}
    try:
        errors = train_cohort(plan, options, show_progress=True)
    except KeyboardInterrupt:
        print("Stopped.", flush=True)
    seconds = time.perf_counter() - began
    left = plan.jobs()
    total = len(plan.runs) * len(plan.folds)
    record |= {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "multi_process_service": is_shared,
        "jobs": chosen.jobs,
        "seconds_of_this_call": round(seconds, 1),
        "folds_done": total - sum(len(job.folds) for job in left),
        "folds": total,
        "gpu_busy_percent": round(watch.mean_busy),
        "peak_gib_of_gpu": round(watch.gpu_bytes / 2**30, 1),
        "peak_gib_of_machine": round(watch.host_bytes / 2**30, 1),
        "errors": errors,
    }
    watch.end()
    if is_shared:
        stop_mps()
    history = chosen.work / "calls.json"
    calls = json.loads(history.read_text()) if history.exists() else []
    calls.append(record)
    history.write_text(json.dumps(calls, indent=1))
    print(json.dumps(record, indent=1), flush=True)
    files = write_report(plan, options)
    print(f"Tables and figures: {time.perf_counter() - began - seconds:.1f} s", flush=True)
    if chosen.report is not None:
        for path in (history, *files):
            if path.parent in (chosen.work, study, study / "figures"):
                shutil.copy(path, chosen.report / path.name)
    print((study / "results.md").read_text() if (study / "results.md").exists() else "No results.")


if __name__ == "__main__":
    main()
