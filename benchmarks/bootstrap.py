"""Time of confidence intervals of every metric, against a plain loop.

    python benchmarks/bootstrap.py [--quick]

Times `bootstrap_intervals` on the tables of ten models over ten folds (10,000 slides each, two
classes, 1,000 rounds), against the loop that draws slides, copies their rows and calls
scikit-learn's metrics, or this package's plain ones, on the copy. The loops are timed on a few
rounds of one table and multiplied up. `--quick` takes three tables of 2,000 slides.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from sklearn import metrics as sk

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.bootstrap import bootstrap_intervals
from sgpmil.evaluation.calibration import adaptive_calibration_error, expected_calibration_error
from sgpmil.evaluation.metrics import slide_metrics
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable

ROUNDS = 1000
LOOP_ROUNDS = 10


def main() -> None:
    """Time and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    num_tables, num_slides = (3, 2000) if quick else (100, 10_000)
    seconds, cpu_seconds = 0.0, 0.0
    for seed in range(num_tables):
        table = _table(num_slides, seed)
        started, cpu_started = time.perf_counter(), time.process_time()
        bootstrap_intervals(table, ROUNDS)
        seconds += time.perf_counter() - started
        cpu_seconds += time.process_time() - cpu_started
    print(f"{num_tables} tables of {num_slides} slides, {ROUNDS} rounds, eleven metrics")
    print(f"bootstrap_intervals      {seconds:10.1f} s   ({cpu_seconds:.1f} s of processor time)")
    probs, labels = table.probs, table.labels
    loops: dict[str, Callable[..., object]] = {"scikit-learn": _sklearn, "plain metrics": _plain}
    for name, metrics in loops.items():
        one_table = _loop(metrics, probs, labels) / LOOP_ROUNDS * ROUNDS
        total = one_table * num_tables
        print(
            f"loop with {name:14s} {total:10.1f} s   ({total / seconds:.0f} times as long; from "
            f"{LOOP_ROUNDS} rounds)"
        )


def _table(num_slides: int, seed: int) -> PredictionTable:
    """Make predictions of about .83 AUC; the deviations are of no account."""
    rng = np.random.default_rng(seed)
    p = rng.random(num_slides)
    labels = (rng.random(num_slides) < p).astype(int)
    unknown = np.full(2, np.nan)
    return PredictionTable(
        tuple(
            Prediction(f"{i:05d}", "", int(y), np.array([1 - q, q]), unknown, 0.0, 0.0, 0.0)
            for i, (q, y) in enumerate(zip(p, labels, strict=True))
        ),
        ClassTarget(("normal", "tumour")),
    )


def _loop(metrics: Callable[..., object], probs: np.ndarray, labels: np.ndarray) -> float:
    rng = np.random.default_rng(0)
    started = time.perf_counter()
    for _ in range(LOOP_ROUNDS):
        drawn = rng.integers(len(labels), size=len(labels))
        metrics(probs[drawn], labels[drawn])
    return time.perf_counter() - started


def _sklearn(probs: np.ndarray, labels: np.ndarray) -> object:
    """Call scikit-learn where it has the metric (it has no ACE and no ECE)."""
    scores, predicted = probs[:, 1], probs.argmax(axis=1)
    false_positives, true_positives, _ = sk.roc_curve(labels, scores)
    return (
        sk.balanced_accuracy_score(labels, predicted),
        sk.accuracy_score(labels, predicted),
        sk.roc_auc_score(labels, scores),
        sk.cohen_kappa_score(labels, predicted, weights="quadratic"),
        adaptive_calibration_error(probs, labels),
        expected_calibration_error(probs, labels),
        sk.log_loss(labels, probs),
        sk.brier_score_loss(labels, scores),
        sk.average_precision_score(labels, scores),
        sk.f1_score(labels, predicted),
        true_positives[false_positives <= 0.05].max(),
    )


def _plain(probs: np.ndarray, labels: np.ndarray) -> object:
    """Make a table of the copy, and call the plain form of every metric on it."""
    unknown = np.full(2, np.nan)
    rows = tuple(
        Prediction(str(i), "", int(y), p, unknown, 0.0, 0.0, 0.0)
        for i, (p, y) in enumerate(zip(probs, labels, strict=True))
    )
    return slide_metrics(PredictionTable(rows, ClassTarget(("normal", "tumour"))))


if __name__ == "__main__":
    main()
