"""The options of `sgpmil predict` that turn predictions into decisions."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.output import console
from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.conformal import (
    ConformalPredictor,
    conformal_method,
    fit_conformal,
)
from sgpmil.evaluation.uncertainty.decisions import Decision
from sgpmil.evaluation.uncertainty.deferral import DeferralRule, fit_deferral
from sgpmil.evaluation.uncertainty.measures import uncertainty_measure
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.run import RunFold

__all__ = [
    "Calibration",
    "Conformal",
    "Coverage",
    "DecisionRules",
    "Defer",
    "DeferBy",
    "read_rules",
]

Coverage = Annotated[
    float | None,
    typer.Option(
        help="Give each slide a set of classes that holds its label this often, such as 0.9. "
        "Approximate where the calibration slides chose the epoch, and void for slides unlike "
        "them (another scanner or hospital).",
    ),
]
Conformal = Annotated[
    str | None,
    typer.Option(help="Sets for --coverage: lac (the smallest; default) or aps (adaptive)."),
]
Defer = Annotated[
    float | None,
    typer.Option(
        help="Mark about this share of slides for a human, such as 0.1: those above the "
        "uncertainty that this share of the calibration slides is above.",
    ),
]
DeferBy = Annotated[
    str | None,
    typer.Option(
        help="Uncertainty for --defer: entropy (default), max_probability, std, mean_std, "
        "mutual_information or expected_entropy."
    ),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        help="Predictions of the same model (file or folder) to calibrate --coverage and --defer "
        "on; by default those of the fold's validation slides."
    ),
]

_OWN_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """What decides slides.

    Args:
        conformal: What gives the sets, where they are asked for.
        deferral: What says who decides, where it is asked for.
        calibration: Predictions that both come from; None where neither is asked for.
    """

    conformal: ConformalPredictor | None = None
    deferral: DeferralRule | None = None
    calibration: PredictionTable | None = None

    def tell(self, table: PredictionTable, decisions: tuple[Decision, ...]) -> None:
        """Print what was decided, and what to know of it."""
        for line in self._lines(table, decisions):
            console.print(line)

    def _lines(self, table: PredictionTable, decisions: tuple[Decision, ...]) -> list[str]:
        lines = []
        if self.conformal is not None:
            sizes = [len(decision.prediction_set or ()) for decision in decisions]
            lines.append(
                f"Sets: {self.conformal.method.upper()}, coverage {self.conformal.coverage:g}, "
                f"from {sum(self.conformal.num_calibration)} calibration slides; "
                f"{sum(sizes) / max(1, len(sizes)):.2f} classes on average."
            )
            lines.append(self.conformal.note)
        if self.deferral is not None:
            deferred = sum(bool(decision.deferred) for decision in decisions)
            lines.append(
                f"To a human: {deferred} of {len(decisions)} slides, with "
                f"{self.deferral.measure} above {_told(self.deferral.threshold)}; expected "
                f"{self.deferral.expected_share:.1%} of slides like the "
                f"{self.deferral.num_slides} calibration slides."
            )
        if self.calibration is not None:
            lines.append(_told_overlap(table, self.calibration))
        return [line for line in lines if line]


def read_rules(
    model: Path,
    class_names: tuple[str, ...],
    *,
    coverage: float | None,
    conformal: str | None,
    defer: float | None,
    defer_by: str | None,
    calibration: Path | None,
) -> DecisionRules:
    """Calibrate what the options ask for.

    Args:
        model: Folder of a fold, or a checkpoint.
        class_names: Classes of the model.
        coverage: Coverage of the sets.
        conformal: Method of the sets.
        defer: Share of slides to defer.
        defer_by: Uncertainty to defer by.
        calibration: Predictions to calibrate on, instead of the fold's validation slides.

    Raises:
        SettingsError: An option needs another that is not given.
        PredictionError: There are no calibration slides, or they do not allow it.
    """
    if coverage is None and conformal is not None:
        raise SettingsError("--conformal chooses how --coverage is reached. Add --coverage 0.9.")
    if defer is None and defer_by is not None:
        raise SettingsError("--defer-by chooses what --defer goes by. Add --defer 0.1.")
    if coverage is None and defer is None:
        if calibration is not None:
            raise SettingsError(
                "--calibration is for --coverage and --defer. Add one of them, or leave it out."
            )
        return DecisionRules()
    table = _named(_read_calibration(model, calibration), class_names)
    sets = rule = None
    if coverage is not None:
        sets = fit_conformal(table, coverage, conformal_method(conformal or "lac"))
    if defer is not None:
        rule = fit_deferral(table, defer, uncertainty_measure(defer_by or "entropy"))
    return DecisionRules(sets, rule, table)


def _read_calibration(model: Path, calibration: Path | None) -> PredictionTable:
    if calibration is not None:
        return read_predictions(calibration)
    # Another epoch's weights in the same folder did not make the validation predictions.
    folder = model.parent if model.stem == _OWN_CHECKPOINT and model.is_file() else model
    fold = RunFold(folder.name, folder)
    table = fold.validation
    if table is None:
        raise PredictionError(
            f"Expected predictions of validation slides in {fold.validation_path} for --coverage "
            "and --defer, but there are none. Train with validation slides, or name predictions "
            "of other slides with --calibration."
        )
    return table


def _named(table: PredictionTable, class_names: tuple[str, ...]) -> PredictionTable:
    """Name numbered classes, as of a CSV, after the model's."""
    numbers = tuple(str(c) for c in range(len(class_names)))
    if table.class_names == numbers:
        return replace(table, class_names=class_names)
    if table.class_names != class_names:
        raise PredictionError(
            f"Expected calibration slides of the classes {', '.join(class_names)}, as the model "
            f"has, but got {', '.join(table.class_names)}. Use predictions of this model."
        )
    return table


def _told_overlap(table: PredictionTable, calibration: PredictionTable) -> str:
    known = {p.slide_id for p in calibration.predictions}
    known |= {p.case_id for p in calibration.predictions}
    shared = sum(p.slide_id in known or p.case_id in known for p in table.predictions)
    if not shared:
        return ""
    return (
        f"{shared} of the {len(table)} slides, or other slides of their patients, are calibration "
        "slides: what is said of coverage and deferral does not hold for them."
    )


def _told(threshold: float) -> str:
    return "nothing" if math.isinf(threshold) else f"{threshold:.3g}"
