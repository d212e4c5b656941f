"""Tiles, thumbnails, pictures and scores of a cohort, cached for the viewer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sgpmil.errors import (
    AnnotationError,
    ExplanationError,
    PredictionError,
    SgpmilError,
    SlideError,
)
from sgpmil.explanation.colour_scales import COLOUR_SCALES, colour_range
from sgpmil.explanation.map_layers import MapLayer
from sgpmil.explanation.maps import score_map
from sgpmil.explanation.prototypes import SlidePrototypes
from sgpmil.runs.slide_picture import outlines_of
from sgpmil.shapes import UInt8
from sgpmil.viewer.bounded_cache import BoundedCache
from sgpmil.viewer.cohort import Case, Cohort
from sgpmil.viewer.map_tiles import (
    canvas_tile,
    coloured_png,
    label_png,
    label_tile,
    map_pyramid,
    score_tile,
)
from sgpmil.viewer.pyramid import Pyramid
from sgpmil.viewer.reviews import Reviews
from sgpmil.viewer.run_knowledge import FoldPrototypes, RunKnowledge
from sgpmil.viewer.safe_paths import is_inside
from sgpmil.viewer.scored_slide import ScoredSlide
from sgpmil.viewer.similar_patches import PatchSearch, SimilarPatches
from sgpmil.viewer.slide_tiles import SLIDE_OVERLAP, SLIDE_TILE, OpenSlides, jpeg

TILE_BYTES, SCORE_BYTES = 2**28, 2**28
"""Most memory of encoded tiles, and of the scores of slides: 256 MiB each."""
THUMBNAIL, PICTURE = 160, 224
"""Longer side of a thumbnail, and side of a patch's picture, in pixels."""
PROTOTYPE_LAYER = "prototype"

_ENTRY_BYTES = 1024
"""Memory of a cached tile besides its content: its key and its place in the cache."""
_BROKEN, _STRIPE = (214, 208, 208), (180, 170, 170)


@dataclass(frozen=True, slots=True)
class CaseFrame:
    """The plane that a case is shown on, in level-0 pixels.

    Args:
        width: Width.
        height: Height.
        mpp: Microns per pixel; None where unknown.
        has_image: Whether there is an image of the slide.
        problem: Reason why there is none, where there should be.
    """

    width: int
    height: int
    mpp: float | None
    has_image: bool
    problem: str = ""


class _NothingError(Exception):
    """There is no such picture, or no scores."""


class Viewing:
    """Everything that is shown of a cohort. It is used by many threads at once.

    Args:
        cohort: The slides.
        reviews: Verdicts on them.
        slide_folder: Folder that slide files must lie in; None allows any place.
        follow_links: Whether links of annotations and slides may lead elsewhere.
        tile_bytes: Most memory of encoded tiles.
    """

    def __init__(
        self,
        cohort: Cohort,
        reviews: Reviews,
        *,
        slide_folder: Path | None = None,
        follow_links: bool = False,
        tile_bytes: int = TILE_BYTES,
    ) -> None:
        self.cohort = cohort
        self.reviews = reviews
        self.follow_links = follow_links
        self.slides = OpenSlides(cohort.run.material.sources, slide_folder)
        self.knowledge = tuple(RunKnowledge(run) for run in cohort.runs)
        self.tiles: BoundedCache[tuple[object, ...], bytes] = BoundedCache(
            tile_bytes, lambda tile: len(tile) + _ENTRY_BYTES
        )
        self._scored: BoundedCache[int, ScoredSlide] = BoundedCache(
            SCORE_BYTES, lambda slide: slide.num_bytes
        )
        self._canvases: dict[int, tuple[int, ...]] = {}
        self._search: PatchSearch | None = None

    def close(self) -> None:
        """Close files and end work in the background."""
        self.slides.close()
        for one in self.knowledge:
            one.close()

    def scored(self, case: Case) -> ScoredSlide | None:
        """Return the scores of a case's patches; None where there are none.

        Raises:
            PredictionError: They cannot be read.
        """

        def read() -> ScoredSlide:
            scores = case.run.scores(case)
            if scores is None:
                raise _NothingError
            return ScoredSlide(scores, case.run.class_names)

        try:
            return self._scored.get_or_make(case.number, read)
        except _NothingError:
            return None

    def frame(self, case: Case) -> CaseFrame:
        """Return the plane that a case is shown on: the slide's, or one that holds its patches."""
        problem = ""
        try:
            image = self.slides.frame(case.slide_id)
            if image is not None:
                return CaseFrame(image.width, image.height, image.mpp, True)
        except SlideError as error:
            problem = str(error)
        mpp = self.cohort.run.material.sources.mpp
        try:
            scored = self.scored(case)
        except PredictionError as error:
            scored, problem = None, problem or str(error)
        width, height = self._canvas_size(case, scored)
        is_placed = scored is not None and scored.is_placed
        return CaseFrame(width, height, mpp if is_placed else None, False, problem)

    def _canvas_size(self, case: Case, scored: ScoredSlide | None) -> tuple[int, int]:
        """Return a size that holds the patches of a slide in every run: maps side by side fit."""
        found = self._canvases.get(case.number)
        if found is None:
            others = map(self._scored_or_none, self.cohort.counterparts(case))
            sizes = [one.size for one in (scored, *others) if one is not None]
            found = tuple(max(sides) for sides in zip(*sizes, strict=True)) if sizes else (1, 1)
            self._canvases[case.number] = found
        width, height = found
        return width, height

    def base_pyramid(self, case: Case) -> Pyramid:
        """Return the tiles of a case's image, or of its canvas."""
        frame = self.frame(case)
        return Pyramid(frame.width, frame.height, SLIDE_TILE, SLIDE_OVERLAP)

    def base_tile(self, case: Case, level: int, column: int, row: int) -> bytes | None:
        """Return a tile of the slide, or of a canvas with its patches, as JPEG.

        A part of the slide that cannot be read is a striped tile.
        """
        frame = self.frame(case)
        key = ("base", case.slide_id if frame.has_image else case.number, level, column, row)

        def make() -> bytes | None:
            pyramid = self.base_pyramid(case)
            if frame.has_image:
                try:
                    pixels = self.slides.tile(case.slide_id, level, column, row)
                except SlideError:
                    box = pyramid.box(level, column, row)
                    pixels = None if box is None else _broken(box[2], box[3])
            else:
                scored = self._scored_or_none(case)
                if scored is None:
                    return None
                pixels = canvas_tile(scored, pyramid, level, column, row)
            return None if pixels is None else jpeg(pixels)

        return self._cached(key, make)

    def map_tile(
        self,
        case: Case,
        kind: str,
        class_index: int,
        least: float | None,
        level: int,
        column: int,
        row: int,
    ) -> bytes | None:
        """Return a tile of a map as PNG; None where there is no such tile.

        Args:
            case: The case.
            kind: Kind of layer, or `PROTOTYPE_LAYER`.
            class_index: Class that the layer is for.
            least: Patches with a smaller score are left out.
            level: Level of the pyramid.
            column: Column of the tile.
            row: Row of the tile.

        Raises:
            SgpmilError: There is no such layer.
        """
        key = ("map", case.number, kind, class_index, least, level, column, row)

        def make() -> bytes | None:
            scored = self._require_scored(case)
            frame = self.frame(case)
            pyramid = map_pyramid((frame.width, frame.height))
            place = level, column, row
            if kind == PROTOTYPE_LAYER:
                own, colours = self.slide_prototypes(case)
                labels = label_tile(scored, own.assigned, own.similarity, pyramid, *place)
                return None if labels is None else label_png(labels, colours)
            layer = scored.layer(kind, class_index)
            values = layer.values
            if least is not None:
                values = np.where(scored.reaches(values, least), values, np.nan)
            drawn = score_tile(scored, values, pyramid, *place)
            if drawn is None:
                return None
            scale, ends = COLOUR_SCALES[layer.kind], self.ends(case, layer)
            # A choice of patches is seen whatever their scores.
            fades = least is None
            return coloured_png(drawn, scale, ends, is_signed=layer.is_signed, fades=fades)

        return self._cached(key, make)

    def ends(self, case: Case, layer: MapLayer) -> tuple[float, float]:
        """Return the scores at the ends of a layer's colours, which all slides share."""
        limits = self.knowledge[case.run.number].limits().limits
        return colour_range(layer.kind, limits, is_signed=layer.is_signed)

    def thumbnail(self, case: Case) -> bytes | None:
        """Return a small picture of a case as JPEG: the slide, or its attention on a canvas."""

        def make() -> bytes | None:
            try:
                if self.slides.has(case.slide_id):
                    return jpeg(self.slides.thumbnail(case.slide_id, THUMBNAIL))
            except SlideError:
                pass
            scored = self._scored_or_none(case)
            return None if scored is None else jpeg(self._map_thumbnail(case, scored))

        return self._cached(("thumbnail", case.number), make)

    def _map_thumbnail(self, case: Case, scored: ScoredSlide) -> UInt8[np.ndarray, "h w 3"]:
        left, top, right, bottom = scored.bounds
        layer = scored.layer("attention", case.class_index)
        cell = max(right - left, bottom - top) / THUMBNAIL
        known = np.isfinite(layer.values)
        drawn = score_map(scored.coords[known], scored.side, layer.values[known], downsample=cell)
        low, high = self.ends(case, layer)
        share = np.clip((drawn.values - low) / (high - low), 0, 1)
        table = COLOUR_SCALES[layer.kind].table(256)
        pixels = np.full((*share.shape, 3), 236, dtype=np.uint8)
        known = np.isfinite(share)
        pixels[known] = table[np.rint(share[known] * 255).astype(int)]
        return pixels

    def patch_picture(self, case: Case, patch: int) -> bytes | None:
        """Return the picture of a patch as JPEG; None where there is no image or no such patch.

        A part of the slide that cannot be read has stripes.
        """

        def make() -> bytes | None:
            scored = self._scored_or_none(case)
            if scored is None or not scored.is_placed or not 0 <= patch < scored.num_patches:
                return None
            x, y = scored.coords[patch].tolist()
            return self._picture(case.slide_id, (x, y), scored.side)

        return self._cached(("patch", case.slide_id, case.number, patch), make)

    def place_picture(self, slide_id: str, corner: tuple[int, int], side: int) -> bytes | None:
        """Return the picture of a place of any slide; None where there is no image."""
        key = ("place", slide_id, corner, side)
        return self._cached(key, lambda: self._picture(slide_id, corner, side))

    def _picture(self, slide_id: str, corner: tuple[int, int], side: int) -> bytes | None:
        if not self.slides.has(slide_id):
            return None
        try:
            return jpeg(self.slides.picture(slide_id, corner, side, PICTURE))
        except SlideError:
            return jpeg(_broken(PICTURE, PICTURE))

    def outlines(self, case: Case) -> tuple[list[list[list[float]]], str, str]:
        """Return the annotated regions of a slide, their name, and a reason where they fail."""
        annotations = self.cohort.run.material.sources.annotations
        if annotations is None or case.slide_id not in annotations:
            return [], "", ""
        file = annotations.files[case.slide_id]
        if not self.follow_links and not is_inside(file, annotations.folder):
            return [], "", "The annotations are a link to another place (see --follow-links)."
        label = case.prediction.label
        try:
            name = "" if label is None else case.run.class_names[label]
            rings, what = outlines_of(annotations.read(case.slide_id, name))
        except AnnotationError as error:
            return [], "", str(error)
        return [np.round(ring, 1).tolist() for ring in rings], what, ""

    def prototypes(self, case: Case) -> FoldPrototypes:
        """Return the prototypes of a case's fold, or the reason why there are none yet."""
        return self.knowledge[case.run.number].prototypes(case.fold)

    def slide_prototypes(self, case: Case) -> tuple[SlidePrototypes, dict[int, str]]:
        """Return the prototypes of a case's patches, and the colour of each on this slide.

        Raises:
            ExplanationError: There are none, or not yet.
        """
        fold = self.prototypes(case)
        own = None if fold.found is None else fold.found.slides.get(case.slide_id)
        scored = self._require_scored(case)
        if fold.found is None or own is None or own.num_instances != scored.num_patches:
            raise ExplanationError(fold.reason or "There are no prototypes of this slide.")
        return own, fold.found.colours_on(case.slide_id)

    def similar(self, case: Case, patch: int) -> SimilarPatches:
        """Find the patches that resemble one most.

        Raises:
            SgpmilError: There are no embeddings.
        """
        bags, reason = self.knowledge[0].bags()
        if bags is None:
            raise ExplanationError(f"Similar patches need the embeddings. {reason}")
        scored = self.scored(case)
        if scored is not None and case.slide_id in bags.slide_ids:
            num = bags.num_instances[bags.index(case.slide_id)]
            if num != scored.num_patches:
                raise ExplanationError(
                    f"Expected embeddings of the {scored.num_patches} patches of "
                    f"'{case.slide_id}', but there are {num}. Name the run's own with --features."
                )
        if self._search is None:
            self._search = PatchSearch(bags)
        return self._search.search(case.slide_id, patch)

    def _require_scored(self, case: Case) -> ScoredSlide:
        scored = self.scored(case)
        if scored is None:
            raise ExplanationError(f"There are no scores of the patches of '{case.slide_id}'.")
        return scored

    def _scored_or_none(self, case: Case) -> ScoredSlide | None:
        try:
            return self.scored(case)
        except SgpmilError:
            return None

    def _cached(self, key: tuple[object, ...], make: Callable[[], bytes | None]) -> bytes | None:
        """Return an encoded picture; that there is none is not kept."""

        def made() -> bytes:
            found = make()
            if found is None:
                raise _NothingError
            return found

        try:
            return self.tiles.get_or_make(key, made)
        except _NothingError:
            return None


def _broken(width: int, height: int) -> UInt8[np.ndarray, "h w 3"]:
    """Draw a striped tile."""
    place = np.add.outer(np.arange(height), np.arange(width)) // 12 % 2
    return np.array([_BROKEN, _STRIPE], dtype=np.uint8)[place]
