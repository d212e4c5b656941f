r"""Time, memory and disk space of a study, from a model that is fitted to measurements.

A bag of n patches costs $a + b n + c n^2 + d n^3$ seconds in an epoch, and as many of other
coefficients in a prediction. ``benchmarks/cohort_costs.py`` measures both at several sizes and fits
the coefficients, none below 0, to relative errors. `MEASURED` holds those of one machine of each
kind; on another, the times differ by its speed.

An epoch draws as many bags as there are training slides, and predicts the validation slides. A
model that stops early needs at least the epochs before which nothing stops it, and at most all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sgpmil.bags.splits import Fold
from sgpmil.experiments.cohorts.cohort import Cohort, Row, row_training
from sgpmil.training.settings import TrainingSettings

Coefficients = tuple[float, float, float, float]


@dataclass(frozen=True)
class RowCost:
    """Measured costs of a row.

    Args:
        train: Coefficients of the seconds of a bag in an epoch.
        predict: Coefficients of the seconds of a bag's prediction.
        memory: Peak of the memory in MiB, beyond that of libraries and features, where the largest
            bag has `LARGEST` patches or fewer.
        parameters: Number of trainable parameters.
    """

    train: Coefficients
    predict: Coefficients
    memory: int
    parameters: int


HARDWARE: Mapping[str, str] = MappingProxyType(
    {"cuda": "one NVIDIA H200", "cpu": "one core of an AMD EPYC"}
)
"""Machines that `MEASURED` is of, by the kind of device."""

LARGEST: Mapping[str, int] = MappingProxyType({"cuda": 12_000, "cpu": 2_700})
"""Patches of the largest bag of the measurements of memory."""

MEASURED: Mapping[str, Mapping[str, RowCost]] = MappingProxyType(
    {
        # docs/performance.md: 270 bags to train on, 129 to predict, of one distribution of sizes,
        # so that only the sum of their patches tells times apart.
        "cuda": {
            "abmil": RowCost((0.0, 1.08e-07, 0.0, 0.0), (0.0, 1.24e-08, 0.0, 0.0), 1843, 657283),
            "clam-sb": RowCost((0.0, 2.35e-07, 0.0, 0.0), (0.0, 1.56e-08, 0.0, 0.0), 1843, 922247),
            "transmil": RowCost(
                (0.0, 2.05e-06, 0.0, 0.0), (0.0, 5.18e-07, 0.0, 0.0), 16077, 2672146
            ),
            "dgrmil": RowCost((0.0, 1.21e-06, 0.0, 0.0), (0.0, 3.18e-07, 0.0, 0.0), 10957, 4211218),
            "bayesmil": RowCost((0.0, 4.75e-07, 0.0, 0.0), (0.0, 1.4e-07, 0.0, 0.0), 3482, 1315588),
            "mixmil": RowCost((0.0, 7.2e-08, 0.0, 0.0), (0.0, 2.57e-08, 0.0, 0.0), 5018, 1574403),
            "agp": RowCost((0.0, 1.2e-05, 0.0, 0.0), (0.0, 3.84e-06, 0.0, 0.0), 6861, 1209622),
            "sgpmil-paper": RowCost(
                (0.0, 2e-07, 0.0, 0.0), (0.0, 1.91e-08, 0.0, 0.0), 1843, 1209686
            ),
            "sgpmil": RowCost((0.0, 1.21e-07, 0.0, 0.0), (0.0, 1.91e-08, 0.0, 0.0), 1843, 680085),
        },
        # benchmarks/cohort_costs.py with bags of 300, 900 and 2,700 patches; the fit is within a
        # tenth of each measurement.
        "cpu": {
            "abmil": RowCost(
                (0.00185, 3.15e-05, 0.0, 0.0), (0.00101, 2.26e-05, 0.0, 2.97e-13), 256, 657283
            ),
            "clam-sb": RowCost(
                (0.00387, 5.43e-05, 0.0, 3.21e-13), (0.000489, 3.05e-05, 0.0, 3.23e-13), 257, 922247
            ),
            "transmil": RowCost(
                (0.428, 0.000341, 0.0, 0.0), (0.271, 9.11e-05, 4.75e-08, 0.0), 991, 2672146
            ),
            "dgrmil": RowCost(
                (0.23, 0.000201, 0.0, 0.0), (0.123, 0.000112, 0.0, 4.45e-12), 659, 4211218
            ),
            "bayesmil": RowCost(
                (0.00614, 9.15e-05, 0.0, 0.0), (0.0, 0.000304, 5.53e-09, 0.0), 469, 1315588
            ),
            "mixmil": RowCost(
                (0.0, 3.49e-05, 0.0, 0.0), (0.0, 2.98e-05, 7.74e-10, 0.0), 675, 1574403
            ),
            "agp": RowCost(
                (0.0302, 0.0, 9.25e-08, 1.17e-10), (0.0117, 0.0, 5.68e-08, 1.21e-11), 889, 1209622
            ),
            "sgpmil-paper": RowCost(
                (0.0105, 6.52e-05, 0.0, 0.0), (0.00222, 7.97e-05, 0.0, 0.0), 244, 1209686
            ),
            "sgpmil": RowCost(
                (0.0146, 7.3e-05, 0.0, 0.0), (0.00149, 5.65e-05, 0.0, 0.0), 528, 680085
            ),
        },
    }
)
"""Costs by kind of device and row."""

_UNKNOWN = "abmil"
"""Row whose costs stand for models that were not measured."""

_SIDE_BY_SIDE = 0.7
"""Time of folds of recorded steps that are trained side by side on a GPU, to that of one after
another: 20.7 to 29.4 seconds (docs/performance.md)."""

_BYTES_OF_PARAMETER = 32
"""Bytes on disk of a parameter of a fold, measured: models, and a checkpoint with two moments."""
_BYTES_OF_SCORE = 100
"""Bytes on disk of a predicted patch, measured: its scores and its place."""
_BYTES_OF_PROCESS = 2**30
"""Bytes in memory of a process without bags, measured: mostly libraries."""


@dataclass(frozen=True)
class RowEstimate:
    """Estimated time of all folds and seeds of a row, one after another.

    Args:
        row: The row.
        epochs: Least and most epochs of a fold.
        seconds: Least and most seconds.
    """

    row: Row
    epochs: tuple[int, int]
    seconds: tuple[float, float]


@dataclass(frozen=True)
class StudyEstimate:
    """Estimated time, memory and disk space of a study.

    Args:
        rows: Time of each row.
        hardware: Machine that the time is measured on.
        jobs: Processes side by side.
        num_folds: Number of folds of all rows and seeds, each of which one process trains.
        is_gpu: Whether it is a GPU, which the processes share.
        store_bytes: Disk space of the packed store; 0 where the features are one.
        run_bytes: Disk space of the runs.
        feature_bytes: Memory of the features, which a GPU keeps once for each process.
        process_bytes: Memory of a process without them, while the largest bag is in the most
            demanding model.
    """

    rows: tuple[RowEstimate, ...]
    hardware: str
    jobs: int
    num_folds: int
    is_gpu: bool
    store_bytes: int
    run_bytes: int
    feature_bytes: int
    process_bytes: int

    @property
    def seconds(self) -> tuple[float, float]:
        """Least and most seconds of the study. Processes on a GPU are taken to gain nothing."""
        share = 1 if self.is_gpu else max(1, min(self.jobs, self.num_folds))
        least, most = (sum(row.seconds[i] for row in self.rows) / share for i in (0, 1))
        return least, most


def seconds_of(coefficients: Coefficients, size: int) -> float:
    """Return the seconds of a bag of a size.

    Example:
        >>> seconds_of((1.0, 0.5, 0.0, 0.0), 4)
        3.0
    """
    return sum(c * float(size) ** power for power, c in enumerate(coefficients))


def epoch_range(settings: TrainingSettings, has_validation: bool) -> tuple[int, int]:
    """Return the least and most epochs of a training.

    Example:
        >>> epoch_range(TrainingSettings(epochs=200, patience=20, min_epochs=50), True)
        (50, 200)
    """
    if not settings.patience or not has_validation:
        return settings.epochs, settings.epochs
    earliest = max(settings.min_epochs, settings.patience + 1)
    return min(earliest, settings.epochs), settings.epochs


def fold_seconds(
    row: Row,
    cohort: Cohort,
    fold: Fold,
    sizes: Mapping[str, int],
    device: str,
    epochs: int | None = None,
) -> tuple[float, float]:
    """Estimate the least and most seconds of a fold.

    Args:
        row: The row.
        cohort: The cohort.
        fold: The fold.
        sizes: Number of patches of each slide; slides that are not in it do not count.
        device: Kind of device: cpu or cuda.
        epochs: Epochs instead of the row's own.
    """
    cost = _cost(row, device)
    settings = row_training(row, cohort, seed=0, epochs=epochs)
    parts = [[sizes[s] for s in part if s in sizes] for part in (fold.train, fold.val, fold.test)]
    train = sum(seconds_of(cost.train, size) for size in parts[0])
    val, test = (sum(seconds_of(cost.predict, size) for size in part) for part in parts[1:])
    least, most = epoch_range(settings, bool(parts[1]))
    return least * (train + val) + val + test, most * (train + val) + val + test


def estimate_study(
    cohort: Cohort,
    rows: Sequence[Row],
    folds: Sequence[Fold],
    seeds: Sequence[int],
    sizes: Mapping[str, int],
    *,
    device: str,
    jobs: int = 1,
    epochs: int | None = None,
    bytes_per_patch: int = 2048,
    packs: bool = True,
    recorded: Sequence[str] = (),
) -> StudyEstimate:
    """Estimate time, memory and disk space of a study.

    Args:
        cohort: The cohort.
        rows: Rows of the table.
        folds: The folds.
        seeds: Seeds of the training.
        sizes: Number of patches of each slide.
        device: Kind of device: cpu or cuda.
        jobs: Processes side by side.
        epochs: Epochs instead of each row's own.
        bytes_per_patch: Bytes of the features of a patch.
        packs: Whether a packed store is made.
        recorded: Names of rows whose folds are trained side by side on a GPU.
    """
    estimates = []
    run_bytes = 0.0
    scored = sum(sizes.get(s, 0) for fold in folds for s in (*fold.val, *fold.test))
    for row in rows:
        found = [fold_seconds(row, cohort, fold, sizes, device, epochs) for fold in folds]
        factor = len(seeds) * (_SIDE_BY_SIDE if row.name in recorded and len(folds) > 1 else 1.0)
        least, most = (factor * sum(pair[i] for pair in found) for i in (0, 1))
        settings = row_training(row, cohort, seed=0, epochs=epochs)
        has_validation = any(fold.val for fold in folds)
        estimates.append(RowEstimate(row, epoch_range(settings, has_validation), (least, most)))
        weights = _BYTES_OF_PARAMETER * _cost(row, device).parameters * len(folds)
        run_bytes += len(seeds) * (weights + _BYTES_OF_SCORE * scored)
    features = sum(sizes.values()) * bytes_per_patch
    larger = max(1.0, max(sizes.values(), default=0) / LARGEST[device])
    # AGP draws from the joint distribution of all pairs of instances.
    room = max(_cost(r, device).memory * larger ** (2 if r.model == "agp" else 1) for r in rows)
    return StudyEstimate(
        rows=tuple(estimates),
        hardware=HARDWARE[device],
        jobs=jobs,
        num_folds=len(rows) * len(folds) * len(seeds),
        is_gpu=device == "cuda",
        store_bytes=features + 24 * sum(sizes.values()) if packs else 0,
        run_bytes=int(run_bytes),
        feature_bytes=features,
        process_bytes=_BYTES_OF_PROCESS + round(room * 2**20),
    )


def _cost(row: Row, device: str) -> RowCost:
    costs = MEASURED[device]
    return costs.get(row.name, costs[_UNKNOWN])
