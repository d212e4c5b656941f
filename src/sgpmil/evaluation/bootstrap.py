"""Bootstrap confidence intervals of metrics, by resampling patients."""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation.metrics import SLIDE_METRICS, slide_metrics
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable, patient_ids
from sgpmil.evaluation.resampling import Resampled, SortedSlides
from sgpmil.shapes import Float, Int

CHANCE_PATIENTS = 2.0
"""Patients of whom the model knows nothing, which a resampled table may draw besides the others.

Of 0, 1, 2 and 3, this is the least number with which the intervals of AUC, accuracy, NLL and Brier
score cover the truth in at least 92.5 % of simulated test sets of 14 to 200 slides
(``benchmarks/few_slides.py``)."""

_CHANCE_PREDICTIONS = 50
"""Predictions of a table that chance slides are made of."""

_CHUNK = 2**16
"""Slides of resampled tables that are worked on at once: few enough for the processor's cache."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval of one metric.

    Args:
        name: Key of the metric, as in `METRICS`.
        value: Value on the table itself; NaN where it is undefined.
        low: Lower end, not above the value; NaN where no round defines the metric.
        high: Upper end, not below it; NaN where no round defines the metric.
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
    tables: PredictionTable | Sequence[PredictionTable],
    rounds: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Intervals:
    r"""Compute bootstrap intervals of every metric over slides, wide where slides are few.

    Slides of one patient are not independent, so patients are resampled: each of P draws a round
    takes a patient with all slides. A plain bootstrap cannot reach beyond the observed slides: of
    14 slides that are all right, every round is all right, and the interval has no width. So with
    the chance $2 / (P + 2)$ a draw takes a *chance slide* instead of a patient: the prediction of
    one slide with the label of another, drawn independently. This is two patients of whom the model
    knows nothing, as in the intervals of Wilson, and Agresti and Coull, which add two right and two
    wrong ones to a share. With $m_{(q)}$ the q-quantile of a metric over the rounds in which it is
    defined, the interval of level $1 - \alpha$ is $[m_{(\alpha/2)}, m_{(1 - \alpha/2)}]$, widened
    to the observed value where that lies outside.

    Of several tables, as of the folds of a run, the metric is the mean over the tables in which it
    is defined. A patient who is in several is drawn for all of them at once.

    A round without a slide of some class leaves AUC and others undefined; it is left out for
    them, and `Interval.num_rounds` is the number that remain. The interval covers other patients
    for the same trained model, not other training sets.

    Round r depends on the seed, r and the number of patients alone: tables of the same patients
    are resampled alike, and neither the order of the slides nor the number of processors matters.

    Args:
        tables: Predictions, of one test set or of each fold's; slides without a label are left out.
        rounds: Number of resampled tables.
        level: Level of the intervals.
        seed: Seed of the draws.

    Raises:
        PredictionError: No slide of a table has a label, or all slides are of one patient.
        SettingsError: The rounds, the level or the seed are impossible.

    Example:
        >>> from sgpmil.bags.target import ClassTarget
        >>> from sgpmil.evaluation.prediction import Prediction
        >>> slides = [
        ...     Prediction.from_samples(str(i), "", i % 2, np.eye(2)[[i % 2]])
        ...     for i in range(14)
        ... ]
        >>> all_right = PredictionTable(tuple(slides), ClassTarget(("no", "yes")))
        >>> found = bootstrap_intervals(all_right).of("accuracy")
        >>> found.value, round(found.low, 3), found.high
        (1.0, 0.786, 1.0)
    """
    _check_settings(rounds, level, seed)
    given = [tables] if isinstance(tables, PredictionTable) else list(tables)
    known = [table.labelled() for table in given]
    found = [slide_metrics(table) for table in known]
    ids = [patient_ids(table) for table in known]
    names = sorted({name for own in ids for name in own})
    num_slides = sum(map(len, known))
    if len(names) < 2:
        raise PredictionError(
            f"Expected slides of at least two patients to resample, but all {num_slides} slides "
            f"with a label are of '{names[0]}'. Correct the case_id column, or take each slide for "
            "its own patient (without_patients)."
        )
    number_of = {name: number for number, name in enumerate(names)}
    patients = [np.array([number_of[name] for name in own]) for own in ids]
    urn = _Urn(known, patients, len(names), seed)
    size = max(1, _CHUNK // num_slides)
    chunks = [range(first, min(first + size, rounds)) for first in range(0, rounds, size)]
    # numpy works without the interpreter's lock, so threads do run side by side.
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        values = np.concatenate(list(pool.map(urn.values, chunks)))
    ends = ((1 - level) / 2, (1 + level) / 2)
    intervals = []
    for metric, column in zip(SLIDE_METRICS, values.T, strict=True):
        own = _mean(np.array([[[one[metric.key]]] for one in found])).item()
        defined = column[~np.isnan(column)]
        low, high = np.quantile(defined, ends) if len(defined) else (np.nan, np.nan)
        # Chance slides lower a perfect metric in most rounds: its interval still holds it.
        low, high = float(np.fmin(low, own)), float(np.fmax(high, own))
        intervals.append(Interval(metric.key, own, low, high, len(defined)))
    return Intervals(tuple(intervals), level, rounds, len(names), num_slides)


class _Urn:
    """Patients of some tables, and chance slides, from which rounds are drawn.

    Args:
        tables: Labelled slides of each table.
        patients: Number of the patient of each slide of each table.
        num_patients: Number of patients of all tables.
        seed: Seed of the draws.
    """

    def __init__(
        self,
        tables: Sequence[PredictionTable],
        patients: Sequence[Int[np.ndarray, " _"]],
        num_patients: int,
        seed: int,
    ) -> None:
        self.patients, self.num_patients, self.seed = patients, num_patients, seed
        added = [_chance_slides(table) for table in tables]
        self.slides = [
            SortedSlides(replace(table, predictions=(*table.predictions, *slides)))
            for table, (slides, _) in zip(tables, added, strict=True)
        ]
        self.num_chance = [len(slides) for slides, _ in added]
        num_slides = sum(map(len, tables))
        # A table has as much of the chance as it has of the slides.
        weights = [
            shares * (len(table) / num_slides)
            for table, (_, shares) in zip(tables, added, strict=True)
        ]
        self.cumulated = np.concatenate(weights).cumsum()
        # A chance slide counts as much as the slides of a patient.
        self.slides_each = max(1, round(num_slides / num_patients))

    def values(self, rounds: range) -> Float[np.ndarray, "r metrics"]:
        """Measure each of some rounds, as the mean over the tables."""
        drawn, by_chance = self._draw(rounds)
        first, found = 0, []
        for slides, patient, num in zip(self.slides, self.patients, self.num_chance, strict=True):
            own = np.take(drawn, patient, axis=1)
            counts = np.concatenate([own, by_chance[:, first : first + num]], axis=1)
            first += num
            is_empty = counts.sum(axis=1) == 0
            counts[is_empty, 0] = 1
            resampled = Resampled(slides, counts)
            values = np.stack([metric.over(resampled) for metric in SLIDE_METRICS], axis=1)
            values[is_empty] = math.nan
            found.append(values)
        return _mean(np.array(found))

    def _draw(self, rounds: range) -> tuple[Int[np.ndarray, "r P"], Int[np.ndarray, "r K"]]:
        """Count how often each patient, and each chance slide, is drawn in each of some rounds."""
        P, K = self.num_patients, len(self.cumulated)
        drawn = np.empty((len(rounds), P), dtype=np.int32)
        by_chance = np.empty((len(rounds), K), dtype=np.int32)
        for row, number in enumerate(rounds):
            rng = np.random.default_rng([self.seed, number])
            num = rng.binomial(P, CHANCE_PATIENTS / (P + CHANCE_PATIENTS))
            drawn[row] = np.bincount(rng.integers(P, size=P - num), minlength=P)
            chosen = np.searchsorted(self.cumulated, rng.random(num), side="right")
            by_chance[row] = np.bincount(np.minimum(chosen, K - 1), minlength=K) * self.slides_each
        return drawn, by_chance


def _chance_slides(
    table: PredictionTable,
) -> tuple[tuple[Prediction, ...], Float[np.ndarray, " K"]]:
    """Give predictions of the table the label of each class that occurs, and their shares.

    Of more than `_CHANCE_PREDICTIONS` slides, as many are taken, evenly in the order of their
    probabilities.
    """
    order = np.lexsort(table.probs.T)
    num = min(len(order), _CHANCE_PREDICTIONS)
    chosen = order[np.round(np.linspace(0, len(order) - 1, num)).astype(int)]
    shares = np.bincount(table.labels, minlength=table.num_classes) / len(table)
    slides = tuple(
        replace(table.predictions[i], slide_id=f"chance {c} {i}", label=int(c), instances=None)
        for c in np.flatnonzero(shares)
        for i in chosen
    )
    return slides, np.repeat(shares[shares > 0] / num, num)


def _mean(values: Float[np.ndarray, "F r metrics"]) -> Float[np.ndarray, "r metrics"]:
    """Average over the tables in which a value is defined; NaN where it is in none."""
    defined = ~np.isnan(values)
    num = defined.sum(axis=0)
    total = np.where(defined, values, 0.0).sum(axis=0)
    return np.asarray(np.where(num > 0, total / np.maximum(num, 1), math.nan))


def _check_settings(rounds: int, level: float, seed: int) -> None:
    if rounds < 1:
        raise SettingsError(f"Expected at least one round, but got {rounds}. Use 1000.")
    if not 0 < level < 1:
        raise SettingsError(f"Expected a level between 0 and 1, but got {level}. Use 0.95.")
    if seed < 0:
        raise SettingsError(f"Expected a seed of at least 0, but got {seed}. Use 0.")
