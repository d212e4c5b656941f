"""All that a run can be explained with: predictions, models, embeddings, slides, annotations."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.reading import read_bags
from sgpmil.bags.tables import listed
from sgpmil.errors import BagError, ExplanationError, SettingsError, SgpmilError, SlideError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.localisation.annotated import InstanceLabeller
from sgpmil.evaluation.prediction import Prediction
from sgpmil.runs.results import open_results
from sgpmil.runs.slide_picture import SlidePicture, outlines_of
from sgpmil.slides.annotations.folder import AnnotationFolder
from sgpmil.slides.reading import Slide, find_slides, open_slide, slide_resolution

__all__ = ["MaterialFold", "MissingMaterialWarning", "RunMaterial", "SlideSources", "read_material"]


class MissingMaterialWarning(UserWarning):
    """Something that an explanation could show is not there."""


@dataclass(frozen=True, slots=True, eq=False)
class SlideSources:
    """Where the slides themselves lie, and what others know of them.

    Args:
        files: File of each slide.
        annotations: What experts drew on them.
        nuclei: File of each slide's nuclei, as HoVer-Net or CellViT found them.
        mpp: Microns a level-0 pixel as the user says, for slides that do not.
    """

    files: Mapping[str, Path] = field(default_factory=dict)
    annotations: AnnotationFolder | None = None
    nuclei: Mapping[str, Path] = field(default_factory=dict)
    mpp: float | None = None

    def open(self, slide_id: str) -> Slide | None:
        """Open a slide's file; None where there is none.

        Raises:
            SlideError: It cannot be read.
        """
        return open_slide(self.files[slide_id]) if slide_id in self.files else None

    def picture(
        self, slide_id: str, slide_class: str | None = None, *, longest: int = 1600
    ) -> SlidePicture:
        """Give what is known of how a slide looks; without slides and annotations, nothing.

        Args:
            slide_id: Name of the slide.
            slide_class: Name of its class, on which the annotations' rule may depend.
            longest: Longer side of the picture in pixels.

        Raises:
            SlideError: The slide cannot be read.
            AnnotationError: The annotations cannot be read.
        """
        picture = SlidePicture(mpp=self.mpp)
        slide = self.open(slide_id)
        if slide is not None:
            with slide:
                picture = SlidePicture(
                    slide.thumbnail(longest), slide.size, mpp=_mpp_of(slide) or self.mpp
                )
        if self.annotations is None or slide_id not in self.annotations:
            return picture
        rings, name = outlines_of(self.annotations.read(slide_id, slide_class or ""))
        return replace(picture, outlines=rings, outlined=name)


MaterialFold = TestedFold


@dataclass(frozen=True, slots=True, eq=False)
class RunMaterial:
    """What a run can be explained with.

    Args:
        path: The run, or the folder of predictions.
        model: Name of the model; empty for predictions of other systems.
        class_names: Name of each class.
        folds: The folds that are done.
        unfinished: Name of each other fold.
        bags: The embeddings that were predicted; None where they are not to be found.
        bags_missing: Why they are not, in a sentence.
        damaged: Why the scores of a slide's patches cannot be read, by slide.
        sources: Slides, annotations and nuclei.
        description: What the run says of itself (``run.json``).
    """

    path: Path
    model: str
    class_names: tuple[str, ...]
    folds: tuple[MaterialFold, ...]
    unfinished: tuple[str, ...] = ()
    bags: BagDataset | None = None
    bags_missing: str = ""
    damaged: Mapping[str, str] = field(default_factory=dict)
    sources: SlideSources = field(default_factory=SlideSources)
    description: Mapping[str, Any] = field(default_factory=dict)

    def predictions(self) -> Iterator[tuple[MaterialFold, Prediction]]:
        """Go through the test slides of all folds."""
        for fold in self.folds:
            for prediction in fold.test.predictions:
                yield fold, prediction

    @property
    def slide_ids(self) -> frozenset[str]:
        """Names of the test slides."""
        return frozenset(prediction.slide_id for _, prediction in self.predictions())


def read_material(
    path: Path | str,
    *,
    features: Path | None = None,
    slides: Path | None = None,
    annotations: AnnotationFolder | None = None,
    min_coverage: float = 0.5,
    nuclei: Path | None = None,
    mpp: float | None = None,
) -> RunMaterial:
    """Read what a run left on disk, and find what belongs to it.

    Args:
        path: A run, the folder of a fold, or predictions.
        features: The embeddings; by default where the run found them.
        slides: Folder of the slide files.
        annotations: What experts drew on them; labels the instances.
        min_coverage: Least share of a patch that is positive; 0 means any overlap.
        nuclei: Folder of the slides' nuclei, ``<slide>.json``.
        mpp: Microns a level-0 pixel, for slides that do not say.

    Raises:
        SgpmilError: The predictions, or a folder that was named, cannot be read; or no slide file
            is of the run.
    """
    if mpp is not None and not 0 < mpp < math.inf:
        raise SettingsError(f"Expected --mpp above 0, such as 0.25, but got {mpp:g}.")
    results = open_results(path)
    if not results.folds:
        raise ExplanationError(
            f"Expected a run with at least one fold that is done at {results.path}, but none is. "
            "Go on with it: sgpmil train … --resume."
        )
    damaged: dict[str, str] = {}
    folds = results.load(damaged)
    if annotations is not None:
        labeller = InstanceLabeller(annotations, min_coverage)
        folds = tuple(replace(fold, test=labeller.label(fold.test).table) for fold in folds)
    description = {} if results.run is None else results.run.description
    wanted = {slide_id for fold in folds for slide_id in fold.test.slide_ids}
    bags, missing = _embeddings(description.get("data", {}), features, wanted)
    return RunMaterial(
        results.path,
        str(description.get("settings", {}).get("model", "")),
        folds[0].test.class_names,
        folds,
        results.unfinished,
        bags,
        missing,
        damaged,
        SlideSources(
            {} if slides is None else _slide_files(slides, wanted),
            annotations,
            {} if nuclei is None else _nuclei_files(nuclei, wanted),
            mpp,
        ),
        description,
    )


def _embeddings(
    data: Mapping[str, Any], features: Path | None, wanted: Iterable[str]
) -> tuple[BagDataset | None, str]:
    """Open the embeddings of the slides; those that were named must be there."""
    recorded = data.get("folder")
    folder = features or (None if recorded is None else Path(recorded))
    if folder is None:
        return None, "It is not known where the embeddings lie: name them with --features."
    try:
        bags = read_bags(folder)
        there = set(bags.slide_ids)
        known = [slide_id for slide_id in wanted if slide_id in there]
        if not known:
            raise BagError(
                f"Expected embeddings of the run's slides in {folder}, but got those of others. "
                "Name the folder that the run was trained on."
            )
    except SgpmilError as error:
        if features is not None:
            raise
        return None, f"{error} Name another folder with --features."
    return bags.subset(sorted(known)), ""


def _slide_files(folder: Path, wanted: set[str]) -> dict[str, Path]:
    files = _files_of(folder, recursive=False)
    # Folders below may hold thumbnails of the same names: they are looked into only for need.
    if not wanted & set(files):
        files = {file.stem: file for file in find_slides(folder, recursive=True)}
    known = {slide_id: files[slide_id] for slide_id in sorted(wanted) if slide_id in files}
    if not known:
        raise SlideError(
            f"Expected files of slides such as '{min(wanted)}' in {folder}, but got only such as "
            f"'{min(files)}'. Name the folder of the run's slides."
        )
    _warn_missing(wanted - set(known), "slides", folder)
    return known


def _files_of(folder: Path, *, recursive: bool) -> dict[str, Path]:
    try:
        return {file.stem: file for file in find_slides(folder, recursive=recursive)}
    except SlideError:
        return {}


def _nuclei_files(folder: Path, wanted: set[str]) -> dict[str, Path]:
    known = {
        slide_id: file
        for slide_id in sorted(wanted)
        for file in (folder / f"{slide_id}.json", folder / f"{slide_id}.geojson")
        if file.exists()
    }
    if not known:
        raise ExplanationError(
            f"Expected files <slide>.json of the run's nuclei in {folder}, but found none. "
            "Name them after the slides."
        )
    _warn_missing(wanted - set(known), "nuclei", folder)
    return known


def _warn_missing(slides: set[str], what: str, folder: Path) -> None:
    if slides:
        warnings.warn(
            f"{len(slides)} slides have no {what} in {folder} and are shown without: "
            f"{listed(sorted(slides))}.",
            MissingMaterialWarning,
            stacklevel=4,
        )


def _mpp_of(slide: Slide) -> float | None:
    try:
        return slide_resolution(slide).mpp
    except SlideError:
        return None
