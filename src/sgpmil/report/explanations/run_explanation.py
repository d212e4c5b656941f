"""A run is explained: maps, patches to look at, prototypes, and files for other programs."""

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.explanation.explanation_folder import (
    ExplanationFolder,
    ExportKind,
    open_explanation,
    predictions_digest,
)
from sgpmil.explanation.explanation_settings import (
    ChosenSlide,
    ClassChoice,
    ExplanationSettings,
    choose_slides,
)
from sgpmil.explanation.map_layers import map_limits
from sgpmil.explanation.prototypes import PrototypeExplanation, write_prototype_table
from sgpmil.explanation.slide_list import write_slide_list
from sgpmil.report.explanations.fold_prototypes import fold_prototypes, model_of
from sgpmil.report.explanations.slide_explanation import ExplainedSlide, slide_files
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.map_figures import ModelScores
from sgpmil.report.figures.prototype_figures import prototype_sheet
from sgpmil.runs.material import MaterialFold, RunMaterial

__all__ = [
    "ExplanationProgress",
    "ExplanationSettings",
    "RunExplanation",
    "SlideOutcome",
    "explain_run",
]


@dataclass(frozen=True, slots=True)
class SlideOutcome:
    """What became of a slide.

    Args:
        slide_id: Name of the slide.
        fold: Name of its fold.
        status: `kept` where all its files were there.
        written: Number of files that were written.
        reason: Why it failed.
    """

    slide_id: str
    fold: str
    status: Literal["done", "kept", "failed"]
    written: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunExplanation:
    """What an explanation did.

    Args:
        folder: Where its files are.
        outcomes: What became of each slide, the least certain first within each fold.
        notes: What could not be shown, and why.
    """

    folder: ExplanationFolder
    outcomes: tuple[SlideOutcome, ...]
    notes: tuple[str, ...] = ()


@runtime_checkable
class ExplanationProgress(Protocol):
    """Is told how far an explanation is."""

    def begin(self, text: str, num_slides: int) -> None:
        """A part of the work over some slides begins."""

    def advance(self) -> None:
        """A slide is done."""


def explain_run(
    material: RunMaterial,
    out: Path,
    settings: ExplanationSettings,
    progress: ExplanationProgress,
    *,
    beside: Mapping[str, RunMaterial] | None = None,
    inputs: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> RunExplanation:
    """Explain the test slides of a run, each by the model that did not see it in training.

    Asked again with the same settings, it goes on where it stopped. A slide that fails is
    reported and does not stop the others.

    Args:
        material: The run.
        out: Folder to write to.
        settings: How, and how much of it.
        progress: Is told how far it is.
        beside: Other runs whose models are shown beside this one's, by name.
        inputs: Where slides, annotations and the rest were read from; recorded, so that an
            explanation is not gone on with from others.
        overwrite: Replace what is there.

    Raises:
        ExplanationError: There is nothing to explain, or something asked for is not there; or
            `out` holds an explanation of other settings.
    """
    tasks = choose_slides(material, settings)
    others = dict(beside or {})
    record = {
        "predictions": predictions_digest(fold.test for fold in material.folds),
        "scale": settings.scale,
        "class": settings.class_name,
        "prototypes": settings.prototypes,
        "geojson_origin": list(settings.geojson_origin),
        "beside": {
            name: predictions_digest(fold.test for fold in other.folds)
            for name, other in others.items()
        },
        **(inputs or {}),
    }
    classes = ClassChoice(material.class_names, settings.class_name)
    folder = open_explanation(out, record, overwrite=overwrite)
    write_slide_list(folder.slides, material, settings.folds)
    work = _Work(material, settings, classes, folder, progress, others)
    outcomes: list[SlideOutcome] = []
    for fold in material.folds:
        own = [task for task in tasks if task.fold is fold]
        if own:
            outcomes += work.explain_fold(fold, own)
    return RunExplanation(folder, tuple(outcomes), tuple(dict.fromkeys(work.notes)))


@dataclass(eq=False)
class _Work:
    """An explanation under way."""

    material: RunMaterial
    settings: ExplanationSettings
    classes: ClassChoice
    folder: ExplanationFolder
    progress: ExplanationProgress
    others: Mapping[str, RunMaterial]
    notes: list[str] = field(default_factory=list)
    early: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.limits = map_limits(
            (prediction.instances, self.classes.of(prediction))
            for _, prediction in self.material.predictions()
            if prediction.instances is not None and _is_finite(prediction.instances)
        )
        self.scores = {
            name: {p.slide_id: p.instances for _, p in other.predictions()}
            for name, other in self.others.items()
        }
        self.other_limits = {
            name: map_limits(
                (scores, 0)
                for scores in known.values()
                if scores is not None and _is_finite(scores)
            )
            for name, known in self.scores.items()
        }

    def explain_fold(self, fold: MaterialFold, tasks: Sequence[ChosenSlide]) -> list[SlideOutcome]:
        prototypes = self._prototypes(fold, tasks)
        self.progress.begin(f"Slides of fold {fold.name}", len(tasks))
        outcomes = []
        for task in tasks:
            outcomes.append(self._explain(task, prototypes, self.settings.exports))
            self.progress.advance()
        return outcomes

    def _explain(
        self,
        task: ChosenSlide,
        prototypes: PrototypeExplanation | None,
        exports: tuple[ExportKind, ...],
    ) -> SlideOutcome:
        slide_id, fold = task.prediction.slide_id, task.fold.name
        if task.prediction.instances is None:
            reason = self.material.damaged.get(
                slide_id,
                "There are no scores of its patches. Predict it again, with the instances.",
            )
            return SlideOutcome(slide_id, fold, "failed", reason=reason)
        if not _is_finite(task.prediction.instances):
            reason = "Some of its patches have scores that are not finite. Predict it again."
            return SlideOutcome(slide_id, fold, "failed", reason=reason)
        if task.prediction.instances.coords is None:
            self.notes.append(
                "Patches without coordinates have no place: there are no maps of these slides."
            )
        slide = ExplainedSlide(
            name=task.name,
            fold=fold,
            prediction=task.prediction,
            class_names=self.material.class_names,
            class_index=self.classes.of(task.prediction),
            scale=self.settings.scale,
            limits=self.limits if self.settings.scale == "absolute" else None,
            exports=exports,
            geojson_origin=self.settings.geojson_origin,
            models=self._models(task.prediction),
            prototypes=prototypes,
        )
        files = slide_files(slide, self.folder, self.material.sources)
        missing = [path for path in files if not path.exists()]
        reasons = []
        for path in missing:
            try:
                files[path]()
            except SgpmilError as error:  # the other files may not need what is damaged
                reasons.append(str(error))
        written = len(missing) - len(reasons) + self.early.pop(slide_id, 0)
        if reasons:
            return SlideOutcome(slide_id, fold, "failed", written, reasons[0])
        return SlideOutcome(slide_id, fold, "done" if written else "kept", written)

    def _models(self, prediction: Prediction) -> tuple[ModelScores, ...]:
        own = prediction.instances
        if own is None or not self.others:
            return ()
        models = [ModelScores(self.material.model or self.material.path.name, own, self.limits)]
        for name, known in self.scores.items():
            found = known.get(prediction.slide_id)
            if found is not None and found.coords is not None and _is_finite(found):
                models.append(ModelScores(name, found, self.other_limits[name]))
            else:
                self.notes.append(f"{name} has no scores of some slides: they are not compared.")
        return tuple(models)

    def _prototypes(
        self, fold: MaterialFold, tasks: Sequence[ChosenSlide]
    ) -> PrototypeExplanation | None:
        """Explain all test slides of a fold together, so that colours mean the same on each."""
        measure = self.settings.prototypes
        if measure is None:
            return None
        model, missing = model_of(fold)
        bags = self.material.bags
        if model is None or bags is None:
            self.notes.append(missing or f"There are no prototypes: {self.material.bags_missing}")
            return None
        figure, table = self.folder.prototypes(fold.name)
        shown = [task for task in tasks if task.prediction.slide_id in bags.slide_ids]
        if figure.exists() and table.exists() and self._is_done(fold, shown):
            return None
        self.progress.begin(f"Prototypes of fold {fold.name}", len(fold.test))
        sources, stop = self.material.sources, threading.Event()

        def advance(_: str) -> None:
            if stop.is_set():
                raise ExplanationError("It was stopped.")
            self.progress.advance()

        try:
            with ThreadPoolExecutor(1) as pool:
                coming = pool.submit(fold_prototypes, model, fold, bags, sources, measure, advance)
                try:
                    # The network is at work outside Python: meanwhile a slide is drawn.
                    drawn = self._explain(tasks[0], None, exports=())
                    self.early[drawn.slide_id] = drawn.written
                    found, notes = coming.result()
                finally:
                    stop.set()
            save_figure(prototype_sheet(found, sources.open, title=f"fold {fold.name}"), figure)
            write_prototype_table(table, found)
        except SgpmilError as error:
            self.notes.append(f"There are no prototypes of fold {fold.name}: {error}")
            return None
        self.notes.extend(notes)
        return found

    def _is_done(self, fold: MaterialFold, tasks: Sequence[ChosenSlide]) -> bool:
        """Say whether no file of the fold's slides that shows prototypes is missing."""
        placed = [
            task
            for task in tasks
            if task.prediction.instances is not None
            and task.prediction.instances.coords is not None
        ]
        paths = [self.folder.label_map(fold.name, task.name) for task in placed]
        paths += [
            self.folder.export(kind, task.name)
            for task in placed
            for kind in self.settings.exports
            if kind != "tiff"
        ]
        return all(path.exists() for path in paths)


def _is_finite(scores: InstanceScores) -> bool:
    """Say whether a slide can have a share in the limits of the colours."""
    arrays = (scores.attention_mean, scores.attention_std, scores.evidence_mean)
    return all(bool(np.isfinite(array).all()) for array in arrays if array is not None)
