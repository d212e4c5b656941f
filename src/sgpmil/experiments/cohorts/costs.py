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
        parameters: Number of trainable parameters.
    """

    train: Coefficients
    predict: Coefficients
    parameters: int


HARDWARE: Mapping[str, str] = MappingProxyType(
    {"cuda": "one NVIDIA H200", "cpu": "one core of an AMD EPYC"}
)
"""Machines that `MEASURED` is of, by the kind of device."""

MEASURED: Mapping[str, Mapping[str, RowCost]] = MappingProxyType({"cuda": {}, "cpu": {}})
"""Costs by kind of device and row."""

_UNKNOWN = RowCost((1e-3, 1e-6, 0.0, 0.0), (1e-3, 1e-6, 0.0, 0.0), 1_500_000)

_SIDE_BY_SIDE = 0.7
"""Time of folds of recorded steps that are trained side by side on a GPU, to that of one after
another: 20.7 to 29.4 seconds (docs/performance.md)."""

_BYTES_OF_PARAMETER = 24
"""Bytes on disk of a parameter of a fold: three models, and a checkpoint with two moments."""
_BYTES_OF_SCORE = 40
"""Bytes on disk of a predicted patch: its scores and its place."""
_BYTES_OF_PROCESS = 2**30
_BYTES_OF_ACTIVATION = 40_000
"""Bytes in memory of a patch of a step: its layers' outputs and their gradients."""


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
        is_gpu: Whether it is a GPU, which the processes share.
        store_bytes: Disk space of the packed store; 0 where the features are one.
        run_bytes: Disk space of the runs.
        feature_bytes: Memory of the features, which a GPU keeps once for each process.
        process_bytes: Memory of a process without them.
    """

    rows: tuple[RowEstimate, ...]
    hardware: str
    jobs: int
    is_gpu: bool
    store_bytes: int
    run_bytes: int
    feature_bytes: int
    process_bytes: int

    @property
    def seconds(self) -> tuple[float, float]:
        """Least and most seconds of the study. Processes on a GPU are taken to gain nothing."""
        share = 1 if self.is_gpu else max(1, min(self.jobs, len(self.rows)))
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
    largest = max(sizes.values(), default=0)
    return StudyEstimate(
        rows=tuple(estimates),
        hardware=HARDWARE[device],
        jobs=jobs,
        is_gpu=device == "cuda",
        store_bytes=features + 24 * sum(sizes.values()) if packs else 0,
        run_bytes=int(run_bytes),
        feature_bytes=features,
        process_bytes=_BYTES_OF_PROCESS + _BYTES_OF_ACTIVATION * largest,
    )


def _cost(row: Row, device: str) -> RowCost:
    return MEASURED[device].get(row.name, _UNKNOWN)
