"""Training epochs and prediction of the reference workload on a GPU, and where the time goes.

python benchmarks/gpu_epoch.py --bags-per-step 1 2 32
python benchmarks/gpu_epoch.py --bags-per-step 2 32 --preset points    # of the model before

An epoch is all recorded steps of 270 bags, from the resident features to the last loss; of `fit`,
with all that comes with it; plain steps are the same without recordings. Medians after two epochs
of warm-up.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from sgpmil.bags import Bag, BagDataset
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.bench import bag_sizes
from sgpmil.gpu.resident import DeviceSource
from sgpmil.models.registry import build_model
from sgpmil.training.batches import PackedBatches
from sgpmil.training.engines import OptimiserSteps, PlainEngine
from sgpmil.training.fit import fit
from sgpmil.training.optimisers import build_optimiser
from sgpmil.training.recorded_steps import recorded_steps
from sgpmil.training.settings import TrainingSettings

IN_DIM = 1024


def resident(count: int, seed: int) -> BagDataset:
    """Draw bags of two classes on the device."""
    sizes = bag_sizes(count, seed).tolist()
    generator = torch.Generator(device="cuda").manual_seed(seed)
    matrix = torch.randn(sum(sizes), IN_DIM, generator=generator, device="cuda").half()
    bags = tuple(
        Bag(part, f"bag-{i}", label=i % 2, is_finite=True)
        for i, part in enumerate(matrix.split(sizes))
    )
    source = DeviceSource(MemorySource(bags, ["random"] * count), matrix, bags)
    ids = tuple(bag.slide_id for bag in bags)
    return BagDataset(
        source, ids, ids, tuple(i % 2 for i in range(count)), ClassTarget(("no", "yes"))
    )


def steps_of(
    model_name: str, preset: str, bags_per_step: int, precision: str, num_bags: int
) -> OptimiserSteps:
    """Make a model and what trains it."""
    settings = TrainingSettings(precision=precision, bags_per_step=bags_per_step)
    torch.manual_seed(0)
    model = build_model(model_name, in_dim=IN_DIM, num_classes=2, preset=preset).cuda().train()
    return OptimiserSteps(model, build_optimiser(settings, model), settings, num_bags)


def seconds(work: Callable[[], object], rounds: int) -> float:
    """Time some work after two rounds of warm-up."""
    times = []
    for _ in range(2 + rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return median(times[2:])


def fit_seconds(
    model_name: str,
    preset: str,
    bags_per_step: int,
    precision: str,
    train: BagDataset,
    rounds: int,
) -> float:
    """Time the epochs of `fit` after two of warm-up, those that record another size included."""
    ends = []

    def on_epoch(_: object) -> None:
        torch.cuda.synchronize()
        ends.append(time.perf_counter())

    training = {"epochs": 2 + rounds, "bags_per_step": bags_per_step, "precision": precision}
    whole = {"select": "last", "patience": 0, "device": "gpu"}
    settings = {"preset": preset}
    fit(
        train,
        model=model_name,
        model_settings=settings,
        training=training | whole,
        on_epoch=on_epoch,
    )
    return median(after - before for before, after in pairwise(ends[1:]))


def kernels(work: Callable[[], object]) -> str:
    """List the kernels that take longest."""
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        work()
        torch.cuda.synchronize()
    events = [event for event in found.key_averages() if event.device_time_total > 0]
    events.sort(key=lambda event: -event.device_time_total)
    total = sum(event.device_time_total for event in events)
    lines = [f"  {sum(event.count for event in events)} kernels, {total / 1000:.2f} ms"]
    lines += [
        f"  {event.device_time_total / total:5.1%} {event.count:5d} × "
        f"{event.device_time_total / event.count:6.1f} µs  {event.key[:70]}"
        for event in events[:15]
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="sgpmil")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--bags-per-step", type=int, nargs="+", default=[1, 2, 32])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--plain", action="store_true", help="Time plain steps as well.")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("Expected a GPU, but found none.")
    train, test = resident(270, 0), resident(129, 1)
    print(torch.cuda.get_device_name())
    for count in options.bags_per_step:
        order = np.random.default_rng(0).permutation(len(train)).tolist()
        groups = [order[i : i + count] for i in range(0, len(order), count)]
        what = options.model, options.preset, count, options.precision
        steps = steps_of(*what, len(train))
        recorded = recorded_steps(steps, train)
        if recorded is None:
            raise SystemExit(f"Steps of {options.model} cannot be recorded.")
        batches = PackedBatches(train, groups)
        found = seconds(lambda r=recorded, b=batches: r.epoch(b), options.rounds)
        print(f"{count} bags a step, recorded: {found:.4f} s an epoch")
        fitted = fit_seconds(*what, train, 2 * options.rounds)
        print(f"{count} bags a step, fit: {fitted:.4f} s an epoch")
        print(kernels(lambda r=recorded, b=batches: r.epoch(b)))
        if options.plain:
            plain = PlainEngine(steps_of(*what, len(train)))
            found = seconds(lambda p=plain, b=batches: p.epoch(b), 3)
            print(f"{count} bags a step, plain: {found:.4f} s an epoch", flush=True)
    model = steps.model.eval()

    def prediction() -> None:
        predict(model, test, with_instances=False, precision=options.precision)

    print(f"prediction of 129 bags: {seconds(prediction, options.rounds):.4f} s")
    print(kernels(prediction))


if __name__ == "__main__":
    main()
