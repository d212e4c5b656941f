"""Time of `SGPMILClassifier` on a few small bags, with one thread and with torch's own number.

    python benchmarks/small_bags.py              # on a quiet machine
    python benchmarks/small_bags.py --busy 2     # beside two processes that compute

The package trains small models in one thread (`sgpmil.processes.threads_for`). The alternative is
the same with that rule turned off. Both run in turn in one process; the first call of all is left
out, since it imports and warms up.
"""

import argparse
import multiprocessing
import statistics
import time

import numpy as np
import torch


def compute(size: int = 400) -> None:
    """Compute until the parent ends this process."""
    torch.set_num_threads(1)
    matrix = torch.randn(size, size)
    while True:
        matrix = (matrix @ matrix).tanh()


def seconds(bags: list[np.ndarray], labels: list[int]) -> float:
    """Fit and predict once."""
    import sgpmil

    started = time.perf_counter()
    sgpmil.SGPMILClassifier().fit(bags, labels).predict_proba(bags)
    return time.perf_counter() - started


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bags", type=int, default=20)
    parser.add_argument("--instances", type=int, default=10)
    parser.add_argument("--busy", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    from sgpmil import processes

    rng = np.random.default_rng(0)
    labels = [i % 2 for i in range(given.bags)]
    bags = [rng.normal(size=(given.instances, 16)).astype(np.float32) + y for y in labels]
    others = [multiprocessing.Process(target=compute, daemon=True) for _ in range(given.busy)]
    for other in others:
        other.start()
    rule, found = processes._WORTH_THREADS, {"one thread": [], "torch's": []}
    seconds(bags, labels)
    for _ in range(given.rounds):
        for name, least in (("one thread", rule), ("torch's", 0.0)):
            processes._WORTH_THREADS = least
            found[name].append(seconds(bags, labels))
    for other in others:
        other.terminate()
    one, own = (statistics.median(times) for times in found.values())
    print(
        f"{given.bags} bags of {given.instances}, {given.busy} busy processes, "
        f"{torch.get_num_threads()} threads: {one:.2f} s in one thread, {own:.2f} s in torch's "
        f"own number (ratio {own / one:.2f})"
    )


if __name__ == "__main__":
    main()
