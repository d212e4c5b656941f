"""Ablations and stress on one machine with a GPU, side by side, in a given time.

    python benchmarks/studies_at_once.py --data DATA --out OUT --seconds 510

Large bags go to the GPU, from several processes; small ones to processes of one thread each. After
the given seconds every study is interrupted, as by Ctrl-C: finished runs stay. The folders of a
study (``stress-*``, ``ablations-*``) may be copied into one, from which ``sgpmil experiment …
--tables`` makes the tables.

With ``--mps`` the processes share the GPU through NVIDIA's multi-process service, if it starts.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sgpmil.experiments.ablation_study import AblationOptions, compare_ablations
from sgpmil.experiments.stress_study import STRESS_MODELS, StressOptions, compare_stress

FAST, SLOW = STRESS_MODELS[:8], ("bayesmil", "dgrmil", "transmil")
GROUPS: dict[str, tuple[dict, ...]] = {
    "stress-witness-fast": (
        {"axis": ("witness",), "model": FAST, "seeds": "0-4", "jobs": 3, "device": "gpu"},
    ),
    "stress-witness-slow": (
        {"axis": ("witness",), "model": SLOW, "seeds": "0-4", "jobs": 2, "device": "gpu"},
    ),
    "ablations-camelyon": ({"sets": ("camelyon",), "seeds": "0-1", "jobs": 2, "device": "gpu"},),
    "stress-digits-slow": (
        {
            "axis": ("bags", "noise"),
            "value": (20, 50, 100),
            "model": SLOW[1:],
            "seeds": "0-2",
            "jobs": 1,
            "device": "gpu",
        },
    ),
    "stress-digits": (
        {"axis": ("noise", "bags"), "model": FAST, "seeds": "0-4", "jobs": 4, "device": "cpu"},
        {"axis": ("bags",), "model": ("bayesmil", "agp"), "jobs": 4, "device": "cpu"},
    ),
    "ablations-digits": ({"sets": ("digits",), "seeds": "0-4", "jobs": 4, "device": "cpu"},),
    "ablations-colon": ({"sets": ("colon",), "seeds": "0-4", "jobs": 2, "device": "cpu"},),
}
"""Options of the studies that run side by side, one after another within a group."""

_SECONDS_TO_END = 15
"""Seconds in which interrupted studies have to end."""


def run_group(name: str, data: Path, out: Path, *, quick: bool) -> None:
    """Run the studies of a group one after another."""
    for changes in GROUPS[name]:
        given = {**changes, "data": data, "out": out / name, "quick": quick}
        if quick:
            given |= {"device": "auto", "seeds": "0"}
        if name.startswith("stress"):
            errors = compare_stress(StressOptions(**given), show_progress=True)
        else:
            errors = compare_ablations(AblationOptions(**given), show_progress=True)
        print(name, "errors:", errors, flush=True)


def start_mps(folder: Path) -> dict[str, str]:
    """Start NVIDIA's multi-process service; return the variables that processes need for it."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        return {}
    places = {
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    for place in places.values():
        Path(place).mkdir()
    code = "import torch; x = torch.ones(8, 8, device='cuda'); print(float((x @ x).sum()))"
    try:
        environment = {**os.environ, **places}
        for words, seconds in (([control, "-d"], 10), ([sys.executable, "-c", code], 40)):
            subprocess.run(words, env=environment, check=True, timeout=seconds)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        stop_mps(control, places)
        return {}
    return places


def stop_mps(control: str | None, places: dict[str, str]) -> None:
    """Stop the service that was started."""
    if control is None or not places:
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        environment = {**os.environ, **places}
        subprocess.run([control], input=b"quit\n", env=environment, timeout=10, check=False)  # noqa: S603


def main() -> None:
    """Run all groups side by side, and interrupt them when the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=510)
    parser.add_argument("--group", choices=list(GROUPS))
    parser.add_argument("--only", nargs="*", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--mps", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.group is not None:
        run_group(options.group, options.data, options.out, quick=options.quick)
        return
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        mps = start_mps(Path(folder)) if options.mps else {}
        print("multi-process service:", bool(mps), flush=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **mps}
        running = {}
        for name in options.only:
            command = [sys.executable, *sys.argv, "--group", name]
            with (options.out / f"{name}.log").open("w") as log:
                running[name] = subprocess.Popen(  # noqa: S603
                    command, env=environment, stdout=log, stderr=log
                )
        while time.monotonic() < end and any(p.poll() is None for p in running.values()):
            time.sleep(1)
        for process in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        last = time.monotonic() + _SECONDS_TO_END
        for name, process in running.items():
            try:
                process.wait(max(0.1, last - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            count = len(list((options.out / name).glob("*/*/run-seed*.json")))
            print(name, "files:", count, "rc:", process.returncode, flush=True)
        stop_mps(shutil.which("nvidia-cuda-mps-control"), mps)


if __name__ == "__main__":
    main()
