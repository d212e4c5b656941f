"""`sgpmil extract`."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sgpmil.cli.output import console, facts, grid
from sgpmil.errors import SettingsError

if TYPE_CHECKING:
    from sgpmil.slides.extraction import Extraction, SlideJob, SlideOutcome
    from sgpmil.slides.patches import ExtractionFolder

__all__ = ["extract"]

_SOME_MISSING = 1


def extract(
    slides: Annotated[
        Path | None,
        typer.Argument(help="Folder of slides (SVS, TIFF, NDPI, MRXS, OME-TIFF, PNG …), or one."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to, laid out as TRIDENT's.")] = Path(
        "extracted"
    ),
    mag: Annotated[
        float | None, typer.Option(help="Magnification of the patches; 20 unless --mpp is given.")
    ] = None,
    mpp: Annotated[
        float | None, typer.Option(help="Microns per pixel of the patches, instead of --mag.")
    ] = None,
    patch_size: Annotated[int, typer.Option(help="Side of a patch in pixels.")] = 256,
    overlap: Annotated[int, typer.Option(help="Overlap of neighbours in pixels.")] = 0,
    min_tissue: Annotated[
        float, typer.Option(help="Least share of tissue in a patch, 0 to 1.")
    ] = 0.25,
    encoder: Annotated[
        str,
        typer.Option(
            help="Patch encoder: a name (see --list-encoders), timm:NAME, hf:OWNER/REPO, a "
            "TorchScript or ONNX file, or package.module:Class. The default knows photographs "
            "alone: encoders trained on pathology are better."
        ),
    ] = "efficientnet-lite0",
    weights: Annotated[
        Path | None,
        typer.Option(help="Checkpoint of the encoder, for machines that reach no hub."),
    ] = None,
    slide_list: Annotated[
        Path | None,
        typer.Option(
            "--list",
            help="Table of slides (.csv): wsi and, where the files do not say it, mpp or mag.",
        ),
    ] = None,
    slide_mpp: Annotated[
        float | None, typer.Option(help="Microns per pixel of slides that do not say it.")
    ] = None,
    slide_mag: Annotated[
        float | None, typer.Option(help="Magnification of slides that do not say it.")
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Look for slides in subfolders too.")
    ] = False,
    encode: Annotated[
        bool,
        typer.Option(
            help="--no-encode stops before the encoder: contours, previews and coordinates are "
            "written, to look at and to edit in QuPath; the next run takes them."
        ),
    ] = True,
    resegment: Annotated[
        bool, typer.Option("--resegment", help="Find the tissue again; edited contours are lost.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, gpu or cuda:1.")] = "auto",
    precision: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(help="What the encoder computes in; its own by default."),
    ] = None,
    dtype: Annotated[
        Literal["float16", "float32"], typer.Option(help="Numbers on disk.")
    ] = "float16",
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Patches that are encoded at once; by default 64 on a GPU, and 8 on a CPU, "
            "whose caches more would only overflow."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that decode tiles; one a core by default.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Extract again what is there.")
    ] = False,
    show_encoders: Annotated[
        bool, typer.Option("--list-encoders", help="Print the encoders that go by a name.")
    ] = False,
) -> None:
    """Turn slides into patch embeddings: tissue, patches, encoder.

    Running it again goes on where it stopped. Several processes may share a folder.
    """
    if show_encoders:
        _print_encoders()
        return
    from sgpmil.slides.cores import available_cores
    from sgpmil.slides.extraction import (
        ExtractionSettings,
        extract_slides,
        extraction_progress,
        place_patches_of,
    )
    from sgpmil.slides.patches import ExtractionFolder, PatchSettings

    if slides is None:
        raise SettingsError("Expected a folder of slides. Name it, or see --help.")
    settings = ExtractionSettings(
        patches=PatchSettings(
            size=patch_size,
            overlap=overlap,
            magnification=(20.0 if mag is None and mpp is None else mag),
            mpp=mpp,
            min_tissue=min_tissue,
        ),
        batch_size=batch_size,
        num_workers=available_cores() if workers is None else workers,
        dtype=dtype,
        resegment=resegment,
        overwrite=overwrite,
    )
    folder = ExtractionFolder.of(out, settings.patches)
    jobs = _jobs(slides, slide_list, recursive, slide_mpp, slide_mag)
    with extraction_progress(len(jobs)) as bar:
        if not encode:
            _print_placed(place_patches_of(jobs, folder, settings, bar), folder)
            return
        from sgpmil.slides.encoders import load_encoder

        network = load_encoder(encoder, weights=weights, device=device, precision=precision)
        done = extract_slides(jobs, network, folder, settings, bar)
    _print_extraction(done, folder.features_folder(network.name))


def _jobs(
    slides: Path,
    slide_list: Path | None,
    recursive: bool,
    slide_mpp: float | None,
    slide_mag: float | None,
) -> "list[SlideJob]":
    from sgpmil.slides.extraction import slide_jobs

    return slide_jobs(
        slides, slide_list=slide_list, recursive=recursive, mpp=slide_mpp, magnification=slide_mag
    )


def _print_encoders() -> None:
    from sgpmil.slides.encoders import encoder_rows

    grid("Encoders", *encoder_rows())


def _print_placed(outcomes: "Sequence[SlideOutcome]", folder: "ExtractionFolder") -> None:
    _print_outcomes(outcomes, "patches placed")
    facts(
        "Written to",
        [
            ("contours", str(folder.contours_folder)),
            ("previews", str(folder.previews_folder)),
            ("coordinates", str(folder.coords_folder)),
        ],
    )
    _stop_if_failed(outcomes)


def _print_extraction(done: "Extraction", features: Path) -> None:
    _print_outcomes(done.outcomes)
    written = sum(o.num_patches for o in done.outcomes if o.status in ("done", "empty"))
    if written:
        console.print(
            f"{written:,} patches in {done.seconds:,.0f} s ({written / done.seconds:,.0f} a "
            f"second; the encoder was at work {done.encoding_seconds / done.seconds:.0%} of it)."
        )
    if any(outcome.status in ("done", "empty", "kept") for outcome in done.outcomes):
        console.print(f"Written to {features}.")
        console.print(f"Next: sgpmil inspect {shlex.quote(str(features))} --labels labels.csv")
    _stop_if_failed(done.outcomes)


_TOLD = {
    "done": "extracted",
    "empty": "without patches",
    "kept": "there already",
    "busy": "in work by another process",
    "failed": "failed",
}


def _print_outcomes(outcomes: "Sequence[SlideOutcome]", done: str = "extracted") -> None:
    told_as = {**_TOLD, "done": done}
    found = {status: [o.slide_id for o in outcomes if o.status == status] for status in _TOLD}
    rows = [("slides", str(len(outcomes)))]
    for status, told in told_as.items():
        if found[status]:
            names = "" if status in ("done", "kept") else f" ({_named(found[status])})"
            rows.append((told, f"{len(found[status])}{names}"))
    facts("Extraction", rows)


def _named(names: "Sequence[str]") -> str:
    return ", ".join(names[:5]) + (" …" if len(names) > 5 else "")


def _stop_if_failed(outcomes: "Sequence[SlideOutcome]") -> None:
    """Print the reasons once more, where they are read: at the end."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    for outcome in failed:
        console.print(f"{outcome.slide_id}: {outcome.reason}", style="red")
    if any(outcome.status == "busy" for outcome in outcomes):
        console.print("Not complete yet: another process is at work on some. Run this again later.")
        raise typer.Exit(_SOME_MISSING)
    if failed:
        raise typer.Exit(_SOME_MISSING)
