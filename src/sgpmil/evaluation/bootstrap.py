"""Bootstrap confidence intervals of metrics, by resampling patients."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation.metrics import SLIDE_METRICS, slide_metrics
from sgpmil.evaluation.prediction_table import PredictionTable, patient_ids
from sgpmil.evaluation.resampling import Resampled, SortedSlides
from sgpmil.shapes import Int

_CHUNK = 2**16
"""Slides of resampled tables that are worked on at once: few enough for the processor's cache."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of one metric.

    Args:
        name: Key of the metric, as in `METRICS`.
        value: Value on the table itself; NaN where it is undefined.
        low: Lower end; NaN where no round defines the metric.
        high: Upper end; NaN where no round defines the metric.
        num_rounds: Number of rounds in which the metric is defined, which the ends are from.
    """

    name: str
    value: float
    low: float
    high: float
    num_rounds: int


@dataclass(frozen=True, slots=True)
class Intervals:
    """Confidence intervals of the metrics over slides.

    Args:
        metrics: One interval a metric.
        level: Their level, such as .95.
        rounds: Number of resampled tables.
        num_patients: Number of patients that were resampled.
        num_slides: Number of slides with a label.
    """

    metrics: tuple[Interval, ...]
    level: float
    rounds: int
    num_patients: int
    num_slides: int

    def of(self, name: str) -> Interval:
        """Return the interval of a metric.

        Raises:
            PredictionError: There is no such metric.
        """
        for interval in self.metrics:
            if interval.name == name:
                return interval
        known = ", ".join(interval.name for interval in self.metrics)
        raise PredictionError(f"Expected one of the metrics {known}, but got '{name}'.")


def bootstrap_intervals(
    table: PredictionTable, rounds: int = 1000, level: float = 0.95, seed: int = 0
) -> Intervals:
    r"""Compute percentile bootstrap intervals of every metric over slides.

    Slides of one patient are not independent, so patients are resampled: each round draws as
    many patients as there are, with replacement, and takes all slides of each as often as it was
    drawn. With $m_{(q)}$ the q-quantile of a metric over the rounds in which it is defined, the
    interval of level $1 - \alpha$ is $[m_{(\alpha/2)}, m_{(1 - \alpha/2)}]$.

    A round without a slide of some class leaves AUC and others undefined; it is left out for
    them, and `Interval.num_rounds` is the number that remain. The interval covers other patients
    for the same trained model, not other training sets. It cannot reach beyond the observed
    slides: a metric that is perfect on the table has an interval of no width.

    Round r depends on the seed, r and the number of patients alone: tables of the same patients
    are resampled alike, and neither the order of the slides nor the number of processors matters.

    Args:
        table: Predictions; slides without a label are left out.
        rounds: Number of resampled tables.
        level: Level of the intervals.
        seed: Seed of the draws.

    Raises:
        PredictionError: No slide has a label, or all are of one patient.
        SettingsError: The rounds, the level or the seed are impossible.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> slides = (
        ...     Prediction.from_samples("a", "anna", 1, np.array([[0.25, 0.75]])),
        ...     Prediction.from_samples("b", "bert", 0, np.array([[0.25, 0.75]])),
        ... )
        >>> intervals = bootstrap_intervals(PredictionTable(slides, ClassTarget(("no", "yes"))))
        >>> intervals.of("accuracy")
        Interval(name='accuracy', value=0.5, low=0.0, high=1.0, num_rounds=1000)
    """
    _check_settings(rounds, level, seed)
    known = table.labelled()
    found = slide_metrics(known)
    names, patient = np.unique(patient_ids(known), return_inverse=True)
    if len(names) < 2:
        raise PredictionError(
            f"Expected slides of at least two patients to resample, but all {len(known)} slides "
            f"with a label are of '{names[0]}'. Correct the case_id column, or take each slide for "
            "its own patient (without_patients)."
        )
    slides = SortedSlides(known)
    size = max(1, _CHUNK // len(known))
    chunks = [range(first, min(first + size, rounds)) for first in range(0, rounds, size)]

    def values_of(chunk: range) -> np.ndarray:
        drawn = Resampled(slides, _multiplicity(patient, len(names), chunk, seed))
        return np.stack([metric.over(drawn) for metric in SLIDE_METRICS], axis=1)

    # numpy works without the interpreter's lock, so threads do run side by side.
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        values = np.concatenate(list(pool.map(values_of, chunks)))
    ends = ((1 - level) / 2, (1 + level) / 2)
    intervals = []
    for metric, column in zip(SLIDE_METRICS, values.T, strict=True):
        defined = column[~np.isnan(column)]
        low, high = np.quantile(defined, ends) if len(defined) else (np.nan, np.nan)
        key = metric.key
        intervals.append(Interval(key, found[key], float(low), float(high), len(defined)))
    return Intervals(tuple(intervals), level, rounds, len(names), len(known))


def _multiplicity(
    patient: Int[np.ndarray, " n"], num_patients: int, rounds: range, seed: int
) -> Int[np.ndarray, "r n"]:
    """Count how often each slide occurs in each of some rounds."""
    counts = np.empty((len(rounds), num_patients), dtype=np.int32)
    for row, number in zip(counts, rounds, strict=True):
        drawn = np.random.default_rng([seed, number]).integers(num_patients, size=num_patients)
        row[:] = np.bincount(drawn, minlength=num_patients)
    return np.take(counts, patient, axis=1)


def _check_settings(rounds: int, level: float, seed: int) -> None:
    if rounds < 1:
        raise SettingsError(f"Expected at least one round, but got {rounds}. Use 1000.")
    if not 0 < level < 1:
        raise SettingsError(f"Expected a level between 0 and 1, but got {level}. Use 0.95.")
    if seed < 0:
        raise SettingsError(f"Expected a seed of at least 0, but got {seed}. Use 0.")
