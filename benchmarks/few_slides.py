"""Coverage of confidence intervals, and worth of temperatures, on few slides.

    python benchmarks/few_slides.py [--quick]

Draws test sets of a calibrated model of two classes (scores normal around ±d/2, so that AUC,
accuracy and NLL of all slides are known), and counts how often the 95 % interval of
`bootstrap_intervals` holds the truth, against the plain percentile bootstrap. Then fits
temperatures on few validation slides and measures what they do to the NLL of other slides.
"""

import argparse
import math

import numpy as np
from scipy.stats import norm

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import bootstrap
from sgpmil.evaluation.calibration import negative_log_likelihood
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.temperature import fit_temperature, scale_probabilities

METRICS = ("auc", "balanced_accuracy", "accuracy", "nll", "brier")
NOTHING = np.full(2, np.nan)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    num_sets, rounds = (20, 100) if parser.parse_args().quick else (400, 400)
    rng = np.random.default_rng(0)
    print(f"Coverage of 95 % intervals in {num_sets} test sets: ours (percentile bootstrap)")
    print("slides  AUC    " + "  ".join(f"{name:>17}" for name in METRICS))
    for num_slides in (14, 30, 70, 200):
        for distance in (1.0, 2.0, 3.3):
            _intervals(rng, num_slides, distance, num_sets, rounds)
    print(f"\nTemperature: change of the NLL of other slides, {num_sets} validation sets")
    print("slides  T      mean change   made worse")
    for num_slides in (10, 20, 30, 50, 100):
        for temperature in (1.0, 1.5, 2.0):
            _temperatures(rng, num_slides, temperature, num_sets)


def _intervals(
    rng: np.random.Generator, num_slides: int, distance: float, num_sets: int, rounds: int
) -> None:
    truth = _truth(rng, distance)
    held = {chance: np.zeros(len(METRICS)) for chance in (2.0, 0.0)}
    for _ in range(num_sets):
        labels = np.zeros(num_slides, dtype=int)
        while labels.min() == labels.max():
            labels = rng.integers(0, 2, num_slides)
        table = _table(_probabilities(rng, labels, distance), labels)
        for chance, count in held.items():
            bootstrap.CHANCE_PATIENTS = chance
            found = bootstrap.bootstrap_intervals(table, rounds)
            count += [found.of(m).low <= truth[m] <= found.of(m).high for m in METRICS]
    cells = [
        f"{a / num_sets:9.3f} ({b / num_sets:.3f})" for a, b in zip(*held.values(), strict=True)
    ]
    print(f"{num_slides:6d}  {truth['auc']:.3f}  " + "  ".join(cells), flush=True)


def _temperatures(
    rng: np.random.Generator, num_slides: int, temperature: float, num_sets: int
) -> None:
    others = _logits(rng, 20_000)
    before = _nll(_scaled(others[0], temperature), others[1])
    changes = []
    for _ in range(num_sets):
        logits, labels = _logits(rng, num_slides)
        fitted = fit_temperature(_table(_scaled(logits, temperature), labels)).value
        after = scale_probabilities(_scaled(others[0], temperature), fitted)
        changes.append(_nll(after, others[1]) - before)
    worse = np.mean(np.array(changes) > 0.005)
    print(
        f"{num_slides:6d}  {temperature:.1f}   {np.mean(changes):+11.3f}   {worse:10.2f}",
        flush=True,
    )


def _truth(rng: np.random.Generator, distance: float) -> dict[str, float]:
    labels = rng.integers(0, 2, 400_000)
    probs = _probabilities(rng, labels, distance)
    accuracy = float(norm.cdf(distance / 2))
    return {
        "auc": float(norm.cdf(distance / math.sqrt(2))),
        "balanced_accuracy": accuracy,
        "accuracy": accuracy,
        "nll": _nll(probs, labels),
        "brier": float(2 * ((probs[:, 1] - labels) ** 2).mean()),
    }


def _probabilities(rng: np.random.Generator, labels: np.ndarray, distance: float) -> np.ndarray:
    return _scaled(distance * rng.normal((labels - 0.5) * distance), 1.0)


def _logits(rng: np.random.Generator, num_slides: int) -> tuple[np.ndarray, np.ndarray]:
    logits = rng.normal(0, 2, num_slides)
    return logits, (rng.random(num_slides) < 1 / (1 + np.exp(-logits))).astype(int)


def _scaled(logits: np.ndarray, temperature: float) -> np.ndarray:
    p = 1 / (1 + np.exp(-logits * temperature))
    return np.stack([1 - p, p], axis=1)


def _nll(probs: np.ndarray, labels: np.ndarray) -> float:
    return negative_log_likelihood(probs, labels)


def _table(probs: np.ndarray, labels: np.ndarray) -> PredictionTable:
    slides = (
        Prediction(f"{i}", "", int(label), own, NOTHING, 0.0, math.nan, math.nan)
        for i, (own, label) in enumerate(zip(probs, labels, strict=True))
    )
    return PredictionTable(tuple(slides), ClassTarget(("no", "yes")))


if __name__ == "__main__":
    main()
