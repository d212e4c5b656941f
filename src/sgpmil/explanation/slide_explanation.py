"""Explanation of one slide as data: layers, maps, key patches, prototypes, exports."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from sgpmil.bags.target import Target
from sgpmil.errors import ExplanationError
from sgpmil.evaluation.prediction import SCORES, InstanceScores, Prediction, ScoreKind
from sgpmil.explanation.exports import (
    write_patch_table,
    write_qupath_geojson,
    write_score_tiff,
    write_tiatoolbox_overlay,
)
from sgpmil.explanation.folder import ExportKind
from sgpmil.explanation.key_patches import KeyPatch, KeyPatchKind, cut_patches, key_patches
from sgpmil.explanation.map_layers import (
    LayerKind,
    MapLayer,
    MapLimits,
    finite_scores,
    map_layers,
    map_limits,
)
from sgpmil.explanation.maps import ScaleKind, ScoreMap, patch_side, placed_coords, score_map
from sgpmil.explanation.prototypes import PrototypeExplanation, SlidePrototypes
from sgpmil.runs.slide_picture import SlidePicture, SlideSources
from sgpmil.shapes import UInt8


@dataclass(frozen=True, slots=True, eq=False)
class ModelScores:
    """One model's scores of a slide's instances.

    Args:
        name: Name of the model.
        scores: Its scores.
        limits: Limits of the colours on the absolute scale; by default those of the slide.
    """

    name: str
    scores: InstanceScores
    limits: MapLimits | None = None


@dataclass(frozen=True, eq=False)
class SlideExplanation:
    """Everything that explains one slide. Each part is computed when it is first asked for.

    Args:
        name: Name of its files.
        fold: Name of the fold whose model predicted it.
        prediction: Prediction of the slide, with the scores of its instances.
        target: Quantity that is predicted.
        class_index: Class that evidence and single are for.
        kinds: Scores that the maps show; by default all that there are.
        scale: Scale of the maps.
        limits: Limits of the colours that all slides of the run share; None on a scale that is
            relative to the slide.
        sources: Files of the slides and their annotations.
        models: Scores of several models, the run's own first; empty without a comparison.
        find_prototypes: Gives the prototypes of the fold.
        longest: Longer side of the slide's picture in pixels.
    """

    name: str
    fold: str
    prediction: Prediction
    target: Target
    class_index: int
    kinds: tuple[ScoreKind, ...] | None = None
    scale: ScaleKind = "absolute"
    limits: MapLimits | None = None
    sources: SlideSources = SlideSources()  # noqa: RUF009  (frozen and empty)
    models: tuple[ModelScores, ...] = ()
    find_prototypes: Callable[[], PrototypeExplanation | None] = lambda: None
    longest: int = 1600

    @property
    def slide_id(self) -> str:
        """Name of the slide."""
        return self.prediction.slide_id

    @property
    def title(self) -> str:
        """The slide, its label and its prediction, in a line."""
        return slide_title(self.prediction, self.target)

    @property
    def class_name(self) -> str:
        """Name of the class that evidence and single are for."""
        return self.target.names[self.class_index]

    @cached_property
    def scores(self) -> InstanceScores:
        """Scores of the instances; infinite values are NaN, which maps leave out.

        Raises:
            ExplanationError: There are none.
        """
        if self.prediction.instances is None:
            raise ExplanationError(
                f"Expected scores of the patches of '{self.slide_id}', but there are none. "
                "Predict it again, with the instances."
            )
        return finite_scores(self.prediction.instances)

    @property
    def is_placed(self) -> bool:
        """Return whether the patches have coordinates, so that there are maps."""
        return self.scores.coords is not None

    @cached_property
    def layers(self) -> tuple[MapLayer, ...]:
        """Scores of each patch with their standard deviations, in map units."""
        return map_layers(
            self.scores, self.class_index, self.class_name, self.scale, kinds=self.kinds
        )

    @cached_property
    def own_limits(self) -> MapLimits:
        """Limits of the colours of this slide: the run's, or its own where there are none."""
        return self.limits or map_limits([(self.scores, self.class_index)])

    def map(self, kind: LayerKind = "attention", *, most_pixels: int = 4_000_000) -> ScoreMap:
        """Give one layer as an image of the slide, exact to the pixel.

        Raises:
            ExplanationError: The model does not give this layer, or there are no coordinates.
        """
        for layer in self.layers:
            if layer.kind == kind:
                place = placed_coords(self.scores), patch_side(self.scores)
                return score_map(*place, layer.values, most_pixels=most_pixels)
        known = ", ".join(layer.kind for layer in self.layers)
        raise ExplanationError(
            f"Expected a layer among {known}, which the model gives for '{self.slide_id}', but "
            f"got '{kind}'. Choose one of these."
        )

    @cached_property
    def key_patches(self) -> dict[KeyPatchKind, tuple[KeyPatch, ...]]:
        """Patches to look at, by kind. Scores of a class are for the predicted one."""
        return key_patches(self.scores, self.prediction.predicted_class)

    def patch_images(self, patches: Iterable[KeyPatch]) -> dict[int, UInt8[np.ndarray, "s s 3"]]:
        """Cut patches from the slide; without a slide or coordinates there are no pictures.

        Returns:
            Picture of each patch, by its number in the bag.

        Raises:
            SlideError: The slide cannot be read.
        """
        opened = self.sources.open(self.slide_id) if self.is_placed else None
        if opened is None:
            return {}
        with opened:
            return cut_patches(opened, patches, patch_side(self.scores))

    @property
    def fold_prototypes(self) -> PrototypeExplanation | None:
        """Prototypes of all test slides of the fold; None where there are none."""
        return self.find_prototypes()

    @property
    def prototypes(self) -> SlidePrototypes | None:
        """Prototypes of this slide's patches; None where there are none."""
        found = self.fold_prototypes
        return None if found is None else found.slides.get(self.slide_id)

    @cached_property
    def picture(self) -> SlidePicture:
        """The slide as an image, with the experts' outlines, as far as they are given.

        Raises:
            SlideError: The slide cannot be read.
            AnnotationError: The annotations cannot be read.
        """
        label = self.prediction.label
        name = None if label is None else self.target.decode(label)
        return self.sources.picture(self.slide_id, name, longest=self.longest)

    def export(
        self, kind: ExportKind, path: Path, *, geojson_origin: tuple[int, int] = (0, 0)
    ) -> None:
        """Write the scores of the patches as a file for another program.

        Args:
            kind: The program or format.
            path: File to write; replaced whole where it exists.
            geojson_origin: Level-0 position (x, y) that QuPath takes as the slide's origin.

        Raises:
            SgpmilError: There are no coordinates, or the slide cannot be read.
        """
        if kind == "tiff":
            write_score_tiff(path, self._score_maps(), mpp=self.picture.mpp)
            return
        own, everything = self.prototypes, self.fold_prototypes
        assigned = None if own is None else own.assigned
        similarity = None if own is None else own.similarity
        if kind == "geojson":
            write_qupath_geojson(
                path,
                self.slide_id,
                self.scores,
                self.target.names,
                offset=geojson_origin,
                prototypes=assigned,
                similarity=similarity,
                colours=None if everything is None else everything.colours,
            )
            return
        write = write_tiatoolbox_overlay if kind == "tiatoolbox" else write_patch_table
        write(
            path,
            self.slide_id,
            self.scores,
            self.target.names,
            prototypes=assigned,
            similarity=similarity,
        )

    def _score_maps(self) -> dict[str, ScoreMap]:
        scores, name = self.scores, self.class_name
        layers = {}
        for kind in scores.kinds:
            named = f"{kind} {name}" if SCORES[kind].is_of_class else kind
            title = "attention mean" if kind == "attention" else named
            layers[title] = scores.score(kind, self.class_index)
            spread = scores.score_std(kind, self.class_index)
            # Evidence has had the page of its deviation even where that is zero.
            if spread.any() or kind == "evidence":
                layers[f"{named} sd"] = spread
        place = placed_coords(scores), patch_side(scores)
        # Over the whole slide where its size is known, so that the two lie on each other.
        size = self.picture.size
        return {
            layer: score_map(*place, values, slide_size=size) for layer, values in layers.items()
        }


def slide_title(prediction: Prediction, target: Target) -> str:
    """Describe a slide, its label and its prediction in a line."""
    predicted = prediction.predicted_class
    text = f"predicted {target.decode(predicted)} {prediction.probability_text(predicted)}"
    if prediction.label is None:
        return f"{prediction.slide_id}: {text}"
    wrong = "" if predicted == prediction.label else " — wrong"
    return f"{prediction.slide_id}: {target.decode(prediction.label)}, {text}{wrong}"
