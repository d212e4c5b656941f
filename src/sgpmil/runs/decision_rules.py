"""Rules of `sgpmil predict` that turn predictions into decisions, calibrated on other slides."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import PredictionError, SettingsError
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.calibration_slides import MIN_CALIBRATION_SLIDES
from sgpmil.evaluation.uncertainty.conformal import (
    ConformalPredictor,
    conformal_method,
    fit_conformal,
)
from sgpmil.evaluation.uncertainty.decisions import DeferralRule, fit_deferral
from sgpmil.evaluation.uncertainty.measures import uncertainty_measure
from sgpmil.options import Options
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.run import RunFold
from sgpmil.runs.trained_model import TrainedModel


@dataclass(frozen=True, kw_only=True)
class DecisionOptions(Options):
    """Decisions on predicted slides.

    Args:
        coverage: Give each slide a set of classes that contains its label this often, such as 0.9.
            The coverage is approximate where the calibration slides chose the epoch. It does not
            hold for slides from another scanner or hospital.
        conformal: Kind of the sets of ``coverage``: lac (the smallest; default) or aps (adaptive).
        defer: Mark about this share of slides for a human, such as 0.1. These slides are less
            certain than the rest of the calibration slides.
        defer_by: Uncertainty for ``defer``: entropy (default), max_probability, std, mean_std,
            mutual_information or expected_entropy.
        calibration: Predictions of the same model (file or folder) to calibrate ``coverage`` and
            ``defer`` on; by default those of the fold's validation slides.
    """

    coverage: float | None = None
    conformal: str | None = None
    defer: float | None = None
    defer_by: str | None = None
    calibration: Path | None = None


@dataclass(frozen=True, slots=True)
class DecisionRules:
    """Rules that turn predictions into decisions.

    Args:
        conformal: Prediction sets; None where not asked for.
        deferral: Deferral to a human; None where not asked for.
        calibration: Predictions that both are fitted on; None where neither is asked for.
    """

    conformal: ConformalPredictor | None = None
    deferral: DeferralRule | None = None
    calibration: PredictionTable | None = None

    @property
    def provenance(self) -> dict[str, Any]:
        """Entries of `PredictionProvenance` on the prediction sets."""
        if self.conformal is None:
            return {}
        return {
            "coverage": self.conformal.coverage,
            "num_calibration": sum(self.conformal.num_calibration),
        }

    def notes(
        self, num_slides: int, num_members: int, num_deferred: int, num_shared: int
    ) -> tuple[str, ...]:
        """Return sentences on the decisions of a table.

        Args:
            num_slides: Number of slides.
            num_members: Number of classes in all of their sets.
            num_deferred: Number of slides that go to a human.
            num_shared: Number of slides that are, or share a patient with, calibration slides.
        """
        lines = []
        if self.conformal is not None:
            lines.append(
                f"Sets: {self.conformal.method.upper()}, coverage {self.conformal.coverage:g}, "
                f"from {sum(self.conformal.num_calibration)} calibration slides; "
                f"{num_members / max(1, num_slides):.2f} classes on average."
            )
            lines.append(_few_calibration(self.conformal))
            lines.append(self.conformal.note)
        if self.deferral is not None:
            threshold = self.deferral.threshold
            lines.append(
                f"To a human: {num_deferred} of {num_slides} slides, with "
                f"{self.deferral.measure} above "
                f"{'nothing' if math.isinf(threshold) else f'{threshold:.3g}'}; expected "
                f"{self.deferral.expected_share:.1%} of slides like the "
                f"{self.deferral.num_slides} calibration slides."
            )
        if num_shared:
            lines.append(
                f"{num_shared} of the {num_slides} slides, or other slides of their patients, are "
                "calibration slides: coverage and deferral are not guaranteed for them."
            )
        return tuple(line for line in lines if line)

    def num_shared(self, table: PredictionTable) -> int:
        """Count slides that are, or share a patient with, calibration slides by name."""
        known = (
            set()
            if self.calibration is None
            else {name for p in self.calibration.predictions for name in (p.slide_id, p.case_id)}
        )
        return sum(p.slide_id in known or p.case_id in known for p in table.predictions)


def calibrate(options: DecisionOptions, model: TrainedModel, source: Path) -> DecisionRules:
    """Fit prediction sets and deferral on calibration slides.

    Args:
        options: The sets and the deferral that are asked for.
        model: The model.
        source: Its place, with the predictions of its validation slides.

    Raises:
        SettingsError: An option needs another one that is not given.
        PredictionError: There are no calibration slides, or too few.
    """
    coverage, defer = options.coverage, options.defer
    if coverage is None and options.conformal is not None:
        raise SettingsError("`conformal` is about `coverage`. Add `coverage=0.9`.")
    if defer is None and options.defer_by is not None:
        raise SettingsError("`defer_by` is about `defer`. Add `defer=0.1`.")
    if coverage is None and defer is None:
        if options.calibration is not None:
            raise SettingsError(
                "`calibration` is for `coverage` and `defer`. Add one of them, or leave it out."
            )
        return DecisionRules()
    if options.calibration is None and len(model) > 1:
        raise SettingsError(
            "`coverage` and `defer` of several folds together need slides that none of the folds "
            "was trained on. Predict such slides with them, and name them with `calibration`."
        )
    table = _with_target(_read_calibration(options, source), model.target)
    sets = rule = None
    if coverage is not None:
        sets = fit_conformal(table, coverage, conformal_method(options.conformal or "lac"))
    if defer is not None:
        rule = fit_deferral(table, defer, uncertainty_measure(options.defer_by or "entropy"))
    return DecisionRules(sets, rule, table)


def _read_calibration(options: DecisionOptions, model: Path) -> PredictionTable:
    if options.calibration is not None:
        given = read_predictions(options.calibration)
        unseen = tuple(p for p in given.predictions if p.seen not in ("train", "patient"))
        if not unseen:
            raise PredictionError(
                f"Expected calibration slides that the model has not seen, but it was trained on "
                f"all {len(given)} of {options.calibration}. Predict other slides for it."
            )
        return replace(given, predictions=unseen)
    # Weights of another epoch in the same folder did not make the validation predictions.
    folder = model.parent if model.stem == "checkpoint" and model.is_file() else model
    fold = RunFold(folder.name, folder)
    table = fold.validation
    if table is None:
        raise PredictionError(
            f"Expected predictions of validation slides in {fold.validation_path} for `coverage` "
            "and `defer`, but there are none. Train with validation slides, or name predictions "
            "of other slides with `calibration`."
        )
    return table


def _with_target(table: PredictionTable, target: Target) -> PredictionTable:
    """Name numbered classes, such as those of a CSV, after the model's."""
    if table.target.names in (target.names, ClassTarget.numbered(target.num_outputs).names):
        return replace(table, target=target)
    if table.target != target:
        raise PredictionError(
            f"Expected calibration slides of {target}, as the model has, but got {table.target}. "
            "Use predictions of this model."
        )
    return table


def _few_calibration(conformal: ConformalPredictor) -> str:
    """Say how far the coverage may be off, where calibration slides are few."""
    from scipy.stats import beta

    num = sum(conformal.num_calibration)
    rank = math.ceil((num + 1) * conformal.coverage - 1e-9)
    if num >= MIN_CALIBRATION_SLIDES or rank > num:
        return ""
    return (
        f"{num} calibration slides are few: of sets made from so many, one in twenty covers less "
        f"than {beta.ppf(0.05, rank, num + 1 - rank):.0%} of new slides."
    )


def mark_calibration(table: PredictionTable, calibration: PredictionTable) -> PredictionTable:
    """Note the calibration slides, and which of the predicted slides are among them."""
    known = {p.slide_id for p in calibration.predictions}
    cases = {p.case_id for p in calibration.predictions if p.case_id}
    origin, own = calibration.provenance, table.provenance
    recorded = {} if origin is None else origin.slides
    digests = {recorded[name] for name in calibration.slide_ids if name in recorded}
    slides = {} if own is None else own.slides

    def marked(prediction: Prediction) -> Prediction:
        is_known = (
            prediction.slide_id in known
            or prediction.case_id in cases
            or slides.get(prediction.slide_id) in digests
        )
        return (
            replace(prediction, seen="calibration")
            if is_known and not prediction.seen
            else prediction
        )

    return replace(
        table,
        predictions=tuple(map(marked, table.predictions)),
        provenance=None if own is None else replace(own, calibration=tuple(sorted(digests))),
    )
