"""Knowledge of a whole run that single slides are shown with: limits of colours, prototypes."""

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import ExplanationError, PredictionError, SgpmilError
from sgpmil.evaluation.prediction import InstanceScores
from sgpmil.explanation.folder import ExplanationFolder
from sgpmil.explanation.map_layers import MapLimits, finite_scores, map_limits
from sgpmil.explanation.prototypes import PrototypeExplanation, read_prototypes
from sgpmil.explanation.run_explanation import fold_prototypes, prototype_model
from sgpmil.models import SGPMIL
from sgpmil.models.registry import find_model
from sgpmil.runs.material import find_embeddings
from sgpmil.viewer.cohort import Case, ViewedRun

_MOST_FOR_LIMITS = 300
"""Most slides that the limits of the colours are computed from."""


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of the colours of a run's maps.

    Args:
        limits: The limits.
        note: Sentence about their origin, where it is not all slides.
    """

    limits: MapLimits
    note: str = ""


@dataclass(frozen=True, slots=True)
class FoldPrototypes:
    """Prototypes of a fold, or the reason why they cannot be shown.

    Args:
        found: The prototypes; None where there are none (yet).
        reason: Reason why there are none.
        is_working: Whether they are being computed.
    """

    found: PrototypeExplanation | None
    reason: str = ""
    is_working: bool = False


class RunKnowledge:
    """Limits, embeddings and prototypes of a run, each found when it is first asked for.

    Args:
        run: The run.
    """

    def __init__(self, run: ViewedRun) -> None:
        self.run = run
        self.folder = ExplanationFolder(run.path / "explanation")
        self._lock = threading.Lock()
        self._limits: RunLimits | None = None
        self._bags: tuple[BagDataset | None, str] | None = None
        self._bags_lock = threading.Lock()
        self._prototypes: dict[str, Future[PrototypeExplanation]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="sgpmil-prototypes")

    def limits(self) -> RunLimits:
        """Return the limits of the colours that all slides of the run share.

        They are those of ``sgpmil explain``, up to 300 slides. Of a larger run they are read where
        ``sgpmil explain`` wrote them, or computed from 300 slides that are spread over the run.
        """
        with self._lock:
            if self._limits is None:
                self._limits = self._find_limits()
            return self._limits

    def _find_limits(self) -> RunLimits:
        cases = self.run.cases
        if len(cases) <= _MOST_FOR_LIMITS:
            return RunLimits(map_limits(self._scored(cases)))
        record = self.folder.read_record() or {}
        stored = self.folder.read_limits()
        if stored is not None and record.get("class") is None:
            return RunLimits(stored)
        chosen = np.linspace(0, len(cases) - 1, _MOST_FOR_LIMITS).round().astype(int)
        limits = map_limits(self._scored([cases[i] for i in chosen.tolist()]))
        return RunLimits(
            limits,
            f"Limits of the colours are from {_MOST_FOR_LIMITS} of {len(cases):,} slides; after "
            "sgpmil explain they are from all.",
        )

    def _scored(
        self, cases: "tuple[Case, ...] | list[Case]"
    ) -> Iterator[tuple[InstanceScores, int]]:
        for case in cases:
            try:
                scores = self.run.scores(case)
            except PredictionError:  # damaged: the slide itself says so
                continue
            if scores is not None and scores.num_instances:
                yield finite_scores(scores), case.class_index

    def bags(self) -> tuple[BagDataset | None, str]:
        """Return the embeddings of the run's slides, or None and the reason."""
        with self._bags_lock:
            if self._bags is None:
                material = self.run.material
                try:
                    self._bags = find_embeddings(
                        material.run, self.run.options.features, material.slide_ids
                    )
                except SgpmilError as error:
                    self._bags = None, str(error)
                bags, reason = self._bags
                self._bags = bags, reason.replace("`features`", "--features")
            return self._bags

    def may_have_prototypes(self, fold: str) -> bool:
        """Return whether a fold has a model with prototypes, or they were found before."""
        if self.folder.prototype_data(fold).exists():
            return True
        if self.run.folds[fold].checkpoint is None:
            return False
        try:
            build = find_model(self.run.material.model).build
        except SgpmilError:  # the model of a plugin that is not installed here
            return False
        return isinstance(build, type) and issubclass(build, SGPMIL)

    def prototypes(self, fold: str) -> FoldPrototypes:
        """Return the prototypes of a fold; they are computed in the background where needed."""
        with self._lock:
            if fold not in self._prototypes:
                self._prototypes[fold] = self._worker.submit(self._find_prototypes, fold)
            work = self._prototypes[fold]
        if not work.done():
            return FoldPrototypes(None, "The prototypes are being found.", is_working=True)
        try:
            return FoldPrototypes(work.result())
        except SgpmilError as error:
            return FoldPrototypes(None, str(error))

    def close(self) -> None:
        """End the work in the background."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _find_prototypes(self, name: str) -> PrototypeExplanation:
        stored = self.folder.prototype_data(name)
        predictions = self.run.folds[name].path / "predictions.parquet"
        # Written after the predictions, hence of these.
        if stored.exists() and stored.stat().st_mtime >= predictions.stat().st_mtime:
            try:
                return read_prototypes(stored)
            except ExplanationError:  # damaged: find them again
                pass
        fold = next(fold for fold in self.run.material.folds if fold.name == name)
        if fold.checkpoint is None:
            raise ExplanationError(
                "There are no prototypes: the model of these predictions is unknown. Open its run, "
                "or find them with sgpmil explain --model."
            )
        model = prototype_model(fold)
        bags, reason = self.bags()
        if bags is None:
            raise ExplanationError(f"There are no prototypes: {reason}")
        return fold_prototypes(
            model, fold, bags, self.run.material.sources, "kernel", scores=_ScoresOf(self.run, name)
        )


class _ScoresOf(Mapping[str, InstanceScores]):
    """Scores of a fold's slides, read one at a time."""

    def __init__(self, run: ViewedRun, fold: str) -> None:
        self.run = run
        self.cases = {case.slide_id: case for case in run.cases if case.fold == fold}

    def __getitem__(self, slide_id: str) -> InstanceScores:
        try:
            found = self.run.scores(self.cases[slide_id])
        except PredictionError:
            found = None
        if found is None:
            raise KeyError(slide_id)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.cases)

    def __len__(self) -> int:
        return len(self.cases)
