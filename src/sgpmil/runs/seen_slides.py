"""Slides that a model on disk has seen: those of its run, or those written beside it."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from sgpmil.bags.files import read_json, write_text
from sgpmil.bags.seen_slides import SeenSlides
from sgpmil.bags.splits import Fold
from sgpmil.errors import SgpmilError
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run

SEEN = "seen.json"
"""File beside a model that is not in a run, with the slides that it has seen."""


def seen_by(model: Path, *, with_names: bool = True) -> SeenSlides:
    """Look up what the model at a path has seen; nothing where nobody tells.

    Args:
        model: A run, the folder of a fold or of `sgpmil.fit`, or a checkpoint in one.
        with_names: Whether slides of a run are known by their names too, and not by content alone.
    """
    model = model.resolve()  # a fold may be the current folder
    try:
        if is_run(model):
            run = Run.open(model)
            return _of_folds(run.splits.values(), run.slides, with_names)
        folder = model if model.is_dir() else model.parent
        if not is_run(folder.parent):
            return read_seen(folder / SEEN)
        run = Run.open(folder.parent)
        fold = run.splits.get(folder.name.removeprefix("fold-"))
        return _of_folds(() if fold is None else (fold,), run.slides, with_names)
    except SgpmilError:  # a damaged run says nothing; its checkpoint predicts all the same
        return SeenSlides()


def write_seen(file: Path, seen: SeenSlides) -> None:
    """Write the slides that a model has seen.

    Raises:
        OSError: The file cannot be written.
    """
    content = {
        "train": sorted(seen.train),
        "validation": sorted(seen.validation),
        "patients": sorted(seen.patients),
    }
    write_text(file, json.dumps(content, indent=0) + "\n")


def read_seen(file: Path) -> SeenSlides:
    """Read what `write_seen` wrote; nothing where it is missing or damaged."""
    try:
        content = read_json(file)
        parts = (content["train"], content["validation"], content.get("patients", []))
        if not all(isinstance(part, list) for part in parts):
            return SeenSlides()
        return SeenSlides(*(frozenset(key for key in p if isinstance(key, str)) for p in parts))
    except (OSError, ValueError, KeyError, TypeError):  # the model predicts all the same
        return SeenSlides()


def _of_folds(folds: Iterable[Fold], digests: Mapping[str, str], with_names: bool) -> SeenSlides:
    folds = tuple(folds)
    return SeenSlides.of_parts(
        [slide for fold in folds for slide in fold.train],
        [slide for fold in folds for slide in fold.val],
        digests,
        with_names=with_names,
    )
