"""`sgpmil extract` and `phantom`: commands on slides."""

import shlex
from collections.abc import Sequence
from typing import Annotated

import typer

from sgpmil.cli.commands import command
from sgpmil.cli.output import console, facts, grid, listed
from sgpmil.notebook import counted
from sgpmil.phantoms.folder import PhantomOptions, draw_phantoms
from sgpmil.slides.encoders import encoder_rows
from sgpmil.slides.extraction.extract import ExtractedFolder, ExtractOptions, extract_folder
from sgpmil.slides.extraction.jobs import SlideOutcome

_STATUS = {
    "done": "extracted",
    "empty": "without patches",
    "kept": "existing",
    "busy": "in work by another process",
    "failed": "failed",
}


def _print_encoders(is_asked: bool) -> bool:
    if is_asked:
        grid("Encoders", *encoder_rows())
        raise typer.Exit
    return is_asked


@command(ExtractOptions, arguments=["slides"], names={"slide_list": "list"})
def extract(
    options: ExtractOptions,
    show_encoders: Annotated[
        bool,
        typer.Option(
            "--list-encoders",
            is_eager=True,
            callback=_print_encoders,
            help="Print the names of the encoders and exit.",
        ),
    ] = False,
) -> None:
    """Turn slides into patch embeddings.

    The steps are: find the tissue, place patches on it, encode the patches. A stopped extraction
    resumes when the command runs again. Several processes may share a folder.

    Example: sgpmil extract slides --out extracted --encoder uni_v2
    """
    del show_encoders  # its callback prints them
    done = extract_folder(options, show_progress=True)
    _print_outcomes(done.outcomes, "extracted" if options.encode else "patches placed")
    if done.timing is None:
        _print_folders(done)
    else:
        _print_embeddings(done)
    _exit_if_incomplete(done)


def _print_folders(done: ExtractedFolder) -> None:
    facts(
        "Written to",
        [
            ("contours", str(done.folder.contours_folder)),
            ("previews", str(done.folder.previews_folder)),
            ("coordinates", str(done.folder.coords_folder)),
        ],
    )


def _print_embeddings(done: ExtractedFolder) -> None:
    timing = done.timing
    num_written = sum(o.num_patches for o in done.outcomes if o.status in ("done", "empty"))
    if timing is not None and num_written:
        console.print(
            f"{counted(num_written, 'patch', 'patches')} in {timing.seconds:,.0f} s "
            f"({num_written / timing.seconds:,.0f} a second; the encoder worked "
            f"{timing.encoding_seconds / timing.seconds:.0%} of the time)."
        )
    if any(outcome.status in ("done", "empty", "kept") for outcome in done.outcomes):
        console.print(f"Written to {done.features}.")
        console.print(f"Next: sgpmil inspect {shlex.quote(str(done.features))} --labels labels.csv")


def _print_outcomes(outcomes: Sequence[SlideOutcome], done: str) -> None:
    rows = [("slides", str(len(outcomes)))]
    for status, text in {**_STATUS, "done": done}.items():
        names = [outcome.slide_id for outcome in outcomes if outcome.status == status]
        if names:
            shown = "" if status in ("done", "kept") else f" ({listed(names)})"
            rows.append((text, f"{len(names)}{shown}"))
    facts("Extraction", rows)


def _exit_if_incomplete(done: ExtractedFolder) -> None:
    """Print the reasons of failures at the end, where a user reads them."""
    for outcome in done.failed:
        console.print(f"{outcome.slide_id}: {outcome.reason}", style="red")
    is_busy = any(outcome.status == "busy" for outcome in done.outcomes)
    if is_busy:
        console.print("Not complete: another process extracts some slides. Run this again later.")
    if done.skipped is not None:
        console.print(f"Skipped slides: {len(done.failed)}, listed in {done.skipped}.")
    elif done.failed:
        console.print(
            "Not complete: mend or remove these slides and run this again, or leave them out "
            "with --skip-bad."
        )
    are_all_bad = len(done.failed) == len(done.outcomes)
    if is_busy or (done.failed and (done.skipped is None or are_all_bad)):
        raise typer.Exit(1)


@command(PhantomOptions, arguments=["out"])
def phantom(options: PhantomOptions) -> None:
    """Write synthetic slides.

    The slides are pyramidal TIFF files in H&E colours; their tumours are GeoJSON files. Run the
    command again to complete a stopped folder.

    Example: sgpmil phantom phantoms --num-slides 40
    """
    written = draw_phantoms(options, show_progress=True)
    num_positive = sum(slide.label == "tumour" for slide in written.slides)
    out = options.out
    console.print(
        f"{len(written.slides)} synthetic slides (not of patients) in {out / 'slides'}, "
        f"{num_positive} with a tumour ({written.num_written} written now)."
    )
    console.print(f"Labels: {written.labels}")
    console.print(f"Tumours: {out / 'annotations'}; tissue: {out / 'tissue'}")
