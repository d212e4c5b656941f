"""`sgpmil explain`."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from sgpmil.cli.annotation_options import (
    AnnotationsPath,
    MaskDownsample,
    MinCoverage,
    Regions,
    annotation_folder,
)
from sgpmil.cli.material_options import Embeddings, Mpp, NucleiPath, SlidesPath
from sgpmil.cli.options import Overwrite
from sgpmil.cli.output import console, counting, facts
from sgpmil.errors import SettingsError

if TYPE_CHECKING:
    from rich.progress import Progress

    from sgpmil.explanation.explanation_folder import ExportKind
    from sgpmil.report.explanations.run_explanation import RunExplanation
    from sgpmil.runs.material import RunMaterial

__all__ = ["explain"]

_SOME_MISSING = 1


def explain(
    run: Annotated[
        Path, typer.Argument(help="A run, the folder of a fold, or of predictions (predict).")
    ],
    slides: SlidesPath = None,
    features: Embeddings = None,
    annotations: AnnotationsPath = None,
    regions: Regions = None,
    min_coverage: MinCoverage = 0.5,
    mask_downsample: MaskDownsample = None,
    nuclei: NucleiPath = None,
    mpp: Mpp = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Name of a slide to explain; may be repeated.")
    ] = None,
    fold: Annotated[
        list[str] | None, typer.Option(help="Name of a fold to explain; may be repeated.")
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(help="Most slides, the least certain first; all by default.", min=1),
    ] = None,
    scale: Annotated[
        Literal["absolute", "rank", "minmax"],
        typer.Option(
            help="Scale of the maps: absolute can be compared between slides; rank and minmax are "
            "relative to the slide."
        ),
    ] = "absolute",
    class_name: Annotated[
        str | None,
        typer.Option(
            "--class",
            help="Class that evidence is for; by default the second of two, and of more the one "
            "that is predicted.",
        ),
    ] = None,
    prototypes: Annotated[
        Literal["cosine", "centred", "kernel", "none"],
        typer.Option(
            help="How patches are compared with inducing points: cosine as published, centred, or "
            "by the model's own kernel."
        ),
    ] = "cosine",
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Another run, to compare maps with; may be repeated."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            help="Files for other programs: geojson (QuPath), csv, parquet, tiff, tiatoolbox; "
            "comma-separated or repeated."
        ),
    ] = None,
    geojson_origin: Annotated[
        tuple[int, int],
        typer.Option(
            metavar="X Y",
            help="Level-0 position that QuPath takes as the origin: of MIRAX, the slide's "
            "openslide.bounds-x and -y.",
        ),
    ] = (0, 0),
    model: Annotated[
        Path | None,
        typer.Option(help="Folder of the fold whose model made the predictions, for prototypes."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to; RUN/explanation by default.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Show what the model saw and how sure it is: maps, patches to look at, prototypes.

    Running it again goes on where it stopped.
    """
    from sgpmil.report.explanations.run_explanation import ExplanationSettings, explain_run
    from sgpmil.runs.material import read_material

    exports = _exports(export or [])
    drawn = annotation_folder(annotations, regions, mask_downsample)
    material = read_material(
        run,
        features=features,
        slides=slides,
        annotations=drawn,
        min_coverage=min_coverage,
        nuclei=nuclei,
        mpp=mpp,
    )
    if model is not None:
        material = _with_model(material, model)
    others = {path: read_material(path) for path in dict.fromkeys(beside or [])}
    settings = ExplanationSettings(
        scale=scale,
        class_name=class_name,
        prototypes=None if prototypes == "none" else prototypes,
        exports=exports,
        geojson_origin=geojson_origin,
        only=tuple(only or ()),
        folds=tuple(fold or ()),
        most=most,
    )
    inputs = {
        "slides": _place(slides),
        "features": _place(features),
        "annotations": _place(annotations),
        "regions": regions,
        "min_coverage": min_coverage,
        "mask_downsample": mask_downsample,
        "nuclei": _place(nuclei),
        "mpp": mpp,
        "model": _place(model),
    }
    if material.unfinished:
        total = len(material.folds) + len(material.unfinished)
        console.print(f"{len(material.unfinished)} of {total} folds are not done.")
    with counting("Explaining", None) as bar:
        done = explain_run(
            material,
            out or run / "explanation",
            settings,
            _BarProgress(bar),
            beside=_named(others),
            inputs=inputs,
            overwrite=overwrite,
        )
    _print(done, run)


class _BarProgress:
    """Counts slides on a bar."""

    def __init__(self, bar: "Progress") -> None:
        self._bar = bar

    def begin(self, text: str, num_slides: int) -> None:
        """Count anew."""
        self._bar.reset(self._bar.task_ids[0], total=num_slides, description=text)

    def advance(self) -> None:
        """Count a slide."""
        self._bar.advance(self._bar.task_ids[0])


def _exports(given: Sequence[str]) -> "tuple[ExportKind, ...]":
    from sgpmil.explanation.explanation_folder import ExportKind

    known = {str(kind): kind for kind in get_args(ExportKind)}
    names = [name.strip().lower() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise SettingsError(
                f"Expected --export of {', '.join(known)}, but got '{name}'. Choose among these."
            )
    return tuple(known[name] for name in dict.fromkeys(names))


def _with_model(material: "RunMaterial", model: Path) -> "RunMaterial":
    if len(material.folds) != 1 or material.folds[0].checkpoint is not None:
        raise SettingsError(
            "--model is for predictions that one model made, whose folder has no model: the run "
            f"{material.path} has its own. Leave it out."
        )
    return replace(material, folds=(replace(material.folds[0], checkpoint=model),))


def _named(others: "dict[Path, RunMaterial]") -> "dict[str, RunMaterial]":
    """Name runs after their models, with their folders where several have the same."""
    counts = Counter(material.model for material in others.values())
    names = {}
    for path, material in others.items():
        is_clear = material.model and counts[material.model] == 1
        place = path.resolve().name
        name = material.model if is_clear else f"{material.model} ({place})".strip()
        names[name if name not in names else str(path)] = material
    return names


def _place(path: Path | None) -> str | None:
    return None if path is None else str(path.resolve())


def _print(done: "RunExplanation", run: Path) -> None:
    counts = Counter(outcome.status for outcome in done.outcomes)
    rows = [("slides", str(len(done.outcomes)))]
    told = (
        ("explained", counts["done"]),
        ("there already", counts["kept"]),
        ("failed", counts["failed"]),
    )
    rows += [(text, str(count)) for text, count in told if count]
    folder = done.folder.path
    for part in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sum(1 for path in part.rglob("*") if path.is_file())
        rows.append((f"{part.name}/", f"{files} files"))
    rows.append(("slides.csv", "the least certain first"))
    facts(f"Explanation in {folder}", rows)
    for note in done.notes:
        console.print(note)
    failed = [outcome for outcome in done.outcomes if outcome.status == "failed"]
    for outcome in failed:
        console.print(f"{outcome.slide_id}: {outcome.reason}", style="red")
    console.print(f"Next: sgpmil report {shlex.quote(str(run))}")
    if failed:
        raise typer.Exit(_SOME_MISSING)
