"""Addresses of the viewer: the page, answers as JSON, tiles by the convention of Deep Zoom."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Literal

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from starlette.concurrency import run_in_threadpool

from sgpmil.errors import SgpmilError
from sgpmil.explanation.map_layers import LayerKind
from sgpmil.viewer import answers
from sgpmil.viewer.cohort import Case, SortKey, WorklistQuery
from sgpmil.viewer.map_tiles import map_pyramid
from sgpmil.viewer.reviews import (
    MOST_NAME,
    MOST_NOTE,
    MOST_POINTS,
    MOST_REGIONS,
    OtherVersionError,
    ReviewError,
    Verdict,
    reviews_csv,
    reviews_geojson,
)
from sgpmil.viewer.scored_slide import ScoredSlide
from sgpmil.viewer.viewing import PROTOTYPE_LAYER, Viewing

STATIC = Path(__file__).parent / "static"
OPENSEADRAGON = STATIC / "vendor" / "openseadragon.min.js"

_MOST_ROWS = 500
_LARGEST = 2**31 - 1
_THREADS = 16
"""Requests that are answered at the same time; others wait."""

Number = Annotated[int, InPath(ge=0, le=_LARGEST, description="Number of a slide.")]
Class = Annotated[int | None, Query(alias="class", ge=0, le=_LARGEST)]
Place = Annotated[int, InPath(ge=0, le=_LARGEST)]
LayerName = LayerKind | Literal["prototype"]
_FRESH = {"cache-control": "no-store"}
"""Pictures are not kept by browsers either: another run at the same address has other slides under
the same numbers, and pictures of patients do not stay on a disk."""


class ReviewBody(BaseModel):
    """A verdict as the page sends it."""

    model_config = ConfigDict(extra="forbid")

    reviewer: str = Field(min_length=1, max_length=MOST_NAME, pattern=r"\S")
    version: int = Field(ge=0, le=_LARGEST, description="Version last seen; 0 for none.")
    verdict: Verdict
    note: str = Field("", max_length=MOST_NOTE)
    regions: list[
        Annotated[
            list[tuple[FiniteFloat, FiniteFloat]], Field(min_length=3, max_length=MOST_POINTS)
        ]
    ] = Field(default_factory=list, max_length=MOST_REGIONS)


def create_app(viewing: Viewing, *, read_only: bool = False) -> FastAPI:
    """Make the application of a viewer, without the checks of `Guard`.

    Args:
        viewing: Everything that it shows.
        read_only: Whether nothing may be changed.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        from anyio.to_thread import current_default_thread_limiter

        current_default_thread_limiter().total_tokens = _THREADS
        yield
        viewing.close()

    # The pages of the API itself would load scripts from elsewhere.
    app = FastAPI(title="sgpmil viewer", docs_url=None, redoc_url=None, lifespan=lifespan)
    _add_errors(app)
    _add_page(app, viewing, read_only=read_only)
    _add_slides(app, viewing)
    _add_tiles(app, viewing)
    _add_reviews(app, viewing)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestValidationError)
    async def misunderstood(_: Request, error: RequestValidationError) -> Response:
        # What was sent stays out of the answer: JSON and UTF-8 cannot hold all of it.
        found = [{name: one[name] for name in ("loc", "msg", "type")} for one in error.errors()]
        text = json.dumps({"detail": found})
        return Response(text, 422, _FRESH, media_type="application/json")

    @app.exception_handler(OtherVersionError)
    async def other_version(_: Request, error: OtherVersionError) -> JSONResponse:
        current = None if error.current is None else error.current.as_json()
        return JSONResponse({"detail": str(error), "current": current}, 409, _FRESH)

    @app.exception_handler(ReviewError)
    async def unsaved(_: Request, error: ReviewError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503, _FRESH)

    @app.exception_handler(SgpmilError)
    async def sentence(_: Request, error: SgpmilError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 404, _FRESH)


def _add_page(app: FastAPI, viewing: Viewing, *, read_only: bool) -> None:
    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return FileResponse(STATIC / "icon.svg", media_type="image/svg+xml")

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.get("/api/run")
    def run() -> JSONResponse:
        """Describe the run."""
        found = answers.run_answer(
            viewing, read_only=read_only, has_openseadragon=OPENSEADRAGON.exists()
        )
        return JSONResponse(found, headers=_FRESH)

    @app.get("/api/worklist")
    def worklist(
        sort: SortKey = "uncertainty",
        descending: bool = False,
        search: Annotated[str, Query(max_length=200)] = "",
        wrong: bool = False,
        unsure: bool = False,
        novel: bool = False,
        label: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None,
        predicted: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None,
        set_size: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None,
        reviewed: bool | None = None,
        offset: Annotated[int, Query(ge=0, le=_LARGEST)] = 0,
        limit: Annotated[int, Query(ge=1, le=_MOST_ROWS)] = 100,
    ) -> JSONResponse:
        """List slides of the run, a part at a time."""
        query = WorklistQuery(
            *(sort, descending, search, wrong, unsure, novel, label, predicted, set_size, reviewed)
        )
        verdicts = viewing.reviews.verdicts()
        found = viewing.cohort.worklist(query, frozenset(verdicts))
        part = found[offset : offset + limit]
        rows = [answers.row_answer(case, verdicts.get(case.name, ())) for case in part]
        return JSONResponse({"num_slides": len(found), "rows": rows}, headers=_FRESH)

    @app.get("/api/compare")
    def compare(other: Annotated[int, Query(ge=0, le=_LARGEST)]) -> JSONResponse:
        """List the five slides on which two runs, or two folds of this run, differ most."""
        runs = viewing.cohort.runs
        if other >= len(runs):
            raise HTTPException(404, "There is no such run.")
        chosen = runs[other] if other else None
        return JSONResponse(answers.differences_answer(viewing.cohort, chosen), headers=_FRESH)


def _add_slides(app: FastAPI, viewing: Viewing) -> None:
    @app.get("/api/named")
    def named(name: Annotated[str, Query(max_length=1000)]) -> JSONResponse:
        """Find the number of a slide by its name."""
        case = viewing.cohort.named(name)
        if case is None:
            raise HTTPException(404, "The run has no slide of this name.")
        return JSONResponse({"number": case.number}, headers=_FRESH)

    @app.get("/api/slides/{slide}")
    def slide(slide: Number, class_index: Class = None) -> JSONResponse:
        """Describe a slide: prediction, confidence, layers, annotations."""
        case = _case(viewing, slide)
        found = answers.slide_answer(viewing, case, _class(case, class_index))
        return JSONResponse(found, headers=_FRESH)

    @app.get("/api/slides/{slide}/selection")
    def selection(
        slide: Number,
        layer: LayerName,
        least: Annotated[FiniteFloat, Query()],
        class_index: Class = None,
    ) -> JSONResponse:
        """Count the patches that reach a threshold, and their area."""
        case = _case(viewing, slide)
        scored = _scored(viewing, case)
        values = scored.layer(layer, _class(case, class_index)).values
        found = scored.select(values, least)
        mpp = viewing.frame(case).mpp if scored.is_placed else None
        area = None if mpp is None else found.pixels * mpp**2 / 1e6
        answer = {
            "patches": found.num_patches,
            "known": found.num_known,
            "area_mm2": area,
            "is_exact": found.is_exact,
        }
        return JSONResponse(answer, headers=_FRESH)

    @app.get("/api/slides/{slide}/patch")
    def patch(
        slide: Number,
        x: Annotated[FiniteFloat | None, Query(ge=-1e9, le=1e9)] = None,
        y: Annotated[FiniteFloat | None, Query(ge=-1e9, le=1e9)] = None,
        patch: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None,
        class_index: Class = None,
    ) -> JSONResponse:
        """Describe the patch at a point, or of a number; null where the point has none."""
        case = _case(viewing, slide)
        scored = _scored(viewing, case)
        if patch is None and x is not None and y is not None:
            patch = scored.patch_at(x, y)
            if patch is None:
                return JSONResponse(None, headers=_FRESH)
        if patch is None or patch >= scored.num_patches:
            raise HTTPException(404, "There is no patch here.")
        found = answers.patch_answer(viewing, case, scored, patch, _class(case, class_index))
        return JSONResponse(found, headers=_FRESH)

    @app.get("/api/slides/{slide}/similar")
    def similar(slide: Number, patch: Annotated[int, Query(ge=0, le=_LARGEST)]) -> JSONResponse:
        """Find the patches that resemble one most, in this slide and in others."""
        found = answers.similar_answer(viewing, _case(viewing, slide), patch)
        return JSONResponse(found, headers=_FRESH)

    @app.get("/api/slides/{slide}/prototypes")
    def prototypes(slide: Number) -> JSONResponse:
        """List the prototypes of the slide's fold."""
        found = answers.prototypes_answer(viewing, _case(viewing, slide))
        return JSONResponse(found, headers=_FRESH)


def _add_tiles(app: FastAPI, viewing: Viewing) -> None:
    async def picture(
        make: Callable[[], bytes | None], kind: str, *, may_lack: bool = False
    ) -> Response:
        content = await run_in_threadpool(make)
        if content is None and may_lack:
            return Response(status_code=204, headers=_FRESH)
        if content is None:
            raise HTTPException(404, "There is no such picture.")
        return Response(content, media_type=f"image/{kind}", headers=_FRESH)

    @app.get("/thumbnails/{slide}.jpg")
    async def thumbnail(slide: Number) -> Response:
        """Return a small picture of a slide; nothing where it has neither image nor scores."""
        case = _case(viewing, slide)
        return await picture(lambda: viewing.thumbnail(case), "jpeg", may_lack=True)

    @app.get("/patches/{slide}/{patch}.jpg")
    async def patch_picture(slide: Number, patch: Place) -> Response:
        """Return the picture of a patch."""
        case = _case(viewing, slide)
        return await picture(lambda: viewing.patch_picture(case, patch), "jpeg")

    @app.get("/origins/{slide}/{prototype}.jpg")
    async def origin_picture(slide: Number, prototype: Place) -> Response:
        """Return the picture of the training patch that a prototype is."""
        case = _case(viewing, slide)

        def make() -> bytes | None:
            found = viewing.prototypes(case).found
            one = next((p for p in found.used if p.index == prototype), None) if found else None
            origin = None if one is None else one.origin
            if origin is None or origin.corner is None or origin.side is None:
                return None
            return viewing.place_picture(origin.slide_id, origin.corner, origin.side)

        return await picture(make, "jpeg")

    @app.get("/slides/{slide}.dzi")
    def base(slide: Number) -> Response:
        """Describe the tiles of a slide, or of the canvas with its patches."""
        text = viewing.base_pyramid(_case(viewing, slide)).description("jpg")
        return Response(text, media_type="application/xml", headers=_FRESH)

    @app.get("/slides/{slide}_files/{level}/{column}_{row}.jpg")
    async def base_tile(slide: Number, level: Place, column: Place, row: Place) -> Response:
        """Return a tile of a slide, or of the canvas with its patches."""
        case = _case(viewing, slide)
        return await picture(lambda: viewing.base_tile(case, level, column, row), "jpeg")

    @app.get("/maps/{slide}/{layer}/{class_index}.dzi")
    def map_description(slide: Number, layer: LayerName, class_index: Place) -> Response:
        """Describe the tiles of a map."""
        case = _case(viewing, slide)
        if layer != PROTOTYPE_LAYER:
            _scored(viewing, case).layer(layer, _class(case, class_index))
        frame = viewing.frame(case)
        text = map_pyramid((frame.width, frame.height)).description("png")
        return Response(text, media_type="application/xml", headers=_FRESH)

    @app.get("/maps/{slide}/{layer}/{class_index}_files/{level}/{column}_{row}.png")
    async def map_tile(
        slide: Number,
        layer: LayerName,
        class_index: Place,
        level: Place,
        column: Place,
        row: Place,
        least: Annotated[FiniteFloat | None, Query()] = None,
    ) -> Response:
        """Return a tile of a map; patches below the threshold are left out."""
        case = _case(viewing, slide)
        chosen = _class(case, class_index)
        place = level, column, row
        return await picture(lambda: viewing.map_tile(case, layer, chosen, least, *place), "png")


def _add_reviews(app: FastAPI, viewing: Viewing) -> None:
    def labels() -> dict[str, str]:
        run = viewing.cohort.run
        known = ((case.name, case.prediction.label) for case in run.cases)
        return {name: run.class_names[label] for name, label in known if label is not None}

    def download(text: str, name: str, kind: str) -> Response:
        headers = {**_FRESH, "content-disposition": f'attachment; filename="{name}"'}
        return Response(text, media_type=kind, headers=headers)

    @app.get("/api/slides/{slide}/reviews")
    def reviews(slide: Number) -> JSONResponse:
        """List the verdicts of all people on a slide."""
        found = viewing.reviews.of(_case(viewing, slide).name)
        return JSONResponse([one.as_json() for one in found], headers=_FRESH)

    @app.put("/api/slides/{slide}/reviews", responses={409: {"description": "Changed since."}})
    def save(slide: Number, body: ReviewBody) -> JSONResponse:
        """Save a verdict; one that was changed since it was read is not overwritten."""
        case = _case(viewing, slide)
        if case.run is not viewing.cohort.run:
            raise HTTPException(404, "Verdicts are on slides of the run itself.")
        prediction = case.prediction
        predicted = prediction.predicted_class
        saved = viewing.reviews.save(
            case.name,
            body.reviewer.strip(),
            body.version,
            body.verdict,
            body.note,
            [tuple(ring) for ring in body.regions],
            predicted=case.run.class_names[predicted],
            probability=float(prediction.probs[predicted]),
        )
        return JSONResponse(saved.as_json(), headers=_FRESH)

    @app.get("/api/reviews.csv")
    def as_csv(history: bool = False) -> Response:
        """Export the verdicts as a table, with those that were replaced where `history` is set."""
        found = viewing.reviews.history() if history else viewing.reviews.all()
        return download(reviews_csv(found, labels()), "verdicts.csv", "text/csv")

    @app.get("/api/reviews.geojson")
    def as_geojson(
        slide: Annotated[int | None, Query(ge=0, le=_LARGEST)] = None, history: bool = False
    ) -> Response:
        """Export the drawn regions of all slides, or of one, for QuPath.

        Those of verdicts that were replaced come too where `history` is set.
        """
        name = None if slide is None else _case(viewing, slide).name
        if history:
            found = viewing.reviews.history(name)
        else:
            found = viewing.reviews.all() if name is None else viewing.reviews.of(name)
        return download(reviews_geojson(found), "regions.geojson", "application/geo+json")

    @app.get("/api/agreement")
    def agreement() -> JSONResponse:
        """Summarise how far people agree with the model."""
        found = answers.agreement_answer(viewing.cohort, viewing.reviews.all())
        return JSONResponse(found, headers=_FRESH)


def _case(viewing: Viewing, number: int) -> Case:
    case = viewing.cohort.case(number)
    if case is None:
        raise HTTPException(404, "There is no slide of this number.")
    return case


def _class(case: Case, class_index: int | None) -> int:
    if class_index is None:
        return case.class_index
    if class_index >= len(case.run.class_names):
        raise HTTPException(404, "There is no class of this number.")
    return class_index


def _scored(viewing: Viewing, case: Case) -> ScoredSlide:
    scored = viewing.scored(case)
    if scored is None:
        raise HTTPException(404, "There are no scores of this slide's patches.")
    return scored
