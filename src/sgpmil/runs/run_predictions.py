"""The predictions of a run, fold by fold, each of its own test slides."""

import re
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.splits import Fold
from sgpmil.errors import PredictionError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.comparison.comparability import FoldPredictions, check_own_test_slides
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.prediction_folder import is_prediction_folder, read_prediction_folder
from sgpmil.runs.run_folder import VALIDATION, RunFolder, read_run

_FOLD_TABLE = re.compile(r"(?:fold|split)[_-]?(\d+)\.(?:csv|parquet)")

__all__ = ["RunPredictions", "TestedFolds", "read_run_predictions", "read_tested_folds"]


@dataclass(frozen=True, slots=True, eq=False)
class RunPredictions:
    """The folds of a run that are done, to compare with those of others.

    Args:
        folds: Predictions of each of them.
        unfinished: Name of each other fold.
    """

    folds: tuple[FoldPredictions, ...]
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class TestedFolds:
    """The folds of a run that are done, with the scores of their instances.

    Args:
        folds: Predictions of each of them.
        unfinished: Name of each other fold.
    """

    __test__ = False  # pytest takes it for a test otherwise

    folds: tuple[TestedFold, ...]
    unfinished: tuple[str, ...] = ()


def read_run_predictions(path: Path | str) -> RunPredictions:
    """Read the predictions of a run, and check that each fold was judged on its own test slides.

    Args:
        path: A run; the predictions of one test set (a folder, a parquet or a CSV file), which
            are a fold named 0; or a folder of tables ``fold_<k>.csv`` as CLAM writes them. The
            training slides of these are not known.

    Raises:
        RunFolderError: The run is damaged.
        SplitError: Its splits are damaged.
        PredictionError: There are no predictions, they cannot be read, or they are not of the
            fold's own test slides.
    """
    place = Path(path)
    if not _is_run(place):
        tables = _fold_tables(place)
        if tables:
            return RunPredictions(
                tuple(FoldPredictions.of(p.stem, read_predictions(p)) for p in tables)
            )
        return RunPredictions((FoldPredictions.of("0", _read_table(place)),))
    run = read_run(place)
    # One after another: the scores of the instances of all folds may not fit in memory.
    folds = []
    for name, split in _done(run):
        table = run.read(name)
        folds.append(FoldPredictions.of(name, table, _spelt(name, split, table)))
    return RunPredictions(tuple(folds), _unfinished(run))


def read_tested_folds(
    path: Path | str,
    validation: Path | str | None = None,
    damaged: dict[str, str] | None = None,
) -> TestedFolds:
    """Read the predictions of a run for its test and validation slides, with instance scores.

    Args:
        path: A run, the folder of a fold, or predictions as of `read_run_predictions`.
        validation: Predictions of validation slides, for a path that is not a run.
        damaged: Takes the reason of each slide whose instance scores cannot be read; without it
            they are an error.

    Raises:
        RunFolderError: The run is damaged.
        SplitError: Its splits are damaged.
        PredictionError: There are no predictions, they cannot be read, or they are not of the
            fold's own test slides; or validation slides are given for a run, which has its own.
    """
    place = Path(path)
    if not _is_run(place):
        tables = _fold_tables(place)
        if tables and validation is None:
            return TestedFolds(tuple(TestedFold(p.stem, read_predictions(p)) for p in tables))
        own = place / VALIDATION
        if validation is None and is_prediction_folder(own):
            validation = own
        held_out = None if validation is None else _read_table(Path(validation), damaged)
        return TestedFolds((TestedFold("0", _read_table(place, damaged), held_out),))
    if validation is not None:
        raise PredictionError(
            f"Expected no --validation for the run {place}, whose folds have their own, but got "
            f"{validation}. Leave it out."
        )
    run = read_run(place)
    folds = []
    for name, split in _done(run):
        table = run.read(name, damaged)
        own_split = _spelt(name, split, table)
        if own_split is not None:
            check_own_test_slides(own_split, table)
        folds.append(TestedFold(name, table, run.read_validation(name, damaged)))
    return TestedFolds(tuple(folds), _unfinished(run))


def _is_run(place: Path) -> bool:
    return (place / "run.json").exists()


def _fold_tables(place: Path) -> list[Path]:
    """Find the tables of another system's folds."""
    if not place.is_dir() or is_prediction_folder(place):
        return []
    found = {
        int(match[1]): path
        for path in place.iterdir()
        if (match := _FOLD_TABLE.fullmatch(path.name.lower()))
    }
    return [found[number] for number in sorted(found)]


def _read_table(place: Path, damaged: dict[str, str] | None = None) -> PredictionTable:
    if place.is_file():
        return read_predictions(place)
    if not place.exists():
        raise PredictionError(
            f"Expected a run or predictions at '{place}', but there is nothing. Check the path."
        )
    if not is_prediction_folder(place):
        raise PredictionError(
            f"Expected a run or predictions in '{place}', but it has neither run.json nor "
            "predictions.parquet nor fold_0.csv. Name the folder of a run."
        )
    return read_prediction_folder(place, damaged)


def _done(run: RunFolder) -> list[tuple[str, Fold | None]]:
    has_splits = (run.path / "splits").is_dir()
    splits = run.read_folds() if has_splits else (None,) * len(run.folds)
    return [(n, split) for n, split in zip(run.folds, splits, strict=True) if run.is_done(n)]


def _unfinished(run: RunFolder) -> tuple[str, ...]:
    return tuple(name for name in run.folds if not run.is_done(name))


def _spelt(name: str, split: Fold | None, table: PredictionTable) -> Fold | None:
    """Spell the slides of a fold as its predictions do.

    Split files are read without the suffixes of slide files, which names may have.
    """
    if split is None:
        return None
    spelt = {clean_slide_id(slide): slide for slide in table.slide_ids}
    train, val, test = (
        tuple(spelt.get(slide, slide) for slide in slides)
        for slides in (split.train, split.val, split.test)
    )
    return Fold(name, train, val, test)
