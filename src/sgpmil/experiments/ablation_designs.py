"""Designs of the ablations: one setting at a time, and the grid of the paper.

A *base* is a whole design: ``default``, the package's own settings and training, or ``paper``, the
settings of the paper's text with its training. `ABLATIONS` has one row for each value of each axis
around each base, the base's own value among them, and the rows of the paper's table (``grid``).
Rows that are the same design share its runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sgpmil.experiments.uncertainty_designs import Design

PAPER_TRAINING: dict[str, Any] = {
    "epochs": 20,
    "learning_rate": 6e-4,
    "weight_decay": 1e-5,
    "warmup_epochs": 6,
    "warmup_learning_rate": 1e-5,
    "min_learning_rate": 1e-7,
    "bags_per_step": 1,
    "prevalence": "balanced",
}
"""Training of the paper, as in the recipe ``paper``."""

BASES: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "default": ({}, {}),
    "paper": ({"preset": "paper"}, PAPER_TRAINING),
}
"""Settings and training of each base."""


@dataclass(frozen=True)
class AblationRow:
    """A row of the ablations.

    Args:
        base: Name of the base, or ``grid``.
        axis: What is varied.
        value: The value, in words.
        design: The design; rows may share one.
        published: Figures of the paper on CAMELYON16: bag accuracy, AUC and ACE, and instance AUC
            and ACE; empty where it has none.
    """

    base: str
    axis: str
    value: str
    design: Design
    published: tuple[float, ...] = ()


_LEARNED = {
    "inducing": "points",
    "inputs": "sigmoid",
    "preserved_dim": 0,
    "lengthscale_start": "cube",
}

AXES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "default": {
        "mean": {
            "constant": {},
            "linear": {"mean": "linear"},
            "linear part under the KL": {"linear_scale": 0.5},
        },
        "activation": {
            "softmax": {},
            "sigmoid": {"activation": "sigmoid"},
            "sigmoid, normalised": {"activation": "sigmoid", "pooling": "normalised"},
        },
        "sampling": {
            "inducing": {},
            "independent (diagonal)": {"sampling": "independent"},
            "shared": {"sampling": "shared"},
            "full": {"sampling": "full"},
        },
        "inducing points": {
            "16": {"num_inducing": 16},
            "32": {"num_inducing": 32},
            "64": {"num_inducing": 64},
            "80": {},
            "160": {"num_inducing": 160},
        },
        "kernel": {
            "RBF": {},
            "RBF + constant": {"kernel": "rbf"},
            "Matérn 5/2": {"kernel": "matern52"},
            "Matérn 1/2": {"kernel": "matern12"},
            "linear": {"kernel": "linear"},
        },
        "likelihood": {
            "mean log p": {},
            "mean logits": {"likelihood": "mean_logits"},
            "log mean p": {"likelihood": "log_mean_prob"},
        },
        "pooling": {"sum": {}, "mean over N": {"pooling": "mean"}},
        "start": {
            "patches, chosen anew": {},
            "patches, chosen once": {"renewals": ()},
            "learned points, sigmoids": _LEARNED,
        },
        "samples": {
            "1": {"num_samples": 1},
            "5": {"num_samples": 5},
            "10": {"num_samples": 10},
            "30": {},
            "100": {"num_samples": 100},
        },
    },
    "paper": {
        "mean": {"linear": {}, "constant": {"mean": "constant", "mean_bias": 0.0}},
        "activation": {"sigmoid": {}, "softmax": {"activation": "softmax"}},
        "sampling": {
            "independent (diagonal)": {},
            "shared": {"sampling": "shared"},
            "inducing": {"sampling": "inducing"},
            "full": {"sampling": "full"},
        },
        "inducing points": {
            "16": {"num_inducing": 16},
            "32": {"num_inducing": 32},
            "64": {"num_inducing": 64},
            "80": {},
        },
        "kernel": {
            "RBF": {},
            "Matérn 5/2": {"kernel": "matern52"},
            "linear": {"kernel": "linear"},
        },
        "likelihood": {
            "mean log p": {},
            "mean logits": {"likelihood": "mean_logits"},
            "log mean p": {"likelihood": "log_mean_prob"},
        },
        "pooling": {
            "sum": {},
            "normalised": {"pooling": "normalised"},
            "mean over N": {"pooling": "mean"},
        },
        "start": {
            "uniform, log 2": {},
            "uniform, half the cube's diagonal": {"lengthscale_start": "cube"},
            "k-means, median distance": {
                "inducing_start": "kmeans",
                "lengthscale_start": "median",
            },
            "mean's weights × .1, bias −4": {"mean_scale": 0.1, "mean_bias": -4.0},
            "standardised features": {"standardise": True},
        },
        "samples": {
            "1": {"num_samples": 1},
            "5": {"num_samples": 5},
            "10": {"num_samples": 10},
            "30": {},
            "100": {"num_samples": 100},
        },
    },
}
"""Settings that each value of each axis changes of a base."""

_GRID: tuple[tuple[str, dict[str, Any], tuple[float, ...]], ...] = (
    (
        "constant, softmax, full, 16",
        {"mean": "constant", "activation": "softmax", "sampling": "full", "num_inducing": 16},
        (0.858, 0.933, 0.089, 0.946, 0.091),
    ),
    (
        "constant, softmax, full, 80",
        {"mean": "constant", "activation": "softmax", "sampling": "full"},
        (0.883, 0.954, 0.069, 0.953, 0.080),
    ),
    (
        "constant, sigmoid, full, 80",
        {"mean": "constant", "sampling": "full"},
        (0.936, 0.970, 0.049, 0.822, 0.320),
    ),
    (
        "linear, softmax, full, 80",
        {"activation": "softmax", "sampling": "full"},
        (0.971, 0.976, 0.027, 0.821, 0.173),
    ),
    ("linear, sigmoid, full, 80", {"sampling": "full"}, (0.972, 0.979, 0.065, 0.970, 0.103)),
    (
        "linear, softmax, diagonal, 80",
        {"activation": "softmax"},
        (0.973, 0.980, 0.024, 0.965, 0.070),
    ),
    ("linear, sigmoid, diagonal, 16", {"num_inducing": 16}, (0.971, 0.977, 0.045, 0.963, 0.271)),
    ("linear, sigmoid, diagonal, 80", {}, (0.980, 0.986, 0.021, 0.973, 0.051)),
)
"""Rows of the paper's table: mean, activation, covariance, inducing points; what they change of the
base ``paper``; and the published figures."""

_PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
    ("inducing points", "16"): (0.971, 0.977, 0.045, 0.963, 0.271),
    ("inducing points", "32"): (0.979, 0.985, 0.026, 0.970, 0.046),
    ("inducing points", "64"): (0.964, 0.981, 0.041, 0.910, 0.210),
    ("inducing points", "80"): (0.980, 0.986, 0.021, 0.973, 0.051),
    ("kernel", "RBF"): (0.980, 0.986, 0.021, 0.973, 0.051),
    ("kernel", "linear"): (0.973, 0.985, 0.048, 0.950, 0.113),
    ("kernel", "Matérn 5/2"): (0.985, 0.988, 0.024, 0.960, 0.062),
}


def ablation_rows() -> tuple[AblationRow, ...]:
    """Return all rows: the axes around each base, then the grid of the paper."""
    designs: dict[str, Design] = {}

    def design(base: str, name: str, changes: Mapping[str, Any]) -> Design:
        settings, training = BASES[base]
        made = Design(name, "sgpmil", {**settings, **changes}, training)
        same = [d for d in designs.values() if _same(d, made)]
        return same[0] if same else designs.setdefault(name, made)

    rows = [
        AblationRow(
            base,
            axis,
            value,
            design(base, base if not changes else f"{base}, {axis} {_plain(value)}", changes),
            _PUBLISHED.get((axis, value), ()) if base == "paper" else (),
        )
        for base, axes in AXES.items()
        for axis, values in axes.items()
        for value, changes in values.items()
    ]
    for value, changes, published in _GRID:
        own = design("paper", f"grid, {value}", _with_constant(changes))
        rows.append(AblationRow("grid", "mean, activation, covariance, M", value, own, published))
    return tuple(rows)


def _with_constant(changes: Mapping[str, Any]) -> dict[str, Any]:
    # A constant mean starts at 0, as published; a linear one is drawn.
    return {**changes, "mean_bias": 0.0} if changes.get("mean") == "constant" else {**changes}


def _same(first: Design, second: Design) -> bool:
    return (first.settings, first.training) == (second.settings, second.training)


def _plain(value: str) -> str:
    """Return a value as part of a folder's name."""
    return value.replace("/", "-").replace("é", "e").replace("×", "x").replace("−", "-")


ABLATIONS = ablation_rows()
"""All rows."""
