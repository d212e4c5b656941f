"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "CaseColumn",
    "Classes",
    "Device",
    "Features",
    "LabelColumn",
    "Labels",
    "Overwrite",
    "Resume",
    "SharedCase",
    "SkipBad",
    "SkipMissing",
    "SlideColumn",
    "SlideTable",
    "class_tuple",
]

Features = Annotated[
    Path,
    typer.Argument(
        help="Folder of bag files (TRIDENT, CLAM, STAMP, slideflow, npy/npz; the format is "
        "detected), a packed store, or a .npz of many bags."
    ),
]
Labels = Annotated[
    Path | None,
    typer.Option(help="Table of labels (.csv, .tsv, .xlsx) with columns slide_id, label, case_id."),
]
Classes = Annotated[
    str | None,
    typer.Option(help="Order of the classes, such as normal,tumor; the last is the positive one."),
]
SlideColumn = Annotated[str | None, typer.Option(help="Column of slide names.")]
LabelColumn = Annotated[str | None, typer.Option(help="Column of labels.")]
CaseColumn = Annotated[str | None, typer.Option(help="Column of patients.")]
SlideTable = Annotated[
    Path | None, typer.Option(help="Table of the slides of each patient (STAMP).")
]
SharedCase = Annotated[
    str | None,
    typer.Option(help="A patient in two parts of a fold: error, or warn (published splits)."),
]
SkipMissing = Annotated[
    bool,
    typer.Option(
        "--skip-missing",
        help="Leave out slides without a label, labels without a slide, and unknown slides of the "
        "splits, rather than stop.",
    ),
]
SkipBad = Annotated[
    bool,
    typer.Option("--skip-bad", help="Leave out damaged and non-finite bags, rather than stop."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what exists.")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or gpu.")]


def class_tuple(classes: str | None) -> tuple[str, ...] | None:
    """Take a comma-separated list of classes apart."""
    return None if classes is None else tuple(name.strip() for name in classes.split(","))
