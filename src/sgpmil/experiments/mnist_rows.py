"""Rows of the MNIST table: every model behind the network of the ABMIL paper, and the paper's row.

All rows are trained alike, with the released optimiser of the SGPMIL paper (AdamW, cosine) on
packed steps: 20 epochs, sixteen bags a step, every bag once an epoch. A row has the middle one of
`RATES`, which ``sgpmil experiment mnist --choose`` compares on validation bags of training digits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sgpmil.errors import SettingsError
from sgpmil.experiments.uncertainty_designs import Design, parse_design
from sgpmil.models.registry import unknown_name

COLUMNS = ("auc", "ace", "instance_f1", "instance_froc", "instance_auc", "instance_ace")
"""Columns of the paper's table: of bags, then of instances."""

RATES = (2e-4, 5e-4, 1e-3)
"""Learning rates that are compared on validation bags for every row. The released 1e-4 of one bag a
step is 4e-4 of sixteen by `sgpmil.training.settings.scaled_rate`."""

TRAINING: Mapping[str, Any] = {
    "epochs": 20,
    "bags_per_step": 16,
    "optimiser": "adamw",
    "betas": (0.9, 0.999),
    "weight_decay": 5e-5,
    "schedule": "cosine",
    "warmup_epochs": 2,
    "warmup_learning_rate": 1e-5,
    "min_learning_rate": 1e-6,
    "accumulate_steps": 1,
    "gradient_clip": 1.0,
    "balanced_sampling": False,
    "select": "last",
    "patience": 0,
}
"""Training of every row."""

_BEHIND_CNN = {"encoder": "digit-cnn", "standardise": False}


@dataclass(frozen=True)
class PaperRow:
    """A row of the paper's table, under `COLUMNS`.

    Args:
        name: Name of the model there.
        values: Its figures.
    """

    name: str
    values: tuple[float, float, float, float, float, float]


PAPER = {
    row.name: row
    for row in (
        PaperRow("ABMIL", (0.986, 0.030, 0.958, 0.816, 0.987, 0.033)),
        PaperRow("CLAM", (0.989, 0.021, 0.952, 0.813, 0.999, 0.039)),
        PaperRow("TransMIL", (0.990, 0.021, 0.980, 0.826, 0.993, 0.025)),
        PaperRow("DGRMIL", (0.996, 0.016, 0.979, 0.827, 0.996, 0.013)),
        PaperRow("BayesMIL", (0.990, 0.019, 0.968, 0.824, 0.994, 0.019)),
        PaperRow("AGP", (0.994, 0.046, 0.957, 0.820, 0.981, 0.083)),
        PaperRow("SGPMIL", (0.995, 0.009, 0.978, 0.830, 0.998, 0.050)),
    )
}
"""The paper's table."""


@dataclass(frozen=True)
class MnistRow:
    """A row of our table.

    Args:
        name: Its name, and that of its folder of results.
        model: A name of `sgpmil.list_models`.
        paper: Name of the same model in the paper's table; empty where it is not there.
        rate: Learning rate.
        settings: Settings of the model that differ from its defaults.
        training: Training settings that differ from `TRAINING`.
    """

    name: str
    model: str
    paper: str = ""
    rate: float = 5e-4
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def design(self) -> Design:
        """The model with its settings and training."""
        return Design(
            self.name,
            self.model,
            {**_BEHIND_CNN, **self.settings},
            {**TRAINING, "learning_rate": self.rate, **self.training},
        )


ROWS = {
    row.name: row
    for row in (
        # Features are pixels, and the network needs them side by side.
        MnistRow("sgpmil", "sgpmil", "SGPMIL", settings={"feature_dropout": 0.0}),
        MnistRow("sgpmil-points", "sgpmil", "SGPMIL", rate=2e-4, settings={"preset": "points"}),
        MnistRow("sgpmil-paper", "sgpmil", "SGPMIL", rate=2e-4, settings={"preset": "paper"}),
        MnistRow("sgpmil-released", "sgpmil", "SGPMIL", rate=2e-4, settings={"preset": "released"}),
        MnistRow("abmil", "abmil", "ABMIL", rate=2e-4),
        MnistRow("abmil-deep", "abmil", "ABMIL", settings={"preset": "deep"}),
        MnistRow("clam-sb", "clam-sb", "CLAM", rate=2e-4),
        MnistRow("clam-mb", "clam-mb", "CLAM", rate=2e-4),
        MnistRow("dsmil", "dsmil"),
        MnistRow("transmil", "transmil", "TransMIL", rate=1e-3),
        MnistRow("dgrmil", "dgrmil", "DGRMIL"),
        # Images of a bag have no place among each other.
        MnistRow("bayesmil", "bayesmil", "BayesMIL", rate=1e-3, settings={"spatial": False}),
        # It standardises over the bags of a step, and needs many.
        MnistRow("mixmil", "mixmil", rate=1e-3, training={"bags_per_step": 64, "epochs": 40}),
        MnistRow("agp", "agp", "AGP", rate=2e-4),
        MnistRow("kernel-attention", "kernel-attention"),
        MnistRow("max-pool", "max-pool", rate=2e-4),
        MnistRow("mean-pool", "mean-pool"),
    )
}
"""Rows of our table by name."""


def choose_rows(names: tuple[str, ...] = ()) -> list[Design]:
    """Return the rows of some names, or all.

    Raises:
        SettingsError: There is no such row.
    """
    for name in names:
        if name not in ROWS:
            raise SettingsError(unknown_name("row", name, list(ROWS)))
    return [row.design for name, row in ROWS.items() if not names or name in names]


def own_row(text: str) -> Design:
    """Read a row from text: ``NAME:key=value,...``, or ``ROW@NAME:key=value,...``.

    ``sgpmil@wide:num_inducing=160`` is the row ``sgpmil`` with that setting. Without a row in
    front, it starts from the model alone, behind the network of images.

    Raises:
        SettingsError: The text has another form, or there is no such row or setting.

    Example:
        >>> own_row("abmil@slow:training.learning_rate=1e-4").training["learning_rate"]
        0.0001
    """
    name, colon, values = text.partition(":")
    row, at, _ = name.partition("@")
    if not at:
        given = parse_design(text)
        start = MnistRow(given.name, given.model).design
    elif row in ROWS:
        start = ROWS[row].design
        model = f"model={start.model}"
        given = parse_design(f"{name}{colon}{model}{',' if values else ''}{values}")
    else:
        raise SettingsError(unknown_name("row", row, list(ROWS)))
    found = replace(
        given,
        settings={**start.settings, **given.settings},
        training={**start.training, **given.training},
    )
    found.resolved()  # refuses what is impossible before anything is trained
    return found


def with_rates(designs: list[Design]) -> list[Design]:
    """Return each design with each of `RATES`, as ``abmil@0.0002``."""
    return [
        replace(one, name=f"{one.name}@{rate:g}", training={**one.training, "learning_rate": rate})
        for one in designs
        for rate in RATES
    ]
