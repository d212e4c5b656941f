"""Report of one slide for a pathologist: prediction, confidence, patches and caveats."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.prediction import Prediction
from sgpmil.explanation.attention_posterior import attention_posteriors
from sgpmil.explanation.confidence import (
    ConfidenceWords,
    SlideSet,
    confidence_words,
    has_posterior,
    run_sets,
    unlike_training,
)
from sgpmil.explanation.key_patches import KeyPatch, KeyPatchKind, contrasting_patches
from sgpmil.explanation.map_layers import num_without_score
from sgpmil.explanation.maps import patch_side
from sgpmil.explanation.slide_choice import near_slides
from sgpmil.explanation.slide_explanation import SlideExplanation
from sgpmil.notebook import counted
from sgpmil.options import as_flags
from sgpmil.report.pages.blocks import ClassBar
from sgpmil.runs.material import RunFacts, RunMaterial, run_facts
from sgpmil.runs.slide_picture import SlidePicture
from sgpmil.shapes import UInt8

_LONGEST = 1000
"""Longer side of the slide's picture, in pixels."""
_UNLIKE = 0.05
"""Largest p-value of a slide of which it is said how unlike the training slides it is."""


@dataclass(frozen=True, slots=True, eq=False)
class CaseReport:
    """Report of one slide.

    Args:
        slide: Explanation of the slide; its evidence is for the predicted class.
        origin: Run, model, fold and date, in a line.
        classes: Every class, the most probable first.
        label: The label of the data set, and whether the prediction agrees; empty where unknown.
        prediction_set: The classes that the slide may be of.
        confidence: Confidence of the model, in words.
        other_folds: Predictions of the models of other folds; empty where there are none.
        picture: The slide, as far as it is there.
        patches: Patches to look at, by kind.
        images: Pictures of these patches, by their number in the bag.
        problems: Reasons of what is not shown.
        caveats: Limits of the report.
    """

    slide: SlideExplanation
    origin: str
    classes: tuple[ClassBar, ...]
    label: str
    prediction_set: SlideSet
    confidence: ConfidenceWords
    other_folds: str
    picture: SlidePicture
    patches: Mapping[KeyPatchKind, tuple[KeyPatch, ...]]
    images: Mapping[int, UInt8[np.ndarray, "s s 3"]]
    problems: tuple[str, ...]
    caveats: tuple[str, ...]

    @property
    def slide_id(self) -> str:
        """Name of the slide."""
        return self.slide.slide_id

    @property
    def predicted(self) -> str:
        """Name of the most probable class."""
        return self.slide.class_name

    @property
    def no_maps(self) -> str:
        """The reason why there are no maps; empty where there are."""
        if self.slide.prediction.instances is None:
            return "There are no scores of patches, so there are no maps."
        if not self.slide.is_placed:
            return "The patches have no coordinates, so there are no maps."
        try:
            patch_side(self.slide.scores)
        except SgpmilError:
            return "The size of the patches is not known, so there are no maps."
        return ""


class CaseReports:
    """The case reports of a run. What they share is computed once.

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
        uses = attention_posteriors(material) if self.has_posterior else {}
        self._idle = frozenset(name for name, use in uses.items() if use.is_idle)
        self._found: dict[str, list[tuple[TestedFold, Prediction, SlideSet]]] = {}
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

        Raises:
            ExplanationError: The run did not test it.
        """
        if slide_id not in self._found:
            raise ExplanationError(
                f"Expected a slide that {self.material.path} tested, but got '{slide_id}'. "
                f"{near_slides(slide_id, self._found)}"
            )

    def of(self, slide_id: str) -> CaseReport:
        """Report a slide. For a slide that several folds tested, the first decides.

        Raises:
            ExplanationError: The run did not test it.
        """
        self.check(slide_id)
        (fold, prediction, own_set), *others = self._found[slide_id]
        slide = SlideExplanation(
            name=slide_id,
            fold=fold.name,
            prediction=prediction,
            target=self.material.target,
            class_index=prediction.predicted_class,
            sources=self.material.sources,
            longest=_LONGEST,
        )
        patches: dict[KeyPatchKind, tuple[KeyPatch, ...]] = {}
        if prediction.instances is not None and prediction.instances.num_instances:
            patches = contrasting_patches(slide.scores, slide.class_index)
        picture, images, problems = _look(slide, patches)
        return CaseReport(
            slide=slide,
            origin=self._origin(fold, prediction),
            classes=self._classes(prediction, own_set),
            label=self._label(prediction),
            prediction_set=own_set,
            confidence=confidence_words(
                prediction,
                self.material.target,
                own_set,
                has_posterior=self.has_posterior,
                is_idle=fold.name in self._idle,
                unlike=unlike_training(fold, prediction),
            ),
            other_folds=self._others(others),
            picture=picture,
            patches=patches,
            images=images,
            problems=problems,
            caveats=self._caveats(fold, prediction),
        )

    def _origin(self, fold: TestedFold, prediction: Prediction) -> str:
        material = self.material
        parts = [f"run {material.path.resolve().name}"]
        if prediction.case_id not in ("", prediction.slide_id):
            parts.insert(0, f"patient {prediction.case_id}")
        if material.model:
            parts.append(f"model {material.model}")
        if material.is_ensemble:
            parts.append("several models together")
        if material.run is not None:
            parts.append(f"fold {fold.name}")
            created = (material.run.provenance.created or "")[:10]
            parts += [f"trained {created}"] if created else []
        parts.append(f"reported {datetime.now(UTC):%Y-%m-%d}")
        return ", ".join(parts)

    def _classes(self, prediction: Prediction, own: SlideSet) -> tuple[ClassBar, ...]:
        names = self.material.target.names
        order = np.argsort(-prediction.probs, kind="stable").tolist()
        # Spreads of rounding size are none.
        spread = prediction.std if self.has_posterior else np.zeros_like(prediction.std)
        shown = replace(prediction, std=spread)
        return tuple(
            ClassBar(
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
        name = self.material.target.decode(prediction.label)
        agrees = "agrees" if prediction.label == prediction.predicted_class else "DISAGREES"
        return f"The data set labels this slide “{name}”: the prediction {agrees}."

    def _others(self, others: list[tuple[TestedFold, Prediction, SlideSet]]) -> str:
        if not others:
            return ""
        names = self.material.target.names
        shown = ", ".join(
            f"fold {fold.name} {names[p.predicted_class]} {p.probability_text(p.predicted_class)}"
            for fold, p, _ in others[:4]
        )
        more = f" and {len(others) - 4} more" if len(others) > 4 else ""
        return f"Models of other folds tested this slide too: {shown}{more}."

    def _caveats(self, fold: TestedFold, prediction: Prediction) -> tuple[str, ...]:
        caveats = [
            "Research use only. This is not a medical device: do not base a diagnosis or a "
            "treatment on this page.",
            "The maps show what decided this model's prediction. A pathologist may look for "
            "something else. The confidence is the model's own.",
        ]
        if self.material.run is not None:
            caveats.append(
                f"The slide is in the test set of fold {fold.name}: the model of this fold was "
                "not trained on it."
            )
        elif prediction.seen == "train":
            caveats.append("The model was trained on this slide: its confidence is too high.")
        elif prediction.seen == "patient":
            caveats.append("The model was trained on another slide of this patient.")
        elif prediction.seen == "validation":
            caveats.append("The slide validated the training: the confidence may be too high.")
        elif fold.test.provenance is not None and fold.test.provenance.train:
            caveats.append("The model was not trained on this slide.")
        else:
            caveats.append("It is unknown whether the model was trained on this slide.")
        weak = self.facts.encoders_not_for_pathology
        if weak:
            caveats.append(
                f"The patch encoder ({weak[0]}) was trained on everyday photographs, not on "
                "pathology."
            )
        elif not self.facts.encoders:
            caveats.append("The encoder of the patches is unknown.")
        if self.facts.is_synthetic:
            caveats.append("The slide is synthetic (a phantom): it shows no patient.")
        if prediction.novelty_p <= _UNLIKE:  # not where it is unknown (NaN)
            caveats.append(
                f"The slide is unlike the training slides (p = {prediction.novelty_p:.2g}): "
                f"{prediction.novel_share:.0%} of its patches are more novel than 99 % of the "
                "training patches. The prediction may not hold."
            )
        if not self.has_posterior:
            caveats.append("The model does not estimate its own uncertainty.")
        if fold.name in self._idle:
            caveats.append(
                "The Gaussian process of this model is idle: its posterior is its prior. The "
                "standard deviations do not come from the training slides."
            )
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


def _look(
    slide: SlideExplanation, patches: Mapping[KeyPatchKind, tuple[KeyPatch, ...]]
) -> tuple[SlidePicture, dict[int, np.ndarray], tuple[str, ...]]:
    """Read the slide and its patches; a slide that cannot be read is named and left out."""
    try:
        picture = slide.picture
    except SgpmilError as error:
        return (
            SlidePicture(mpp=slide.sources.mpp),
            {},
            (as_flags(f"The slide is not shown: {error}"),),
        )
    if not patches:
        return picture, {}, ()
    try:
        shown = [patch for own in patches.values() for patch in own]
        return picture, slide.patch_images(shown), ()
    except SgpmilError as error:
        return picture, {}, (as_flags(f"Patches are not shown: {error}"),)
