"""Warning of slides that are unlike the training slides."""

import warnings
from collections.abc import Sequence

from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable

UNLIKE = 0.01
"""Largest p-value of a slide that is called unlike the training slides."""

_ROUNDED = 1 + 1e-6
"""Factor that admits a p-value at the limit, which files hold in single precision."""


class NoveltyWarning(UserWarning):
    """Most of the slides that are predicted are unlike the training slides."""


def unlike_level(num_training: int | None) -> float:
    """Return the p-value up to which a slide is called unlike the training slides.

    It is .01, or, where there are too few training slides for that, the smallest p-value that they
    allow. An unknown number (None) counts as many.
    """
    return UNLIKE if num_training is None else max(UNLIKE, 1 / (1 + num_training))


def is_unlike(prediction: Prediction, num_training: int | None) -> bool:
    """Check whether a slide is unlike the training slides.

    Args:
        prediction: Prediction of the slide.
        num_training: Number of training slides that its p-value comes from; None where unknown.
    """
    return bool(prediction.novelty_p <= unlike_level(num_training) * _ROUNDED)


def unlike_slides(table: PredictionTable, num_training: int | None) -> list[Prediction]:
    """Return the slides that are unlike the training slides.

    Args:
        table: Predictions.
        num_training: Number of training slides that the p-values come from; None where unknown.
    """
    return [p for p in table.predictions if is_unlike(p, num_training)]


def novelty_warning(table: PredictionTable, num_training: int) -> str:
    """Name the slides that are unlike the training slides; empty without any.

    Args:
        table: Predictions.
        num_training: Number of training slides that the p-values come from.
    """
    unlike = unlike_slides(table, num_training)
    return novelty_sentence(most_unlike(unlike), len(unlike), len(table), num_training)


def most_unlike(unlike: Sequence[Prediction]) -> list[Prediction]:
    """Return the three slides that a warning names."""
    return sorted(unlike, key=lambda p: (p.novelty_p, -p.novel_share))[:3]


def novelty_sentence(
    worst: Sequence[Prediction], num_unlike: int, num_slides: int, num_training: int
) -> str:
    """Say how many slides are unlike the training slides; empty where chance makes as many.

    Args:
        worst: Those that are named (`most_unlike`).
        num_unlike: Number of slides that are unlike.
        num_slides: Number of slides.
        num_training: Number of training slides that the p-values come from.
    """
    level = unlike_level(num_training)
    if num_unlike <= level * num_slides:
        return ""
    named = ", ".join(f"{p.slide_id} ({p.novel_share:.0%} of its patches)" for p in worst)
    more = "" if num_unlike == len(worst) else f" and {num_unlike - len(worst)} more"
    return (
        f"{num_unlike} of {num_slides} slides {'is' if num_unlike == 1 else 'are'} unlike the "
        f"training slides (p <= {level:.2g}; {level * num_slides:.1f} expected by chance): another "
        f"scanner, stain or encoder? {named}{more}."
    )


def warn_where_most_are_unlike(table: PredictionTable, num_training: int) -> None:
    """Warn where more than half of the slides are unlike the training slides.

    A few slides that are so by chance, with a probability above .01, give no warning.
    """
    count = len(unlike_slides(table, num_training))
    chance = unlike_level(num_training) ** count
    if 2 * count > len(table) and chance <= UNLIKE * _ROUNDED:
        warnings.warn(novelty_warning(table, num_training), NoveltyWarning, stacklevel=3)
