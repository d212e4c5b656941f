"""All files that explain one slide."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.explanation.explanation_folder import ExplanationFolder, ExportKind
from sgpmil.explanation.exports import (
    write_patch_table,
    write_qupath_geojson,
    write_score_tiff,
    write_tiatoolbox_overlay,
)
from sgpmil.explanation.key_patches import key_patches, write_key_patches
from sgpmil.explanation.map_layers import MapLimits
from sgpmil.explanation.maps import ScaleKind, ScoreMap, patch_side, placed_coords, score_map
from sgpmil.explanation.prototypes import PrototypeExplanation
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.map_figures import ModelScores, attention_map_figure, model_row_figure
from sgpmil.report.figures.patch_figures import cut_patches, key_patch_figure
from sgpmil.report.figures.prototype_figures import label_map_figure
from sgpmil.runs.material import SlideSources
from sgpmil.runs.slide_picture import SlidePicture

__all__ = ["ExplainedSlide", "slide_files", "slide_title"]


@dataclass(frozen=True, slots=True, eq=False)
class ExplainedSlide:
    """A slide to explain, and what it is explained with.

    Args:
        name: Name of its files.
        fold: Name of the fold whose model predicted it.
        prediction: What the model says of it, with the scores of its instances.
        class_names: Name of each class.
        class_index: Class that the evidence map is for.
        scale: Scale of the maps.
        limits: Limits of the maps' colours that all slides share.
        exports: Files for other programs.
        geojson_origin: Level-0 position (x, y) that QuPath takes as the slide's origin.
        models: Several models' scores of the slide, its own first.
        prototypes: Prototypes of the fold's test slides.
    """

    name: str
    fold: str
    prediction: Prediction
    class_names: tuple[str, ...]
    class_index: int
    scale: ScaleKind = "absolute"
    limits: MapLimits | None = None
    exports: tuple[ExportKind, ...] = ()
    geojson_origin: tuple[int, int] = (0, 0)
    models: tuple[ModelScores, ...] = ()
    prototypes: PrototypeExplanation | None = None


def slide_title(prediction: Prediction, class_names: Sequence[str]) -> str:
    """Say what a slide is and what the model says of it.

    Args:
        prediction: What the model says.
        class_names: Name of each class.
    """
    predicted = prediction.predicted_class
    told = f"predicted {class_names[predicted]} {prediction.probability_text(predicted)}"
    if prediction.label is None:
        return f"{prediction.slide_id}: {told}"
    wrong = "" if predicted == prediction.label else " — wrong"
    return f"{prediction.slide_id}: {class_names[prediction.label]}, {told}{wrong}"


def slide_files(
    slide: ExplainedSlide, folder: ExplanationFolder, sources: SlideSources
) -> Mapping[Path, Callable[[], None]]:
    """Say which files explain a slide, and how each is made.

    Nothing is read before the first is made, and the slide is opened once for all of them.

    Args:
        slide: The slide.
        folder: Where the files go.
        sources: Slides and annotations.
    """
    writer = _SlideWriter(slide, sources)
    scores = writer.scores
    figure, table = folder.patches(slide.name)
    files: dict[Path, Callable[[], None]] = {
        figure: lambda: writer.write_patches(figure),
        table: lambda: writer.write_patch_list(table),
    }
    if scores.coords is None:
        return files
    drawn, compared = folder.map(slide.name), folder.comparison(slide.name)
    files[drawn] = lambda: writer.write_map(drawn)
    if len(slide.models) > 1:
        files[compared] = lambda: writer.write_comparison(compared)
    if slide.prototypes is not None and slide.prediction.slide_id in slide.prototypes.slides:
        labels = folder.label_map(slide.fold, slide.name)
        files[labels] = lambda: writer.write_label_map(labels)
    for kind in slide.exports:
        files |= _export(writer, kind, folder.export(kind, slide.name))
    return files


def _export(writer: "_SlideWriter", kind: ExportKind, path: Path) -> dict[Path, Callable[[], None]]:
    return {path: lambda: writer.write_export(kind, path)}


class _SlideWriter:
    """Makes the files of one slide."""

    def __init__(self, slide: ExplainedSlide, sources: SlideSources) -> None:
        if slide.prediction.instances is None:
            raise AssertionError("a slide without scores is not explained")
        self.slide = slide
        self.sources = sources
        self.prediction = slide.prediction
        self.scores: InstanceScores = slide.prediction.instances
        self.title = slide_title(slide.prediction, slide.class_names)
        self._picture: SlidePicture | None = None

    @property
    def picture(self) -> SlidePicture:
        if self._picture is None:
            label = self.prediction.label
            name = None if label is None else self.slide.class_names[label]
            self._picture = self.sources.picture(self.prediction.slide_id, name)
        return self._picture

    def write_map(self, path: Path) -> None:
        slide = self.slide
        figure = attention_map_figure(
            self.scores,
            self.title,
            slide.class_index,
            slide.class_names[slide.class_index],
            self.picture,
            scale=slide.scale,
            limits=slide.limits,
        )
        save_figure(figure, path)

    def write_comparison(self, path: Path) -> None:
        figure = model_row_figure(
            self.slide.models, self.picture, self.title, scale=self.slide.scale
        )
        save_figure(figure, path)

    def write_patches(self, path: Path) -> None:
        # Of the class that the model decided for: these are its reasons.
        predicted = self.prediction.predicted_class
        found = key_patches(self.scores, predicted)
        images = None
        opened = None if self.scores.coords is None else self.sources.open(self.prediction.slide_id)
        if opened is not None:
            with opened:
                chosen = [patch for patches in found.values() for patch in patches]
                images = cut_patches(opened, chosen, patch_side(self.scores))
        name = self.slide.class_names[predicted]
        figure = key_patch_figure(self.scores, found, self.title, name, self.picture, images)
        save_figure(figure, path)

    def write_patch_list(self, path: Path) -> None:
        found = key_patches(self.scores, self.prediction.predicted_class)
        chosen = [patch for patches in found.values() for patch in patches]
        write_key_patches(path, self.prediction.slide_id, chosen)

    def write_label_map(self, path: Path) -> None:
        prototypes = self.slide.prototypes
        if prototypes is not None:
            own = prototypes.slides[self.prediction.slide_id]
            figure = label_map_figure(self.scores, own, prototypes, self.picture)
            save_figure(figure, path)

    def write_export(self, kind: ExportKind, path: Path) -> None:
        slide_id, names = self.prediction.slide_id, self.slide.class_names
        if kind == "tiff":
            write_score_tiff(path, self._score_maps(), mpp=self.picture.mpp)
            return
        prototypes = self.slide.prototypes
        own = None if prototypes is None else prototypes.slides.get(slide_id)
        assigned = None if own is None else own.assigned
        similarity = None if own is None else own.similarity
        if kind == "geojson":
            write_qupath_geojson(
                path,
                slide_id,
                self.scores,
                names,
                offset=self.slide.geojson_origin,
                prototypes=assigned,
                similarity=similarity,
                colours=None if prototypes is None else prototypes.colours,
            )
            return
        write = write_tiatoolbox_overlay if kind == "tiatoolbox" else write_patch_table
        write(path, slide_id, self.scores, names, prototypes=assigned, similarity=similarity)

    def _score_maps(self) -> dict[str, ScoreMap]:
        slide, scores = self.slide, self.scores
        name = slide.class_names[slide.class_index]
        layers = {"attention mean": scores.attention_mean}
        if scores.attention_std.any():
            layers["attention sd"] = scores.attention_std
        if scores.evidence_mean is not None:
            layers[f"evidence {name}"] = scores.score("evidence", slide.class_index)
            layers[f"evidence {name} sd"] = scores.score_std("evidence", slide.class_index)
        place = placed_coords(scores), patch_side(scores)
        # Over the whole slide where its size is known, so that the two lie on each other.
        size = self.picture.size
        return {
            layer: score_map(*place, values, slide_size=size) for layer, values in layers.items()
        }
