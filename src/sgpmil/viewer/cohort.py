"""The slides of one or more runs as the viewer lists them: columns, filters, order."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from sgpmil.errors import ExplanationError, PredictionError
from sgpmil.evaluation.novelty_warning import is_unlike
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.explanation.confidence import (
    ConfidenceWords,
    SlideSet,
    confidence_words,
    has_posterior,
    run_sets,
    unlike_training,
)
from sgpmil.explanation.slide_choice import evidence_class
from sgpmil.runs.material import MaterialOptions, RunMaterial
from sgpmil.runs.prediction_folder import scores_path
from sgpmil.runs.results import open_results
from sgpmil.runs.run import RunFold
from sgpmil.shapes import Bool, Float, Int
from sgpmil.viewer.safe_paths import is_inside

SortKey = Literal["uncertainty", "model", "novelty", "error", "name", "probability"]
"""Order of the worklist: entropy; its part in the model; novelty; probability that the true class
lacks; name; probability of the predicted class."""

_COVERAGE = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A slide as one model predicted it.

    Args:
        number: Its number in addresses of the viewer.
        run: The run it belongs to.
        fold: Name of the fold whose model predicted it.
        name: Name of its files: the slide's, with the fold's where several folds tested it.
        prediction: The prediction, without scores of patches.
        confidence: Confidence of the model in words.
        prediction_set: Classes that it may be of.
        is_novel: Whether the slide is unlike the training slides.
    """

    number: int
    run: "ViewedRun"
    fold: str
    name: str
    prediction: Prediction
    confidence: ConfidenceWords
    prediction_set: SlideSet
    is_novel: bool

    @property
    def title(self) -> str:
        """Run and fold that predicted it."""
        return f"{self.run.name}, fold {self.fold}"

    @property
    def slide_id(self) -> str:
        """Name of the slide."""
        return self.prediction.slide_id

    @property
    def is_wrong(self) -> bool:
        """Whether the prediction is not the label; not so where the label is unknown."""
        label = self.prediction.label
        return label is not None and self.prediction.predicted_class != label

    @property
    def class_index(self) -> int:
        """Class that evidence is for, unless another is chosen."""
        return evidence_class(self.prediction, self.run.material.target)


class ViewedRun:
    """A run that is looked at, without the scores of its patches.

    Args:
        options: The run and its slides.
        number: Its number: 0 for the run itself, others are beside it.
        first: Number of its first case.
    """

    def __init__(self, options: MaterialOptions, number: int = 0, first: int = 0) -> None:
        self.options = options
        self.number = number
        self.material: RunMaterial = options.read_outline()
        self.path: Path = self.material.path
        self.folds: dict[str, RunFold] = {
            fold.name: fold for fold in open_results(options.run, keep_seen=True).folds
        }
        self.has_posterior = has_posterior(self.material)
        self.cases = self._cases(first)
        model = self.material.model
        self.name = self.path.resolve().name + (f" ({model})" if model else "")
        """Name of the run: that of its folder and its model."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.material.target.names

    def scores(self, case: Case) -> InstanceScores | None:
        """Read the scores of a slide's patches; None where there are none.

        Raises:
            PredictionError: The file is damaged, or lies outside the run.
        """
        fold = self.folds[case.fold]
        name = case.slide_id
        file = scores_path(fold.path, name)
        if file.exists() and not is_inside(file, self.path):
            raise PredictionError(
                f"Expected the scores of '{name}' within the run, but {file.name} is a link to "
                "another place. Copy the file."
            )
        return fold.instance_scores(name)

    def _cases(self, first: int) -> tuple[Case, ...]:
        material = self.material
        counts = Counter(p.slide_id for _, p in material.predictions())
        sets = run_sets(material, _COVERAGE)
        found: list[Case] = []
        for fold in material.folds:
            for prediction, own_set in zip(fold.test.predictions, sets[fold.name], strict=True):
                words = confidence_words(
                    prediction,
                    material.target,
                    own_set,
                    has_posterior=self.has_posterior,
                    unlike=unlike_training(fold, prediction),
                )
                alone = counts[prediction.slide_id] == 1
                found.append(
                    Case(
                        number=first + len(found),
                        run=self,
                        fold=fold.name,
                        name=prediction.slide_id
                        if alone
                        else f"{prediction.slide_id}.fold-{fold.name}",
                        prediction=prediction,
                        confidence=words,
                        prediction_set=own_set,
                        is_novel=is_unlike(prediction, fold.novelty_slides),
                    )
                )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class WorklistQuery:
    """Choice and order of the slides in the worklist.

    Args:
        sort: Order.
        descending: Whether the order is turned round; each order begins with what to look at first.
        search: Part of the name of a slide or patient.
        wrong: Whether only wrong predictions are listed.
        unsure: Whether only slides are listed of which the model is not sure.
        novel: Whether only slides are listed that are unlike the training slides.
        label: Number of the labelled class.
        predicted: Number of the predicted class.
        set_size: Number of classes in the prediction set; 0 where there is no set.
        reviewed: Whether only reviewed slides (or only others) are listed.
    """

    sort: SortKey = "uncertainty"
    descending: bool = False
    search: str = ""
    wrong: bool = False
    unsure: bool = False
    novel: bool = False
    label: int | None = None
    predicted: int | None = None
    set_size: int | None = None
    reviewed: bool | None = None


class Cohort:
    """The slides of a run and of those beside it.

    Args:
        run: The run.
        beside: Other runs, to compare it with.
    """

    def __init__(self, run: ViewedRun, beside: Sequence[ViewedRun] = ()) -> None:
        self.runs = (run, *beside)
        for number, one in enumerate(self.runs):
            if one.name in {other.name for other in self.runs[:number]}:
                one.name += f" {number + 1}"
        self.cases: tuple[Case, ...] = tuple(case for one in self.runs for case in one.cases)
        self._by_slide: dict[str, list[Case]] = {}
        for case in self.cases:
            self._by_slide.setdefault(case.slide_id, []).append(case)
        self._by_name = {case.name: case for case in run.cases}
        self._columns = _Columns(run.cases)

    @property
    def run(self) -> ViewedRun:
        """The run that the worklist is of."""
        return self.runs[0]

    def case(self, number: int) -> Case | None:
        """Return a case by its number; None where there is none."""
        return self.cases[number] if 0 <= number < len(self.cases) else None

    def named(self, name: str) -> Case | None:
        """Return a case of the run by its name; None where there is none."""
        return self._by_name.get(name)

    def of_slide(self, slide_id: str) -> tuple[Case, ...]:
        """Return a slide as all models predicted it."""
        return tuple(self._by_slide.get(slide_id, ()))

    def counterparts(self, case: Case) -> tuple[Case, ...]:
        """Return the same slide as other models predicted it."""
        return tuple(other for other in self.of_slide(case.slide_id) if other is not case)

    def worklist(self, query: WorklistQuery, reviewed: frozenset[str]) -> list[Case]:
        """List the slides of the run.

        Args:
            query: Choice and order.
            reviewed: Names of the cases that somebody has reviewed.
        """
        columns, cases = self._columns, self.run.cases
        keep = columns.matching(query)
        if query.reviewed is not None:
            done = np.fromiter((case.name in reviewed for case in cases), bool, len(cases))
            keep &= done == query.reviewed
        rows = np.flatnonzero(keep)
        order = rows[np.argsort(columns.keys(query.sort)[rows], kind="stable")]
        return [cases[row] for row in (order[::-1] if query.descending else order).tolist()]

    def differences(self, other: ViewedRun | None, most: int = 5) -> list[tuple[Case, Case, float]]:
        r"""Find the slides on which two models differ most.

        The difference of two predictions is the total variation
        $\frac12 \sum_c |p_c - q_c|$: the largest difference in the probability of any statement.

        Args:
            other: The other run; None compares the folds of the run that tested the same slide.
            most: Most slides.

        Raises:
            ExplanationError: The classes of the two are not the same.
        """
        if other is not None and other.class_names != self.run.class_names:
            raise ExplanationError(
                f"Expected a run of the classes {', '.join(self.run.class_names)} to compare with, "
                f"but {other.name} has {', '.join(other.class_names)}. Choose another run."
            )
        pairs = []
        for case in self.run.cases:
            for one in self.counterparts(case):
                if one.run is (other or self.run) and (
                    other is not None or one.number > case.number
                ):
                    gap = 0.5 * float(np.abs(case.prediction.probs - one.prediction.probs).sum())
                    pairs.append((case, one, gap))
        return sorted(pairs, key=lambda pair: (-pair[2], pair[0].name))[:most]


class _Columns:
    """What the worklist sorts and chooses by, a number a slide."""

    def __init__(self, cases: Sequence[Case]) -> None:
        predictions = [case.prediction for case in cases]
        self.texts = [f"{p.slide_id}\n{p.case_id}".casefold() for p in predictions]
        self.names = np.argsort(np.argsort([case.name for case in cases], kind="stable"))
        self.entropy = _floats(p.entropy for p in predictions)
        self.model = _floats(p.mutual_information for p in predictions)
        self.novelty_p = _floats(p.novelty_p for p in predictions)
        self.novel_share = _floats(p.novel_share for p in predictions)
        self.top = _floats(p.probs.max() for p in predictions)
        self.error = _floats(
            math.nan if p.label is None else 1 - p.probs[p.label] for p in predictions
        )
        self.label = _ints(-1 if p.label is None else p.label for p in predictions)
        self.predicted = _ints(p.predicted_class for p in predictions)
        sets = [case.prediction_set.names for case in cases]
        self.set_size = _ints(0 if names is None else len(names) for names in sets)
        self.wrong = np.array([case.is_wrong for case in cases], dtype=bool)
        self.unsure = np.array([case.confidence.level != "sure" for case in cases], dtype=bool)
        self.novel = np.array([case.is_novel for case in cases], dtype=bool)

    def matching(self, query: WorklistQuery) -> Bool[np.ndarray, " n"]:
        keep = np.ones(len(self.texts), dtype=bool)
        words = query.search.casefold().strip()
        if words:
            keep &= np.fromiter((words in text for text in self.texts), bool, len(self.texts))
        for wanted, column in (
            (query.wrong, self.wrong),
            (query.unsure, self.unsure),
            (query.novel, self.novel),
        ):
            if wanted:
                keep &= column
        for value, numbers in (
            (query.label, self.label),
            (query.predicted, self.predicted),
            (query.set_size, self.set_size),
        ):
            if value is not None:
                keep &= numbers == value
        return keep

    def keys(self, sort: SortKey) -> Float[np.ndarray, " n"]:
        """Return numbers that sort the slides, those to look at first first; unknown ones last."""
        if sort == "novelty":
            # Slides of equal p-values by the share of their novel patches.
            share = np.nan_to_num(self.novel_share, nan=0.0)
            return np.nan_to_num(self.novelty_p, nan=2.0) - 1e-9 * share
        found = {
            "uncertainty": -self.entropy,
            "model": -self.model,
            "error": -self.error,
            "probability": self.top,
            "name": self.names.astype(np.float64),
        }[sort]
        return np.nan_to_num(found, nan=np.inf)


def _floats(values: Iterable[float]) -> Float[np.ndarray, " n"]:
    return np.fromiter(values, np.float64)


def _ints(values: Iterable[int]) -> Int[np.ndarray, " n"]:
    return np.fromiter(values, np.int64)
