"""What is said of one slide, to a pathologist: prediction, confidence, evidence and caveats."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from sgpmil.bags.tables import listed
from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.explanation.maps import patch_side
from sgpmil.report.pages.case_patches import PatchGroup, patch_groups
from sgpmil.report.pages.checks import has_posterior
from sgpmil.report.pages.finite_scores import num_without_score, without_infinite
from sgpmil.report.pages.number_texts import counted
from sgpmil.report.pages.prediction_sets import SlideSet, run_sets
from sgpmil.report.pages.wording import ConfidenceWords, confidence_words
from sgpmil.runs.material import MaterialFold, RunFacts, RunMaterial, run_facts
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.shapes import UInt8

__all__ = ["CaseReport", "CaseReports", "ClassLine"]

_LONGEST = 1000
"""Longer side of the slide's picture, in pixels."""
_PATCH_PIXELS = 192
"""Most pixels of a patch's side."""


@dataclass(frozen=True, slots=True)
class ClassLine:
    """What is said of one class.

    Args:
        name: Its name.
        probability: Its probability.
        std: Posterior standard deviation of that; None where the model gives none.
        told: Both, in words.
        is_in_set: Whether it is in the prediction set; None where there is no set.
    """

    name: str
    probability: float
    std: float | None
    told: str
    is_in_set: bool | None


@dataclass(frozen=True, slots=True, eq=False)
class CaseReport:
    """What is said of one slide.

    Args:
        slide_id: Name of the slide.
        case_id: Patient it is of.
        origin: Run, model, fold and date, in a line.
        classes: Every class, the most probable first.
        predicted: Name of the most probable class.
        predicted_index: Its index.
        label: The label of the data set, and whether the prediction agrees; empty where unknown.
        prediction_set: The classes that the slide may be of.
        confidence: How sure the model is, in words.
        other_folds: What the models of other folds say of it; empty where none does.
        scores: Scores of the patches, where there are any.
        picture: The slide, as far as it is there.
        patches: Patches to look at.
        images: Pictures of these patches, by their number in the bag.
        problems: What could not be shown, and why.
        caveats: What to know before anything is made of it.
    """

    slide_id: str
    case_id: str
    origin: str
    classes: tuple[ClassLine, ...]
    predicted: str
    predicted_index: int
    label: str
    prediction_set: SlideSet
    confidence: ConfidenceWords
    other_folds: str
    scores: InstanceScores | None
    picture: SlidePicture
    patches: tuple[PatchGroup, ...]
    images: Mapping[int, UInt8[np.ndarray, "s s 3"]]
    problems: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def side(self) -> int | None:
        """Side of a patch in level-0 pixels, where the patches have places."""
        if self.scores is None or self.scores.coords is None:
            return None
        try:
            return patch_side(self.scores)
        except SgpmilError:
            return None


class CaseReports:
    """Makes the case reports of a run; what they share is gathered once.

    Args:
        material: The run.
        coverage: Share of slides that prediction sets promise to cover.

    Raises:
        PredictionError: The coverage is impossible, or the classes of the folds differ.
    """

    def __init__(self, material: RunMaterial, coverage: float = 0.9) -> None:
        self.material = material
        self.facts: RunFacts = run_facts(material)
        self.has_posterior = has_posterior(material)
        self._found: dict[str, list[tuple[MaterialFold, Prediction, SlideSet]]] = {}
        sets = run_sets(material, coverage)
        for fold in material.folds:
            pairs = zip(fold.test.predictions, sets[fold.name], strict=True)
            for prediction, own in pairs:
                self._found.setdefault(prediction.slide_id, []).append((fold, prediction, own))

    @property
    def slide_ids(self) -> tuple[str, ...]:
        """Names of the slides that can be reported."""
        return tuple(self._found)

    def check(self, slide_id: str) -> None:
        """Refuse a slide that cannot be reported.

        Args:
            slide_id: Name of the slide.

        Raises:
            ExplanationError: The run did not test it.
        """
        if slide_id not in self._found:
            raise ExplanationError(
                f"Expected a slide that {self.material.path} tested, but got '{slide_id}'. Its "
                f"slides are {listed(sorted(self._found))}."
            )

    def of(self, slide_id: str) -> CaseReport:
        """Report a slide. One that several folds test is told by the first of them.

        Args:
            slide_id: Name of the slide.

        Raises:
            ExplanationError: The run did not test it.
        """
        self.check(slide_id)
        (fold, prediction, own_set), *others = self._found[slide_id]
        names = self.material.class_names
        predicted = prediction.predicted_class
        scores = None if prediction.instances is None else without_infinite(prediction.instances)
        groups: tuple[PatchGroup, ...] = ()
        if scores is not None and scores.num_instances:
            groups = patch_groups(scores, predicted, names[predicted])
        picture, images, problems = self._look(prediction, groups)
        return CaseReport(
            slide_id=slide_id,
            case_id=prediction.case_id,
            origin=self._origin(fold),
            classes=self._classes(prediction, own_set),
            predicted=names[predicted],
            predicted_index=predicted,
            label=self._label(prediction),
            prediction_set=own_set,
            confidence=confidence_words(
                prediction, names, own_set, has_posterior=self.has_posterior
            ),
            other_folds=self._others(others),
            scores=scores,
            picture=picture,
            patches=groups,
            images=images,
            problems=problems,
            caveats=self._caveats(fold, prediction),
        )

    def _origin(self, fold: MaterialFold) -> str:
        material = self.material
        parts = [f"run {material.path.resolve().name}"]
        if material.model:
            parts.append(f"model {material.model}")
        if material.run is not None:
            parts.append(f"fold {fold.name}")
            parts.append(f"trained {(material.run.provenance.created or '')[:10]}")
        parts.append(f"reported {datetime.now(UTC):%Y-%m-%d}")
        return ", ".join(parts)

    def _classes(self, prediction: Prediction, own: SlideSet) -> tuple[ClassLine, ...]:
        names = self.material.class_names
        order = np.argsort(-prediction.probs, kind="stable").tolist()
        # Spreads of rounding size are none.
        spread = prediction.std if self.has_posterior else np.zeros_like(prediction.std)
        shown = replace(prediction, std=spread)
        return tuple(
            ClassLine(
                names[c],
                float(prediction.probs[c]),
                float(prediction.std[c]) if self.has_posterior else None,
                shown.probability_text(c),
                None if own.names is None else names[c] in own.names,
            )
            for c in order
        )

    def _label(self, prediction: Prediction) -> str:
        if prediction.label is None:
            return ""
        name = self.material.class_names[prediction.label]
        agrees = "agrees" if prediction.label == prediction.predicted_class else "DISAGREES"
        return f"The data set labels this slide “{name}”: the prediction {agrees}."

    def _others(self, others: list[tuple[MaterialFold, Prediction, SlideSet]]) -> str:
        if not others:
            return ""
        names = self.material.class_names
        told = ", ".join(
            f"fold {fold.name} {names[p.predicted_class]} {p.probability_text(p.predicted_class)}"
            for fold, p, _ in others[:4]
        )
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"Models of other folds tested it as well: {told}{more}."

    def _look(
        self, prediction: Prediction, groups: tuple[PatchGroup, ...]
    ) -> tuple[SlidePicture, dict[int, np.ndarray], tuple[str, ...]]:
        """Look at the slide; where it cannot be read, say so and go on without it."""
        sources, slide_id = self.material.sources, prediction.slide_id
        label = prediction.label
        name = None if label is None else self.material.class_names[label]
        try:
            picture = sources.picture(slide_id, name, longest=_LONGEST)
        except SgpmilError as error:
            return SlidePicture(mpp=sources.mpp), {}, (f"The slide is not shown: {error}",)
        scores = prediction.instances
        if scores is None or scores.coords is None or slide_id not in sources.files:
            return picture, {}, ()
        images: dict[int, np.ndarray] = {}
        try:
            side = patch_side(scores)
            slide = sources.open(slide_id)
            if slide is not None:
                with slide:
                    for patch in (one for group in groups for one in group.patches):
                        if patch.corner is not None:
                            size = min(side, _PATCH_PIXELS)  # nothing is made larger than it is
                            images[patch.index] = slide.read_patch(*patch.corner, side, size)
        except SgpmilError as error:
            return picture, images, (f"Patches are not shown: {error}",)
        return picture, images, ()

    def _caveats(self, fold: MaterialFold, prediction: Prediction) -> tuple[str, ...]:
        caveats = [
            "Research use only. Not a medical device: no diagnosis and no treatment may rest on "
            "this page.",
            "The maps show what moved this model, which need not be what a pathologist would look "
            "for. Confidence is the model's, not the reader's.",
        ]
        if self.material.run is not None:
            caveats.append(
                f"The slide is of the test set of fold {fold.name}: this fold's model did not "
                "learn from it."
            )
        else:
            caveats.append("It is not known here whether the model learned from this slide.")
        weak = self.facts.encoders_not_for_pathology
        if weak:
            caveats.append(
                f"The patch encoder ({weak[0]}) learned from everyday photographs, not pathology."
            )
        elif not self.facts.encoders:
            caveats.append("The encoder of the patches is not known here.")
        if self.facts.is_synthetic:
            caveats.append("The slide is synthetic (a phantom): it is of no patient.")
        if not self.has_posterior:
            caveats.append("The model gives no uncertainty of its own.")
        if prediction.instances is None:
            caveats.append("There are no scores of patches.")
        else:
            number = prediction.instances.num_instances
            if number < 10:
                caveats.append(f"The slide has only {counted(number, 'patch', 'patches')}.")
            broken = num_without_score(prediction.instances)
            if broken:
                patches = "patch has" if number == 1 else "patches have"
                caveats.append(
                    f"{broken:,} of {number:,} {patches} no finite score: maps and patches leave "
                    "them out, and the prediction may be wrong."
                )
        return tuple(caveats)
