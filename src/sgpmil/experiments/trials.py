"""Trials of a search for settings: trainings that validation slides judge, without test slides."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import read_json, write_text
from sgpmil.bags.splits import Fold
from sgpmil.errors import SgpmilError
from sgpmil.evaluation.metrics import METRICS
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.recipe import Recipe, RecipeDraft
from sgpmil.scaleout.search import Objective, Progress
from sgpmil.training.callbacks import Callback, FitProgress
from sgpmil.training.fabric import Fabric, start_fabric
from sgpmil.training.fit import fit_fold
from sgpmil.training.fold import bags_near

Report = Callable[[Progress], None]


@dataclass(frozen=True)
class TrialWork:
    """The trials of a search; pickled for each worker.

    Args:
        draft: Recipe that all trials start from.
        bags: The bags of the trials, without test slides.
        folds: Folds to train and judge; they have no test slides.
        metric: Key of the metric of the validation slides.
    """

    draft: RecipeDraft
    bags: BagDataset
    folds: Sequence[Fold]
    metric: str

    def __call__(self) -> Objective:
        """Read the bags; return the function that runs a trial."""
        device = start_fabric(self.draft.recipe().training.device).device
        near = TrialWork(self.draft, bags_near(self.bags, device), self.folds, self.metric)
        return near.run

    def run(self, values: Mapping[str, Any], folder: Path, report: Report) -> None:
        """Train with some values, and report after every epoch, or, of several folds, each fold.

        A trial that cannot be trained, such as one that diverges, reports that it failed.
        """
        done = 0
        try:
            recipe = self.draft.with_values(values).recipe()
            found: list[float] = []
            for fold in self.folds:
                alone = len(self.folds) == 1
                found.append(self._fold(recipe, fold, folder, report if alone else None))
                done += 1
                if not alone:
                    report(Progress(done, fmean(found)))
        except SgpmilError as error:
            report(Progress(done, math.inf, str(error)))

    def _fold(self, recipe: Recipe, fold: Fold, folder: Path, report: Report | None) -> float:
        """Train a fold; return the loss of the epoch that would predict."""
        train, val = self.bags.subset(fold.train), self.bags.subset(fold.val)
        place = folder / f"fold-{fold.name}"
        judged = _Judge(val, self.metric, place / "scores.json", report)

        def work(fabric: Fabric) -> None:
            fit_fold(
                fabric,
                train,
                val,
                model=recipe.model.name,
                model_settings=recipe.model.settings,
                settings=recipe.training,
                folder=place,
                resume=True,
                callbacks=[judged],
            )

        start_fabric(recipe.training.device).launch(work)
        return judged.loss


class _Judge(Callback):
    """Measures the validation slides after every epoch.

    Args:
        val: The validation bags.
        metric: Key of the metric.
        path: File of the losses so far, for a trial that is resumed.
        report: Called after every epoch.
    """

    def __init__(self, val: BagDataset, metric: str, path: Path, report: Report | None) -> None:
        self.val = val
        self.metric = METRICS[metric]
        self.path = path
        self.report = report
        self.loss = math.inf
        self._losses: list[float] = []
        with suppress(OSError, ValueError, TypeError):
            self._losses = list(map(float, read_json(path)))

    def on_epoch_end(self, progress: FitProgress) -> None:
        """Measure, keep and report."""
        self._measure(progress)
        self._conclude(progress)

    def on_fit_end(self, progress: FitProgress) -> None:
        """Report a resumed trial that had no epochs left."""
        if math.isinf(self.loss):
            if len(self._losses) <= progress.epoch:
                self._measure(progress)
            self._conclude(progress)

    def _measure(self, progress: FitProgress) -> None:
        table = predict(
            progress.model,
            self.val,
            with_instances=False,
            precision=progress.settings.precision,
            novelty=False,
            warn=False,
        )
        value = self.metric(table)
        loss = -value if self.metric.better == "higher" else value
        # An epoch that is trained again after a crash replaces its own; one whose worker died
        # before this was written is unknown.
        before = [*self._losses, *[math.inf] * progress.epoch][: progress.epoch]
        self._losses = [*before, math.inf if math.isnan(loss) else loss]
        write_text(self.path, json.dumps(self._losses))

    def _conclude(self, progress: FitProgress) -> None:
        best = progress.settings.select == "best" and progress.best_epoch >= 0
        self.loss = self._losses[progress.best_epoch if best else progress.epoch]
        if self.report is not None:
            self.report(Progress(progress.epoch + 1, self.loss))
