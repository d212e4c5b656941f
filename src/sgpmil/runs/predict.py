"""Predictions of a folder of slides by a trained model, with decisions calibrated on other slides.

The command ``sgpmil predict`` calls `predict_folder`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sgpmil.bags.files import remove_leftovers
from sgpmil.bags.steps import BagOptions
from sgpmil.bags.target import Target
from sgpmil.errors import PredictionError, RunFolderError, SettingsError
from sgpmil.evaluation.novelty_warning import most_unlike, novelty_sentence, unlike_slides
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.prediction_columns import optional_columns
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import warn_of_other_features
from sgpmil.evaluation.uncertainty.decisions import Decision, decide
from sgpmil.models.prevalence import expected_shares, prevalence_note, prior_shift
from sgpmil.processes import compute_device
from sgpmil.progress import ProgressBar, progress_bar
from sgpmil.runs.decision_rules import DecisionOptions, DecisionRules, calibrate, mark_calibration
from sgpmil.runs.prediction_files import (
    TABLE,
    Chunk,
    read_predictions,
    write_chunks,
    write_chunks_csv,
)
from sgpmil.runs.prediction_folder import is_prediction_folder, read_decisions, write_provenance
from sgpmil.runs.prediction_parts import (
    MergedParts,
    Part,
    PredictionWork,
    keep_parts,
    remove_parts,
)
from sgpmil.runs.run import run_lock
from sgpmil.runs.trained_model import TrainedModel, load
from sgpmil.scaleout.executors import Executor, PlaceOptions, RunningJob

if TYPE_CHECKING:
    import pandas as pd

NUM_LEAST_CERTAIN = 10
"""Slides that the command prints."""


@dataclass(frozen=True, kw_only=True)
class PredictOptions(DecisionOptions, PlaceOptions, BagOptions):
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
        overwrite: Replace existing predictions.
    """

    model: Path
    out: Path = Path("predictions")
    device: str = "auto"
    precision: str = "auto"
    prevalence: str | None = None
    instances: bool = True
    novelty: bool = True
    overwrite: bool = False


@dataclass(frozen=True)
class PredictedFolder:
    """Predictions that `predict_folder` wrote.

    Args:
        path: Folder of the predictions.
        target: Quantity that is predicted.
        num_slides: Number of slides.
        least_certain: The slides of the highest entropy, and the decisions on them.
        notes: Sentences on the probabilities and the decisions.
        warning: A sentence on slides that are unlike the training slides; empty without any.
        num_unseen: Number of slides that the model was not trained on.
    """

    path: Path
    target: Target
    num_slides: int
    least_certain: tuple[tuple[Prediction, Decision], ...]
    notes: tuple[str, ...]
    warning: str = ""
    num_unseen: int = 0

    @cached_property
    def table(self) -> PredictionTable:
        """The predictions, without the scores of the instances; read when first asked for."""
        return read_predictions(self.path)

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """Decision on each slide."""
        found = read_decisions(self.path, self.target)
        return tuple(found.get(slide, Decision(slide)) for slide in self.table.slide_ids)

    def to_pandas(self) -> "pd.DataFrame":
        """Return predictions and decisions as a pandas DataFrame, a row a slide.

        The columns are those of `PredictionTable.to_pandas`.
        """
        return self.table.to_pandas(self.decisions)


def predict_folder(options: PredictOptions, *, show_progress: bool = False) -> PredictedFolder:
    """Predict slides with a trained model and write the predictions.

    The folds of a run predict together: their posteriors are mixed, and the column
    ``disagreement`` says how far the folds differ (`sgpmil.evaluation.ensemble`). A stopped
    prediction goes on with the slides that are missing, here or on a cluster. Scores of instances
    are written slide by slide, and tables in parts, so that memory does not grow with the slides.

    Raises:
        CheckpointError: A model cannot be read, or the run has a fold that is not done.
        RunFolderError: The folder holds predictions already, or another process writes to it.
        SettingsError: An option needs another one, or there is no such device.
        PredictionError: The bags or the calibration slides do not fit the model.
        ClusterError: The cluster does not answer.
    """
    if is_prediction_folder(options.out) and not options.overwrite:
        raise RunFolderError(
            f"{options.out} holds predictions already. Replace them with `overwrite=True`."
        )
    executor = options.executor(needs_shared_folder=True)
    if options.is_local:
        compute_device(options.device)  # elsewhere, it may be on another machine
    model = load(options.model)
    prior = _prior_note(options, model)
    rules = calibrate(options, model, options.model)
    work = _work(options, model)
    origin = replace(
        model.provenance((), precision=options.precision, prevalence=options.prevalence),
        encoders=work.bags.encoders(),
        other_features=model.other_features(work.bags),
        **rules.provenance,
    )
    executor.require_room()
    with run_lock(options.out.absolute()):
        parts = work.parts()
        keep_parts(options.out, parts)
        with progress_bar("Predicting", len(work.bags), "slides", show=show_progress) as bar:
            if options.is_local:
                remove_leftovers(options.out)
                work.predict(parts, bar.advance)
            else:
                _predict_elsewhere(executor, work, parts, bar)
        merged = MergedParts(options.out, parts, origin)
        found = _write_table(options.out, merged, rules, model.num_training_slides)
        remove_parts(options.out)
    ensemble = (
        f"The {len(model)} folds of {options.model} predicted together: probabilities are their "
        "mean, and disagreement says how far the folds differ.",
    )
    notes = (*(ensemble if len(model) > 1 else ()), *found.seen_note(), *prior, *found.notes(rules))
    return PredictedFolder(
        options.out,
        model.target,
        found.num_slides,
        tuple(found.least_certain),
        notes,
        found.warning,
        found.num_slides - found.seen["train"] - found.seen["patient"],
    )


def _work(options: PredictOptions, model: TrainedModel) -> PredictionWork:
    """Open the bags."""
    here = options if options.is_local else replace(options, features=options.features.absolute())
    bags = here.read_bags(model.target.names if options.labels is not None else None)
    bags = bags.with_target(model.target)
    model.check(bags)
    warn_of_other_features(model.models, bags)
    return PredictionWork(
        model,
        bags,
        options.out.absolute(),
        with_instances=options.instances,
        novelty=options.novelty,
        device=options.device,
        precision=options.precision,
        prevalence=options.prevalence,
    )


def _predict_elsewhere(
    executor: Executor, work: PredictionWork, parts: Sequence[Part], bar: ProgressBar
) -> None:
    """Predict parts by an executor, each a job."""

    def show(running: Sequence[RunningJob[Part]]) -> None:
        bar.show_table(
            [one.row(f"{len(one.job.slides)} slides from {one.job.slides[0]}") for one in running]
        )

    def lost(part: Part) -> None:
        raise PredictionError(
            f"Workers died again and again with the slides from {part.slides[0]} to "
            f"{part.slides[-1]}, perhaps because memory is short. Give a job more CPUs "
            "(`cpus_per_job`), so that fewer share a machine, and run the command again: it goes "
            "on where it stopped."
        )

    executor.run(
        work,
        parts,
        on_change=show,
        on_done=lambda part, _: bar.advance(len(part.slides)),
        on_death=lost,
    )


@dataclass
class _Summary:
    """What is said of predictions, counted a chunk at a time."""

    num_training: int
    num_slides: int = 0
    least_certain: list[tuple[Prediction, Decision]] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    num_members: int = 0
    num_deferred: int = 0
    num_shared: int = 0
    num_unlike: int = 0
    most_unlike: list[Prediction] = field(default_factory=list)

    def add(
        self, table: PredictionTable, decisions: Sequence[Decision], rules: DecisionRules
    ) -> None:
        self.num_slides += len(table)
        pairs = [*self.least_certain, *zip(table.predictions, decisions, strict=True)]
        self.least_certain = sorted(pairs, key=lambda pair: -pair[0].entropy)[:NUM_LEAST_CERTAIN]
        self.seen.update(prediction.seen for prediction in table.predictions)
        self.num_members += sum(len(decision.prediction_set or ()) for decision in decisions)
        self.num_deferred += sum(bool(decision.deferred) for decision in decisions)
        self.num_shared += rules.num_shared(table)
        unlike = unlike_slides(table, self.num_training)
        self.num_unlike += len(unlike)
        self.most_unlike = most_unlike([*self.most_unlike, *unlike])

    @property
    def warning(self) -> str:
        return novelty_sentence(
            self.most_unlike, self.num_unlike, self.num_slides, self.num_training
        )

    def notes(self, rules: DecisionRules) -> tuple[str, ...]:
        return rules.notes(self.num_slides, self.num_members, self.num_deferred, self.num_shared)

    def seen_note(self) -> tuple[str, ...]:
        """Say how many of the slides the model has seen before, if any."""
        words = {
            "train": "were trained on",
            "patient": "are of patients of whom other slides were trained on",
            "validation": "were used in validation",
            "calibration": "are, or share a patient with, calibration slides",
        }
        counts = [f"{self.seen[part]} {text}" for part, text in words.items() if self.seen[part]]
        if not counts:
            return ()
        return (f"Of the {self.num_slides} slides, {' and '.join(counts)} (column seen).",)


def _write_table(
    out: Path, merged: MergedParts, rules: DecisionRules, num_training: int
) -> _Summary:
    """Write the tables of all slides, the parquet file last."""
    summary, optional = _Summary(num_training), set(merged.optional)
    provenance = merged.provenance

    def chunks() -> Iterator[Chunk]:
        for table in merged:
            decisions = decide(table, rules.conformal, rules.deferral)
            if rules.calibration is not None:
                table = mark_calibration(table, rules.calibration)
            yield table, decisions

    for table, decisions in chunks():
        summary.add(table, decisions, rules)
        optional |= optional_columns(table)
        provenance = table.provenance or provenance
    write_provenance(out, provenance)
    write_chunks_csv(out / "predictions.csv", chunks(), optional)
    write_chunks(out / TABLE, chunks(), optional)
    return summary


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
