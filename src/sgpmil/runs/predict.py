"""Predictions of a folder of slides by a trained model, with decisions calibrated on other slides.

The command ``sgpmil predict`` calls `predict_folder`.
"""

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sgpmil.bags.steps import BagOptions
from sgpmil.bags.target import ClassTarget, Target
from sgpmil.errors import PredictionError, RunFolderError, SettingsError
from sgpmil.evaluation.novelty_warning import novelty_warning
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import warn_of_other_features
from sgpmil.evaluation.uncertainty.calibration_slides import MIN_CALIBRATION_SLIDES
from sgpmil.evaluation.uncertainty.conformal import (
    ConformalPredictor,
    conformal_method,
    fit_conformal,
)
from sgpmil.evaluation.uncertainty.decisions import (
    Decision,
    DeferralRule,
    decide,
    fit_deferral,
)
from sgpmil.evaluation.uncertainty.measures import uncertainty_measure
from sgpmil.models.prevalence import expected_shares, prevalence_note, prior_shift
from sgpmil.processes import compute_device
from sgpmil.progress import progress_bar
from sgpmil.runs.prediction_files import read_predictions, write_predictions_csv
from sgpmil.runs.prediction_folder import (
    is_prediction_folder,
    write_prediction_folder,
    write_prediction_table,
)
from sgpmil.runs.run import RunFold
from sgpmil.runs.trained_model import TrainedModel, load

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class PredictOptions(BagOptions):
    """Options of `predict_folder`.

    Args:
        model: A run, whose folds then predict together; the folder of one fold (runs/x/fold-0); a
            .safetensors file; or a folder of sgpmil export, or its name on the Hugging Face hub.
        out: Folder to write to.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        precision: Arithmetic of the dense layers: 32, bf16, or auto (bf16 on GPUs that have it).
        prevalence: Class shares among the slides, which the probabilities are for: training (those
            of the training slides), balanced (all equal), the share of the second class of two,
            which is the positive one, such as 0.1, or shares such as tumour=0.1,normal=0.9. By
            default the prevalence that the model was trained with.
        instances: Write the scores of the instances to OUT/attention/.
        novelty: Compare the slides with the training slides, and warn of those unlike them.
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
        overwrite: Replace existing predictions.
    """

    model: Path
    out: Path = Path("predictions")
    device: str = "auto"
    precision: str = "auto"
    prevalence: str | None = None
    instances: bool = True
    novelty: bool = True
    coverage: float | None = None
    conformal: str | None = None
    defer: float | None = None
    defer_by: str | None = None
    calibration: Path | None = None
    overwrite: bool = False


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

    def notes(self, table: PredictionTable, decisions: tuple[Decision, ...]) -> tuple[str, ...]:
        """Return sentences on the decisions of a table."""
        lines = []
        if self.conformal is not None:
            sizes = [len(decision.prediction_set or ()) for decision in decisions]
            lines.append(
                f"Sets: {self.conformal.method.upper()}, coverage {self.conformal.coverage:g}, "
                f"from {sum(self.conformal.num_calibration)} calibration slides; "
                f"{sum(sizes) / max(1, len(sizes)):.2f} classes on average."
            )
            lines.append(_few_calibration(self.conformal))
            lines.append(self.conformal.note)
        if self.deferral is not None:
            deferred = sum(bool(decision.deferred) for decision in decisions)
            threshold = self.deferral.threshold
            lines.append(
                f"To a human: {deferred} of {len(decisions)} slides, with "
                f"{self.deferral.measure} above "
                f"{'nothing' if math.isinf(threshold) else f'{threshold:.3g}'}; expected "
                f"{self.deferral.expected_share:.1%} of slides like the "
                f"{self.deferral.num_slides} calibration slides."
            )
        if self.calibration is not None:
            lines.append(_overlap(table, self.calibration))
        return tuple(line for line in lines if line)


@dataclass(frozen=True, slots=True)
class PredictedFolder:
    """Predictions that `predict_folder` wrote.

    Args:
        path: Folder of the predictions.
        table: The predictions, without the scores of the instances.
        decisions: Decision on each slide.
        notes: Sentences on the probabilities and the decisions.
        warning: A sentence on slides that are unlike the training slides; empty without any.
    """

    path: Path
    table: PredictionTable
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...]
    warning: str = ""

    def to_pandas(self) -> "pd.DataFrame":
        """Return predictions and decisions as a pandas DataFrame, a row a slide.

        The columns are those of `PredictionTable.to_pandas`.
        """
        return self.table.to_pandas(self.decisions)


def predict_folder(options: PredictOptions, *, show_progress: bool = False) -> PredictedFolder:
    """Predict slides with a trained model and write the predictions.

    The folds of a run predict together: their posteriors are mixed, and the column
    ``disagreement`` says how far the folds differ (`sgpmil.evaluation.ensemble`).

    Raises:
        CheckpointError: A model cannot be read, or the run has a fold that is not done.
        RunFolderError: The folder holds predictions already.
        SettingsError: An option needs another one, or there is no such device.
        PredictionError: The bags or the calibration slides do not fit the model.
    """
    if is_prediction_folder(options.out) and not options.overwrite:
        raise RunFolderError(
            f"{options.out} holds predictions already. Replace them with `overwrite=True`."
        )
    device = compute_device(options.device)
    model = load(options.model)
    target = model.target
    prior = _prior_note(options, model)
    rules = calibrate(options, model)
    bags = options.read_bags(target.names if options.labels is not None else None)
    bags = bags.with_target(target)
    model.check(bags)
    warn_of_other_features(model.models, bags)
    with progress_bar("Predicting", len(bags), "slides", show=show_progress) as bar:
        found = model.iter_predictions(
            bags,
            with_instances=options.instances,
            device=device,
            precision=options.precision,
            prevalence=options.prevalence,
            novelty=options.novelty,
            on_bag=lambda _: bar.advance(),
        )
        provenance = model.provenance(
            bags, precision=options.precision, prevalence=options.prevalence
        )
        table = write_prediction_folder(
            options.out, found, target, provenance=provenance, keep_instances=False
        )
    decisions = decide(table, rules.conformal, rules.deferral)
    if rules.calibration is not None:
        table = _with_calibration(table, rules.calibration)
        write_prediction_table(options.out, table, decisions)
    write_predictions_csv(options.out / "predictions.csv", table, decisions)
    ensemble = (
        f"The {len(model)} folds of {options.model} predicted together: probabilities are their "
        "mean, and disagreement says how far the folds differ.",
    )
    notes = (
        *(ensemble if len(model) > 1 else ()),
        *_seen_note(table),
        *prior,
        *rules.notes(table, decisions),
    )
    warning = novelty_warning(table, model.num_training_slides)
    return PredictedFolder(options.out, table, decisions, notes, warning)


def _seen_note(table: PredictionTable) -> tuple[str, ...]:
    """Say how many of the slides the model has seen before, if any."""
    parts = Counter[str](prediction.seen for prediction in table.predictions)
    words = {
        "train": "were trained on",
        "patient": "are of patients of whom other slides were trained on",
        "validation": "were used in validation",
        "calibration": "are, or share a patient with, calibration slides",
    }
    counts = [f"{parts[part]} {text}" for part, text in words.items() if parts[part]]
    if not counts:
        return ()
    return (f"Of the {len(table)} slides, {' and '.join(counts)} (column seen).",)


def _with_calibration(table: PredictionTable, calibration: PredictionTable) -> PredictionTable:
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


def _prior_note(options: PredictOptions, model: TrainedModel) -> tuple[str, ...]:
    """Say which class shares the probabilities are for, where that is known.

    Raises:
        SettingsError: The prevalence does not fit the classes, or decisions are asked for that
            were calibrated at another one.
    """
    shares, given = model.shares, options.prevalence
    if given is None:
        expected = None if shares is None else shares.expected
        return prevalence_note(expected, model.target)
    usual = prior_shift(shares, model.target)
    is_other = prior_shift(shares, model.target, given) != usual
    decides = options.coverage is not None or options.defer is not None
    if is_other and decides and options.calibration is None:
        raise SettingsError(
            "`coverage` and `defer` are calibrated on validation slides that were predicted for "
            "the model's own prevalence, not for `prevalence`. Predict calibration slides with the "
            "same `prevalence`, and name them with `calibration`."
        )
    expected = expected_shares(given, model.target)
    expected = shares.training if expected is None and shares is not None else expected
    notes = prevalence_note(expected, model.target)
    if shares is None:
        notes += (
            "The checkpoint does not say which class shares its training drew: equal ones are "
            "assumed.",
        )
    return notes


def calibrate(options: PredictOptions, model: TrainedModel) -> DecisionRules:
    """Fit prediction sets and deferral on calibration slides.

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
    table = _with_target(_read_calibration(options), model.target)
    sets = rule = None
    if coverage is not None:
        sets = fit_conformal(table, coverage, conformal_method(options.conformal or "lac"))
    if defer is not None:
        rule = fit_deferral(table, defer, uncertainty_measure(options.defer_by or "entropy"))
    return DecisionRules(sets, rule, table)


def _read_calibration(options: PredictOptions) -> PredictionTable:
    if options.calibration is not None:
        given = read_predictions(options.calibration)
        unseen = tuple(p for p in given.predictions if p.seen not in ("train", "patient"))
        if not unseen:
            raise PredictionError(
                f"Expected calibration slides that the model has not seen, but it was trained on "
                f"all {len(given)} of {options.calibration}. Predict other slides for it."
            )
        return replace(given, predictions=unseen)
    model = options.model
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


def _overlap(table: PredictionTable, calibration: PredictionTable) -> str:
    known = {p.slide_id for p in calibration.predictions}
    known |= {p.case_id for p in calibration.predictions}
    shared = sum(p.slide_id in known or p.case_id in known for p in table.predictions)
    if not shared:
        return ""
    return (
        f"{shared} of the {len(table)} slides, or other slides of their patients, are calibration "
        "slides: coverage and deferral are not guaranteed for them."
    )
