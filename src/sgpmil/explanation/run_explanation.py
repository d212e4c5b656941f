"""Explanation of a run: its slides one at a time, and the prototypes of its folds."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.tables import listed
from sgpmil.errors import ExplanationError, SettingsError, SgpmilError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.prediction import (
    SCORES,
    InstanceScores,
    Prediction,
    ScoreKind,
    listed_scores,
)
from sgpmil.explanation.folder import ExplanationFolder, ExportKind, predictions_digest
from sgpmil.explanation.map_layers import MapLimits, finite_scores, map_limits, num_without_score
from sgpmil.explanation.prototypes import (
    Nuclei,
    PrototypeExplanation,
    SimilarityMeasure,
    explain_prototypes,
    read_nuclei,
    read_prototypes,
    write_prototypes,
)
from sgpmil.explanation.slide_choice import ChosenSlide, choose_slides, evidence_class
from sgpmil.explanation.slide_explanation import ModelScores, SlideExplanation
from sgpmil.models import SGPMIL, load_model
from sgpmil.notebook import counted
from sgpmil.runs.description import is_run
from sgpmil.runs.material import MaterialOptions, RunMaterial, read_material
from sgpmil.runs.slide_picture import SlideSources

_DECIDE_PROTOTYPES = (
    *("predictions", "prototypes", "features", "annotations", "regions", "min_coverage"),
    *("mask_downsample", "nuclei", "model"),
)
"""Settings that prototypes depend on."""
_DECIDE_LIMITS = ("predictions", "class")
"""Settings that the limits of the colours depend on."""


@dataclass(frozen=True, kw_only=True)
class ExplainOptions(MaterialOptions):
    """Options of `explain`.

    Args:
        only: Name of a slide to explain; may be repeated.
        fold: Name of a fold to explain; may be repeated.
        most: Most slides, the least certain first; all by default.
        scale: Scale of the maps. An absolute scale can be compared between slides; rank and minmax
            are relative to the slide.
        class_name: Class that evidence and single are for; by default the second of two and, of
            more, the predicted one.
        score: Score to draw in the maps: attention, evidence, single or novelty; may be repeated.
            By default all that the model gives.
        prototypes: Comparison of patches with inducing points: by the model's own kernel, cosine
            as published, or centred.
        beside: Another run, to compare maps with; may be repeated.
        export: Files for other programs: geojson (QuPath), csv, parquet, tiff, tiatoolbox;
            comma-separated or repeated.
        geojson_origin: Level-0 position that QuPath takes as the origin, X Y. For MIRAX, the
            slide's openslide.bounds-x and -y.
        model: Folder of the fold whose model made the predictions, for prototypes.
        out: Folder to write to; RUN/explanation by default.
        overwrite: Replace an existing explanation.
    """

    only: tuple[str, ...] = ()
    fold: tuple[str, ...] = ()
    most: int | None = None
    scale: Literal["absolute", "rank", "minmax"] = "absolute"
    class_name: str | None = None
    score: tuple[str, ...] = ()
    prototypes: Literal["kernel", "cosine", "centred", "none"] = "kernel"
    beside: tuple[Path, ...] = ()
    export: tuple[str, ...] = ()
    geojson_origin: tuple[int, int] = (0, 0)
    model: Path | None = None
    out: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        MaterialOptions.__post_init__(self)
        if self.most is not None and self.most < 1:
            raise SettingsError(f"Expected `most` of at least 1, but got {self.most}.")
        strange = [kind for kind in self.score if kind not in SCORES]
        if strange:
            raise SettingsError(
                f"Expected `score` {listed_scores()}, but got '{strange[0]}'. Choose one of these."
            )
        unknown = [name for name in self._export_names if name not in get_args(ExportKind)]
        if unknown:
            raise SettingsError(
                f"Expected `export` of {', '.join(get_args(ExportKind))}, but got '{unknown[0]}'. "
                "Choose among these."
            )

    @property
    def kinds(self) -> tuple[ScoreKind, ...] | None:
        """Scores to draw; None for all that the model gives."""
        return tuple(cast("ScoreKind", kind) for kind in self.score) or None

    @property
    def exports(self) -> tuple[ExportKind, ...]:
        """Files for other programs, each named once."""
        return tuple(cast("ExportKind", name) for name in self._export_names)

    @property
    def _export_names(self) -> list[str]:
        names = (name.strip().lower() for text in self.export for name in text.split(","))
        return list(dict.fromkeys(name for name in names if name))

    @property
    def similarity(self) -> SimilarityMeasure | None:
        """Comparison of patches with inducing points; None for no prototypes."""
        return None if self.prototypes == "none" else self.prototypes

    def read_material(self) -> RunMaterial:
        """Read the run, and find the files and the model that belong to it.

        Raises:
            SettingsError: A model is named for a run that has its own.
            SgpmilError: The run or one of the files cannot be read.
        """
        material = MaterialOptions.read_material(self)
        if self.model is None:
            return material
        if is_run(self.model):
            raise SettingsError(
                f"Expected one fold of the run {self.model} (`model`), whose prototypes are shown, "
                f"but got all. Name a fold, such as {self.model / 'fold-0'}."
            )
        if len(material.folds) != 1 or material.folds[0].checkpoint is not None:
            raise SettingsError(
                "`model` is for predictions that one model made, whose folder has no model: the "
                f"run {material.path} has its own. Leave it out."
            )
        return replace(material, folds=(replace(material.folds[0], checkpoint=self.model),))

    def places(self) -> dict[str, Any]:
        """Give the files and the rule of the annotations as JSON values, paths in full."""
        names = ("slides", "features", "annotations", "nuclei", "model")
        paths = {name: getattr(self, name) for name in names}
        return {
            **{name: None if path is None else str(path.resolve()) for name, path in paths.items()},
            "regions": None if self.regions is None else ",".join(self.regions),
            "min_coverage": self.min_coverage,
            "mask_downsample": self.mask_downsample,
            "mpp": self.mpp,
        }


@runtime_checkable
class ExplanationProgress(Protocol):
    """Receiver of the progress of an explanation."""

    def begin(self, text: str, total: int | None) -> None:
        """Start to count another part of the work, of some slides."""

    def advance(self) -> None:
        """Count a slide that is done."""


class SilentProgress:
    """Progress that nobody sees."""

    def begin(self, text: str, total: int | None) -> None:
        """Start to count another part of the work."""

    def advance(self) -> None:
        """Count a slide that is done."""


def explain(
    options: ExplainOptions,
    material: RunMaterial | None = None,
    progress: ExplanationProgress | None = None,
) -> "Explanation":
    """Explain the test slides of a run, each by the model that did not see it in training.

    Nothing is drawn, and nothing is computed before it is asked for. Limits of colours and
    prototypes are read from the run's explanation folder, where ``sgpmil explain`` wrote them from
    the same predictions and settings.

    Args:
        options: The run, its slides, the scale of the maps and the rest.
        material: The run, where it is read already.
        progress: Receives the progress of long parts.

    Raises:
        ExplanationError: A slide, a fold or a class is not of the run.
        SgpmilError: The run cannot be read.
    """
    return Explanation(material or options.read_material(), options, progress or SilentProgress())


class Explanation:
    """Explanation of a run. Iterate over it for its slides, the least certain first.

    Memory stays bounded: a slide's maps and picture live as long as its `SlideExplanation`.

    Args:
        material: The run.
        options: Slides, scale, class and the rest.
        progress: Receives the progress of long parts.

    Attributes:
        slides: The chosen slides, the least certain first.
        notes: Reasons of what is missing, in sentences.
    """

    def __init__(
        self, material: RunMaterial, options: ExplainOptions, progress: ExplanationProgress
    ) -> None:
        self.material = material
        self.options = options
        self.progress = progress
        self.slides = choose_slides(
            material, only=options.only, folds=options.fold, most=options.most
        )
        self.notes: list[str] = []
        if options.model is not None and material.is_ensemble:
            self.notes.append(
                f"Several models made these predictions: prototypes are those of {options.model} "
                "alone."
            )
        self.folder = ExplanationFolder(options.out or material.path / "explanation")
        self._prototypes: dict[str, PrototypeExplanation | None] = {}
        # Refuse an unknown class before anything is computed.
        for _, prediction in material.predictions():
            self.class_of(prediction)
            break

    def __iter__(self) -> Iterator[SlideExplanation]:
        return map(self.slide, self.slides)

    def __len__(self) -> int:
        return len(self.slides)

    def slide(self, slide: ChosenSlide | str, *, longest: int = 1600) -> SlideExplanation:
        """Explain one slide.

        Args:
            slide: The slide, or its name.
            longest: Longer side of its picture in pixels.

        Raises:
            ExplanationError: The run has no such slide.
        """
        if isinstance(slide, str):
            slide = choose_slides(self.material, only=(slide,), folds=self.options.fold)[0]
        return SlideExplanation(
            name=slide.name,
            fold=slide.fold.name,
            prediction=slide.prediction,
            target=self.material.target,
            class_index=self.class_of(slide.prediction),
            kinds=self.options.kinds,
            scale=self.options.scale,
            limits=self.limits if self.options.scale == "absolute" else None,
            sources=self.material.sources,
            models=self._models(slide.prediction),
            find_prototypes=partial(self.prototypes, slide.fold.name),
            longest=longest,
        )

    def class_of(self, prediction: Prediction) -> int:
        """Give the class that the evidence map of a slide is for."""
        return evidence_class(prediction, self.material.target, self.options.class_name)

    @cached_property
    def record(self) -> dict[str, Any]:
        """Everything that decides what the files of the explanation hold, as JSON values."""
        return {
            "predictions": predictions_digest(fold.test for fold in self.material.folds),
            "scale": self.options.scale,
            "class": self.options.class_name,
            "score": list(self.options.score) or None,
            "prototypes": self.options.similarity,
            "geojson_origin": list(self.options.geojson_origin),
            "beside": {
                name: predictions_digest(fold.test for fold in other.folds)
                for name, other in self.others.items()
            },
            **self.options.places(),
        }

    @cached_property
    def limits(self) -> MapLimits:
        """Limits of the colours on the absolute scale, which all slides of the run share."""
        stored = self.folder.read_limits() if self._is_stored(_DECIDE_LIMITS) else None
        return stored or map_limits(
            (finite_scores(prediction.instances), self.class_of(prediction))
            for _, prediction in self.material.predictions()
            if prediction.instances is not None
        )

    @cached_property
    def others(self) -> Mapping[str, RunMaterial]:
        """The runs beside this one, by the names of their models."""
        read = {path: read_material(path) for path in dict.fromkeys(self.options.beside)}
        counts = Counter(material.model for material in read.values())
        named: dict[str, RunMaterial] = {}
        for path, material in read.items():
            is_clear = material.model and counts[material.model] == 1
            place = path.resolve().name
            name = material.model if is_clear else f"{material.model} ({place})".strip()
            named[name if name not in named else str(path)] = material
        return named

    def prototypes(self, fold: str) -> PrototypeExplanation | None:
        """Give the prototypes of a fold, over all its test slides; None where there are none.

        The slides are explained together, so that a colour means the same on each. The reason
        why there are none is among the `notes`.

        Args:
            fold: Name of the fold.
        """
        if fold not in self._prototypes:
            self._prototypes[fold] = self._find_prototypes(fold)
        return self._prototypes[fold]

    def _find_prototypes(self, name: str) -> PrototypeExplanation | None:
        measure = self.options.similarity
        if measure is None:
            return None
        stored = self.folder.prototype_data(name)
        if stored.exists() and self._is_stored(_DECIDE_PROTOTYPES):
            try:
                found = read_prototypes(stored)
            except ExplanationError:  # damaged: compute them again
                pass
            else:
                self.notes += found.missing
                return found
        fold = next(fold for fold in self.material.folds if fold.name == name)
        try:
            model = prototype_model(fold)
            bags = self.material.bags
            if bags is None:
                raise ExplanationError(f"There are no prototypes: {self.material.bags_missing}")
            self.progress.begin(f"Prototypes of fold {name}", len(fold.test))
            found = fold_prototypes(
                model, fold, bags, self.material.sources, measure, self.progress
            )
        except SgpmilError as error:
            text = str(error)
            is_reason = text.startswith("There are no prototypes")
            self.notes.append(
                text if is_reason else f"There are no prototypes of fold {name}: {text}"
            )
            return None
        self.notes += found.missing
        return found

    def write_data(self) -> None:
        """Write the limits and the prototypes that were computed, for a report or a viewer."""
        self.folder.write_limits(self.limits)
        for name, found in self._prototypes.items():
            if found is not None and not self.folder.prototype_data(name).exists():
                write_prototypes(self.folder.prototype_data(name), found)

    def _is_stored(self, keys: Sequence[str]) -> bool:
        """Check whether the folder holds an explanation with the same values of these settings."""
        found = self.folder.read_record()
        return found is not None and all(found.get(key) == self.record[key] for key in keys)

    @cached_property
    def _other_scores(self) -> dict[str, tuple[dict[str, InstanceScores | None], MapLimits]]:
        found = {}
        for name, other in self.others.items():
            known = {p.slide_id: p.instances for _, p in other.predictions()}
            limits = map_limits(
                (finite_scores(scores), 0) for scores in known.values() if scores is not None
            )
            found[name] = known, limits
        return found

    def _models(self, prediction: Prediction) -> tuple[ModelScores, ...]:
        own = prediction.instances
        if own is None or not self.options.beside:
            return ()
        models = [ModelScores(self.material.model or self.material.path.name, own, self.limits)]
        for name, (known, limits) in self._other_scores.items():
            found = known.get(prediction.slide_id)
            if found is not None and found.coords is not None and not num_without_score(found):
                models.append(ModelScores(name, found, limits))
            else:
                self.notes.append(f"{name} has no scores of some slides: they are not compared.")
        return tuple(models)


def prototype_model(fold: TestedFold) -> SGPMIL:
    """Load the model of a fold, which has inducing points.

    Raises:
        ExplanationError: The model is unknown, or has none.
    """
    if fold.checkpoint is None:
        raise ExplanationError(
            "There are no prototypes: of these predictions no single model is known. Name the "
            "folder of a fold (`model`)."
        )
    model, _ = load_model(fold.checkpoint)
    if not isinstance(model, SGPMIL):
        raise ExplanationError(f"There are no prototypes: {model.name} has no inducing points.")
    return model


def fold_prototypes(
    model: SGPMIL,
    fold: TestedFold,
    bags: BagDataset,
    sources: SlideSources,
    measure: SimilarityMeasure,
    progress: ExplanationProgress | None = None,
    scores: Mapping[str, InstanceScores] | None = None,
) -> PrototypeExplanation:
    """Find the prototypes of a fold over all its test slides.

    Args:
        model: Model of the fold.
        fold: The fold.
        bags: Embeddings; slides that they lack, or that cannot be read, are named in the result.
        sources: Slides and nuclei.
        measure: Measure of similarity of patches to inducing points.
        progress: Receives the progress.
        scores: Scores of the patches by slide; by default those of the fold's predictions.

    Raises:
        ExplanationError: No slide can be explained.
    """
    readable = _ReadableBags(bags, fold.test.slide_ids)
    if scores is None:
        found = fold.test.predictions
        scores = {p.slide_id: p.instances for p in found if p.instances is not None}
    explained = explain_prototypes(
        model,
        readable,
        scores=scores,
        measure=measure,
        nuclei=partial(_nuclei, sources) if sources.nuclei else None,
        patch_size=partial(_patch_size, bags),
        on_slide=lambda _: (progress or SilentProgress()).advance(),
    )
    return replace(explained, missing=tuple(readable.failures.values()))


class _ReadableBags:
    """Bags of slides; those that cannot be read are left out and remembered."""

    def __init__(self, bags: BagDataset, slide_ids: Sequence[str]) -> None:
        known = set(bags.slide_ids)
        self.bags = bags
        self.slide_ids = [slide_id for slide_id in slide_ids if slide_id in known]
        missing = [slide_id for slide_id in slide_ids if slide_id not in known]
        self.failures: dict[str, str] = {}
        if missing:
            self.failures[""] = (
                f"Without embeddings, and in no prototype: {counted(len(missing), 'slide')}, "
                f"{listed(missing)}."
            )

    def __iter__(self) -> Iterator[Bag]:
        for slide_id in self.slide_ids:
            try:
                yield self.bags[self.bags.index(slide_id)]
            except SgpmilError as error:
                self.failures[slide_id] = f"'{slide_id}' counts in no prototype: {error}"


def _patch_size(bags: BagDataset, slide_id: str) -> int | None:
    try:  # a training slide, which may not be among the bags to explain
        return bags.source.header(slide_id).patch_size
    except SgpmilError:
        return None


def _nuclei(sources: SlideSources, slide_id: str) -> Nuclei | None:
    if slide_id not in sources.nuclei:
        return None
    slide = sources.open(slide_id)
    if slide is None:
        return read_nuclei(sources.nuclei[slide_id])
    with slide:
        return read_nuclei(sources.nuclei[slide_id], magnification=slide.objective)
