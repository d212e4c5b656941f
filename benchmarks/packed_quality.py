"""Whether packing more bags into a step costs quality, and half precision likewise.

    python benchmarks/packed_quality.py --data colon --features DATA/colon --seeds 5
    python benchmarks/packed_quality.py --data mnist --features DATA/mnist --precisions 32 bf16
    python benchmarks/packed_quality.py --data colon --features DATA/colon --powers 0 0.5 1

Every variant is trained on the same folds with the same seeds, and compared pair by pair with the
first number of bags of a step. DATA/colon holds features/*.h5 with instance labels, labels.csv and
splits/; DATA/mnist MNIST's four gzipped idx files, of which every fold is a deal of its own.
Finished runs are kept, and a second call goes on.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.sources import MemorySource
from sgpmil.bags.splits import Fold
from sgpmil.experiments.mnist import mnist_bags
from sgpmil.experiments.model_study import colon_bags, model_variant
from sgpmil.experiments.model_table import spread_of
from sgpmil.experiments.study import StudySet, Variant, plan_jobs, run_jobs
from sgpmil.training.settings import default_training, resolve_training

METRICS = {"auc": "bag AUC", "ace": "ACE", "attention_auc": "instance AUC", "nll": "NLL"}
COLUMNS = 1 + len(METRICS)


@dataclass(frozen=True)
class Difference:
    """The paired differences of a metric between two variants.

    Args:
        mean: Mean over the pairs.
        low: Lower end of the mean's 95 % confidence interval, of Student's t.
        high: Its upper end.
        p: Probability of so large a difference by chance, of Wilcoxon's signed-rank test.
        count: Number of pairs.
    """

    mean: float
    low: float
    high: float
    p: float
    count: int

    def __str__(self) -> str:
        if not self.count:
            return "–"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}], p = {self.p:.2f}"


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Compare two variants run by run.

    Args:
        values: A metric of each run; NaN where it is not defined.
        baseline: That of the same fold and seed with the other variant.
    """
    differences = np.asarray(values, dtype=float) - np.asarray(baseline, dtype=float)
    differences = differences[np.isfinite(differences)]
    if len(differences) < 2:
        return Difference(math.nan, math.nan, math.nan, math.nan, 0)
    mean = float(differences.mean())
    reach = float(stats.t.ppf(0.975, len(differences) - 1) * stats.sem(differences))
    # Runs that agree to the last digit leave the test nothing to rank.
    p = float(stats.wilcoxon(differences).pvalue) if differences.any() else 1.0
    return Difference(mean, mean - reach, mean + reach, p, len(differences))


def seed_noise(results: Sequence[dict[str, Any]], metric: str, part: str) -> float:
    """Return the standard deviation over seeds of runs on the same fold, pooled over folds."""
    folds: dict[str, list[float]] = {}
    for result in results:
        folds.setdefault(result["fold"], []).append(_value(result, metric, part))
    variances = [statistics.variance(v) for v in folds.values() if len(v) > 1]
    return math.sqrt(statistics.fmean(variances)) if variances else math.nan


def small_colon(folder: Path, most: int) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Read the colon nuclei, of each bag so many at most, for a quick look."""
    bags, folds = colon_bags(folder)
    generator = np.random.default_rng(0)
    drawn = []
    for bag in bags:
        chosen = np.sort(generator.permutation(bag.num_instances)[:most])
        rows = torch.from_numpy(chosen)
        drawn.append(
            Bag(
                features=bag.features[rows],
                slide_id=bag.slide_id,
                label=bag.label,
                coords=None if bag.coords is None else bag.coords[rows],
                patch_size=bag.patch_size,
                instance_labels=None if bag.instance_labels is None else bag.instance_labels[rows],
            )
        )
    return replace(bags, source=MemorySource(drawn)), folds


def mnist_deals(
    folder: Path, deals: int, train: int, test: int
) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Deal MNIST's images into bags several times over, a fold a deal."""
    together: list[Bag] = []
    folds = []
    for deal in range(deals):
        bags, (fold,) = mnist_bags(
            folder, num_train=train, num_val=min(200, train), num_test=test, seed=deal
        )
        together += [replace(bag, slide_id=f"{deal}-{bag.slide_id}") for bag in bags]
        parts = {
            part: tuple(f"{deal}-{name}" for name in fold.part(part))
            for part in ("train", "val", "test")
        }
        folds.append(Fold(str(deal), **parts))
    ids = tuple(bag.slide_id for bag in together)
    dataset = BagDataset(
        source=MemorySource(together),
        slide_ids=ids,
        case_ids=ids,
        labels=tuple(bag.label for bag in together),
        target=bags.target,
    )
    return dataset, tuple(folds)


def chosen_set(options: argparse.Namespace) -> StudySet:
    """Return the bags that the options ask for, under a name that says which they are."""
    if options.data == "mnist":
        load = partial(
            mnist_deals, options.features, options.deals, options.train_bags, options.test_bags
        )
        return StudySet(f"mnist-{options.train_bags}", load)
    if options.max_instances:
        load = partial(small_colon, options.features, options.max_instances)
        return StudySet(f"colon-{options.max_instances}", load)
    return StudySet("colon", partial(colon_bags, options.features))


def variants_of(options: argparse.Namespace) -> dict[tuple[int, str, float | None], Variant]:
    """Make a variant for each number of bags, precision and power of the learning rate.

    A power None is the package's own rule; any other scales the model's own learning rate by the
    ratio of the bags of a step to the model's own, to that power.
    """
    start = model_variant(options.model, options.data)
    own = default_training(options.model)
    made = {}
    for precision in options.precisions:
        for power in options.powers or [None]:
            for bags in options.bags:
                given = {**start.training, "bags_per_step": bags, "precision": precision}
                if options.epochs:
                    given["epochs"] = options.epochs
                if power is not None:
                    ratio = bags / (own.bags_per_step * own.accumulate_steps)
                    given["learning_rate"] = own.learning_rate * ratio**power
                training = asdict(resolve_training(options.model, given))
                del training["device"], training["seed"]  # the study's
                name = f"{options.model}, {bags} bag{'s' if bags > 1 else ''}"
                name += "" if power is None else f", power {power:g}"
                name += "" if precision == "32" else f", {precision}"
                made[bags, precision, power] = Variant(
                    name, options.model, start.settings, training
                )
    return made


def means(results: Sequence[dict[str, Any]], variants: Sequence[Variant], part: str) -> str:
    """Write the mean and standard deviation over folds and seeds of every variant."""
    head = [*METRICS.values(), "learning rate", "seconds an epoch", "runs"]
    lines = [_row(["variant", *head]), "|---" * (len(head) + 1) + "|"]
    for variant in variants:
        found = _done(results, variant)
        cells = []
        for metric in METRICS:
            spread = spread_of(_value(r, metric, part) for r in found)
            cells.append(f"{spread.mean:.3f} ± {spread.sd:.3f}" if spread.count else "–")
        seconds = [r["seconds_per_epoch"] for r in found if r["seconds_per_epoch"] is not None]
        cells.append(f"{variant.training['learning_rate']:.2e}")
        cells.append(f"{statistics.median(seconds):.3f}" if seconds else "–")
        cells.append(str(len(found)))
        lines.append(_row([variant.name, *cells]))
    return "\n".join(lines)


def differences(
    results: Sequence[dict[str, Any]], pairs: Sequence[tuple[Variant, Variant]], part: str
) -> str:
    """Write every variant less its baseline, over the folds and seeds that both have."""
    lines = [_row(["less", *METRICS.values()]), "|---" * COLUMNS + "|"]
    for variant, baseline in pairs:
        runs = [{(r["fold"], r["seed"]): r for r in _done(results, v)} for v in (variant, baseline)]
        keys = sorted(runs[0].keys() & runs[1].keys())
        cells = [
            str(paired_difference(*([_value(r[k], metric, part) for k in keys] for r in runs)))
            for metric in METRICS
        ]
        lines.append(_row([f"{variant.name} less {baseline.name}", *cells]))
    return "\n".join(lines)


def report(
    results: Sequence[dict[str, Any]],
    variants: dict[tuple[int, str, float | None], Variant],
    part: str,
) -> str:
    """Write what a part of the folds says: means, differences, and the noise of seeds."""
    keys = list(variants)
    first_bags, first_precision, _ = keys[0]
    packed = [
        (variants[key], variants[first_bags, *key[1:]]) for key in keys if key[0] != first_bags
    ]
    halved = [
        (variants[key], variants[key[0], first_precision, key[2]])
        for key in keys
        if key[1] != first_precision
    ]
    baseline = variants[keys[0]]
    noise = ", ".join(
        f"{name} {seed_noise(_done(results, baseline), metric, part):.3f}"
        for metric, name in METRICS.items()
    )
    tables = [means(results, list(variants.values()), part)]
    tables += [differences(results, pairs, part) for pairs in (packed, halved) if pairs]
    tables.append(f"Standard deviation over seeds of {baseline.name}, of a fold: {noise}.")
    return "\n\n".join(tables)


def _done(results: Sequence[dict[str, Any]], variant: Variant) -> list[dict[str, Any]]:
    return [r for r in results if r["status"] == "done" and r["variant"] == variant.name]


def _value(result: dict[str, Any], metric: str, part: str) -> float:
    value = result.get(part, {}).get("metrics", {}).get(metric)
    return math.nan if value is None else float(value)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run the study and write its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=["colon", "mnist"], required=True)
    parser.add_argument("--features", type=Path, required=True, help="Folder of the data set.")
    parser.add_argument("--model", default="sgpmil")
    parser.add_argument(
        "--bags", type=int, nargs="+", default=[1, 8, 16, 32], help="The first is compared with."
    )
    parser.add_argument("--precisions", nargs="+", default=["32"], help="Likewise.")
    parser.add_argument(
        "--powers", type=float, nargs="+", help="Scale the learning rate so, not by the rule."
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--max-instances", type=int, default=0, help="Of a colon bag; 0 is all.")
    parser.add_argument("--deals", type=int, default=5, help="MNIST's number of folds.")
    parser.add_argument("--train-bags", type=int, default=200, help="Of MNIST.")
    parser.add_argument("--test-bags", type=int, default=500, help="Of MNIST.")
    parser.add_argument("--only-folds", nargs="+", default=[])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks/packed"))
    options = parser.parse_args()
    variants = variants_of(options)
    jobs = plan_jobs(
        chosen_set(options),
        list(variants.values()),
        seeds=options.seeds,
        device=options.device,
    )
    jobs = [job for job in jobs if not options.only_folds or job.fold in options.only_folds]
    results = run_jobs(jobs, options.out, processes=options.jobs, overwrite=options.overwrite)
    for failed in (r for r in results if r["status"] != "done"):
        print(f"A run failed: {failed['error']}")
    for part in ("val", "test"):
        print(
            f"\n{options.data}, {part}, {options.seeds} seeds\n\n{report(results, variants, part)}"
        )


if __name__ == "__main__":
    main()
