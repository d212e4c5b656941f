"""Files of a run's explanation: figures of its slides and prototypes, tables, exports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from sgpmil.errors import ExplanationError, SgpmilError
from sgpmil.explanation.folder import ExplanationFolder, open_explanation
from sgpmil.explanation.key_patches import write_key_patches
from sgpmil.explanation.map_layers import num_without_score
from sgpmil.explanation.prototypes import write_prototype_table
from sgpmil.explanation.run_explanation import (
    ExplainOptions,
    Explanation,
    ExplanationProgress,
    explain,
)
from sgpmil.explanation.slide_choice import ChosenSlide, write_slide_list
from sgpmil.explanation.slide_explanation import SlideExplanation
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.map_figures import attention_map_figure, model_row_figure
from sgpmil.report.figures.patch_figures import key_patch_figure
from sgpmil.report.figures.prototype_map import label_map_figure
from sgpmil.report.figures.prototype_sheet import MOST, prototype_sheet, read_pictures
from sgpmil.runs.material import RunMaterial


@dataclass(frozen=True, slots=True)
class SlideFiles:
    """Files of one slide.

    Args:
        slide_id: Name of the slide.
        fold: Name of its fold.
        status: `kept` where all its files were there.
        written: Number of files that were written.
        reason: Reason of a failure.
    """

    slide_id: str
    fold: str
    status: Literal["done", "kept", "failed"]
    written: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class WrittenExplanation:
    """An explanation that was written.

    Args:
        folder: Its folder.
        material: The run.
        slides: Files of each slide, the least certain first within each fold.
        notes: Reasons of what is missing, in sentences.
    """

    folder: ExplanationFolder
    material: RunMaterial
    slides: tuple[SlideFiles, ...]
    notes: tuple[str, ...] = ()


def write_explanation(
    options: ExplainOptions,
    material: RunMaterial | None = None,
    progress: ExplanationProgress | None = None,
) -> WrittenExplanation:
    """Write the explanation of a run: maps, patches to look at, prototypes, exports.

    Each test slide is explained by the model that did not see it in training. A stopped
    explanation resumes where it left off. A slide that fails is reported and does not stop the
    others.

    Args:
        options: The run, its slides, and what to write.
        material: The run, where it is read already.
        progress: Receives the progress.

    Raises:
        ExplanationError: There is nothing to explain, something asked for is not there, or the
            folder holds an explanation of other settings.
        SgpmilError: The run cannot be read.
    """
    explanation = explain(options, material, progress)
    material = explanation.material
    if not any(one.prediction.instances is not None for one in explanation.slides):
        raise ExplanationError(
            f"Expected scores of the instances in {material.path}, but there are none for these "
            "slides. Predict them again, with the instances."
        )
    folder = open_explanation(
        explanation.folder.path, explanation.record, overwrite=options.overwrite
    )
    write_slide_list(folder.slides, material, options.fold)
    slides: list[SlideFiles] = []
    for fold in material.folds:
        own = [one for one in explanation.slides if one.fold is fold]
        if not own:
            continue
        _write_prototypes(explanation, fold.name)
        explanation.progress.begin(f"Slides of fold {fold.name}", len(own))
        for one in own:
            slides.append(_write_slide(explanation, one))
            explanation.progress.advance()
    explanation.write_data()
    notes = tuple(dict.fromkeys(explanation.notes))
    return WrittenExplanation(folder, material, tuple(slides), notes)


def _write_prototypes(explanation: Explanation, fold: str) -> None:
    figure, table = explanation.folder.prototypes(fold)
    found = explanation.prototypes(fold)
    if found is None or (figure.exists() and table.exists()):
        return
    pictures, problems = read_pictures(found.typical(MOST), explanation.material.sources.open)
    explanation.notes += problems
    save_figure(prototype_sheet(found, pictures, title=f"fold {fold}"), figure)
    write_prototype_table(table, found)


def _write_slide(explanation: Explanation, chosen: ChosenSlide) -> SlideFiles:
    slide_id, fold = chosen.slide_id, chosen.fold.name
    scores = chosen.prediction.instances
    if scores is None:
        reason = explanation.material.damaged.get(
            slide_id, "There are no scores of its patches. Predict it again, with the instances."
        )
        return SlideFiles(slide_id, fold, "failed", reason=reason)
    if num_without_score(scores):
        reason = "Some of its patches have scores that are not finite. Predict it again."
        return SlideFiles(slide_id, fold, "failed", reason=reason)
    if scores.coords is None:
        kinds = ", ".join(explanation.options.exports)
        explanation.notes.append(
            "Patches without coordinates have no place: there are no maps of these slides"
            + (f", and nothing is exported of them ({kinds})." if kinds else ".")
        )
    files = _slide_files(explanation.slide(chosen), explanation)
    missing = [path for path in files if not path.exists()]
    reasons = []
    for path in missing:
        try:
            files[path](path)
        except SgpmilError as error:  # the other files may not need what is damaged
            reasons.append(str(error))
    written = len(missing) - len(reasons)
    if reasons:
        return SlideFiles(slide_id, fold, "failed", written, reasons[0])
    return SlideFiles(slide_id, fold, "done" if written else "kept", written)


def _slide_files(
    slide: SlideExplanation, explanation: Explanation
) -> Mapping[Path, Callable[[Path], None]]:
    """List the files of a slide, each with the function that writes it.

    Nothing is read before the first is written, and the slide's picture is read once for all.
    """
    folder, options = explanation.folder, explanation.options
    chosen = [patch for patches in slide.key_patches.values() for patch in patches]
    figure, table = folder.patches(slide.name)
    files: dict[Path, Callable[[Path], None]] = {
        figure: lambda path: _draw_patches(slide, path),
        table: lambda path: write_key_patches(path, slide.slide_id, chosen),
    }
    if not slide.is_placed:
        return files
    files[folder.map(slide.name)] = lambda path: _draw_map(slide, path)
    if len(slide.models) > 1:
        files[folder.comparison(slide.name)] = lambda path: save_figure(
            model_row_figure(slide.models, slide.picture, slide.title, scale=slide.scale), path
        )
    if slide.prototypes is not None:
        files[folder.label_map(slide.fold, slide.name)] = lambda path: _draw_labels(slide, path)
    for kind in options.exports:
        files[folder.export(kind, slide.name)] = partial(
            slide.export, kind, geojson_origin=options.geojson_origin
        )
    return files


def _draw_map(slide: SlideExplanation, path: Path) -> None:
    figure = attention_map_figure(
        slide.scores,
        slide.title,
        slide.class_index,
        slide.class_name,
        slide.picture,
        scale=slide.scale,
        kinds=slide.kinds,
        limits=slide.limits,
    )
    save_figure(figure, path)


def _draw_patches(slide: SlideExplanation, path: Path) -> None:
    chosen = [patch for patches in slide.key_patches.values() for patch in patches]
    images = slide.patch_images(chosen)
    name = slide.target.decode(slide.prediction.predicted_class)
    figure = key_patch_figure(
        slide.scores, slide.key_patches, slide.title, name, slide.picture, images
    )
    save_figure(figure, path)


def _draw_labels(slide: SlideExplanation, path: Path) -> None:
    own, everything = slide.prototypes, slide.fold_prototypes
    if own is not None and everything is not None:
        save_figure(label_map_figure(slide.scores, own, everything, slide.picture), path)
