"""`sgpmil phantom`: synthetic slides of which everything is known."""

import re
from pathlib import Path
from typing import Annotated

import typer

from sgpmil.cli.options import Overwrite
from sgpmil.cli.output import console
from sgpmil.errors import SettingsError

__all__ = ["phantom"]


def phantom(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    num_slides: Annotated[int, typer.Option(help="Number of slides.")] = 20,
    tumour_share: Annotated[
        float, typer.Option(help="Share of the tissue that is tumour, on slides that have one.")
    ] = 0.05,
    positive_share: Annotated[
        float, typer.Option(help="Share of the slides that have a tumour.")
    ] = 0.5,
    size: Annotated[
        str, typer.Option(help="Width and height in pixels, such as 8000x6000.")
    ] = "6144x4608",
    mpp: Annotated[float, typer.Option(help="Microns a pixel: 0.25 for 40×, 0.5 for 20×.")] = 0.5,
    pen_share: Annotated[
        float, typer.Option(help="Probability that a slide has marks of a pen.")
    ] = 0.3,
    fold_share: Annotated[
        float, typer.Option(help="Probability that the tissue is folded somewhere.")
    ] = 0.5,
    quality: Annotated[int, typer.Option(help="JPEG quality.")] = 90,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    workers: Annotated[
        int | None, typer.Option(help="Number of processes; as many as cores by default.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write synthetic slides (H&E, pyramidal TIFF) with their tumours as GeoJSON.

    Run again, it completes what is missing.
    """
    from sgpmil.phantoms import PhantomSettings, write_phantoms

    written = write_phantoms(
        out,
        num_slides,
        PhantomSettings(
            size=_size(size),
            mpp=mpp,
            tumour_share=tumour_share,
            pen_share=pen_share,
            fold_share=fold_share,
            quality=quality,
        ),
        seed,
        positive_share=positive_share,
        workers=workers,
        overwrite=overwrite,
        show_progress=True,
    )
    num_positive = sum(slide.label == "tumour" for slide in written.slides)
    console.print(
        f"Synthetic slides, not patients': {len(written.slides)} in {out / 'slides'}, "
        f"{num_positive} with a tumour ({written.num_written} written now)."
    )
    console.print(f"Labels: {written.labels}")
    console.print(f"Tumours: {out / 'annotations'}; tissue: {out / 'tissue'}")


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"\s*(\d{1,9})\s*[x×X]\s*(\d{1,9})\s*", text)
    if found is None:
        raise SettingsError(
            f"Expected a size as WIDTHxHEIGHT in pixels, such as 8000x6000, but got '{text}'. "
            "Change --size."
        )
    return int(found[1]), int(found[2])
