"""Options about what a run is explained with, which several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Embeddings", "Mpp", "NucleiPath", "SlidesPath"]

SlidesPath = Annotated[
    Path | None,
    typer.Option(
        "--slides", help="Folder of the slide files; without, maps are drawn on a canvas."
    ),
]
Embeddings = Annotated[
    Path | None,
    typer.Option(
        "--features",
        help="The embeddings, for prototypes; by default where the run found them.",
    ),
]
NucleiPath = Annotated[
    Path | None,
    typer.Option(
        "--nuclei", help="Folder of <slide>.json of HoVer-Net or CellViT: nuclei a prototype."
    ),
]
Mpp = Annotated[
    float | None,
    typer.Option("--mpp", help="Microns a level-0 pixel, for slides that do not say."),
]
