"""The results at a path: a run, one of its folds, or predictions of any other system."""

import re
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import PredictionError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.comparison.comparability import FoldPredictions
from sgpmil.runs.description import is_run
from sgpmil.runs.prediction_folder import is_prediction_folder
from sgpmil.runs.run import Run, RunFold

_FOLD_TABLE = re.compile(r"(?:fold|split)[_-]?(\d+)\.(?:csv|parquet)")


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """Predicted folds of a run or of another system.

    Args:
        path: Their place.
        folds: The folds that are done; nothing of them is in memory.
        unfinished: Name of each other fold.
        run: The run they belong to; None for those of other systems.
    """

    path: Path
    folds: tuple[RunFold, ...]
    unfinished: tuple[str, ...] = ()
    run: Run | None = None

    def load(
        self, damaged: dict[str, str] | None = None, *, with_instances: bool = True
    ) -> tuple[TestedFold, ...]:
        """Read all folds into memory, with validation slides and the scores of the instances.

        Args:
            damaged: Takes the reason of each slide whose instance scores cannot be read.
            with_instances: Whether to read the scores of the instances, too.

        Raises:
            PredictionError: A file is damaged, or the predictions of a fold are not of its own
                test slides.
            SplitError: The splits of the run are damaged.
        """
        return tuple(
            fold.load(damaged=damaged, with_instances=with_instances) for fold in self.folds
        )

    def evaluate(self) -> tuple[FoldPredictions, ...]:
        """Evaluate all folds one after another, to compare them with those of other runs.

        The scores of the instances are measured and released: those of several runs may not fit in
        memory.

        Raises:
            PredictionError: As of `load`; or no slide of a fold has a label.
            SplitError: The splits of the run are damaged.
        """
        found = []
        for fold in self.folds:
            tested = fold.load(with_validation=False)
            # The folder of a fold is one test set, and paired with any other, such as a file.
            name = "0" if self.run is not None and fold.run is None else fold.name
            found.append(FoldPredictions.of(name, tested.test, tested.split))
        return tuple(found)


def open_results(
    path: Path | str, validation: Path | str | None = None, *, keep_seen: bool = False
) -> Results:
    """Open a run, or the predictions of any other system, without reading them.

    Args:
        path: A run; the folder of one of its folds; predictions of one test set (a folder, a
            parquet or a CSV file), which are a fold named 0; or a folder of tables
            ``fold_<k>.csv``, as CLAM writes them.
        validation: Predictions of validation slides, for a path that is not a run.
        keep_seen: Whether slides are kept that the model was trained on.

    Raises:
        RunFolderError: The run is damaged or of a newer format.
        PredictionError: There are no predictions; or validation slides are given for a run, which
            has its own.
    """
    place = Path(path)
    other = None if validation is None else Path(validation)
    if is_run(place):
        if other is not None:
            raise PredictionError(
                f"Expected no `validation` for the run {place}, whose folds have their own, but "
                f"got {other}. Leave it out."
            )
        run = Run.open(place)
        done = tuple(fold for fold in run.folds.values() if fold.is_done)
        return Results(place, done, run.unfinished, run)
    for one in (place, other):
        if one is not None and not one.exists():
            raise PredictionError(
                f"Expected a run or predictions at '{one}', but there is nothing. Check the path."
            )
    tables = _fold_tables(place)
    if tables and other is None:
        return Results(
            place,
            tuple(RunFold(name, table, keep_seen=keep_seen) for name, table in tables.items()),
        )
    for one in (place, other):
        if one is not None and one.is_dir() and not is_prediction_folder(one):
            raise PredictionError(
                f"Expected a run or predictions in '{one}', but it is not a run and has neither "
                "predictions.parquet nor fold_0.csv. Name the folder of a run."
            )
    # A fold's folder lies in its run's.
    home = place.resolve().parent
    run_of_fold = Run.open(home) if is_run(home) else None
    folds = {} if run_of_fold is None else run_of_fold.folds
    name = next((n for n, one in folds.items() if one.path.name == place.resolve().name), "0")
    fold = RunFold(name, place, other_validation=other, keep_seen=keep_seen)
    return Results(place, (fold,), run=run_of_fold)


def _fold_tables(place: Path) -> dict[str, Path]:
    """Find the tables of another system's folds, by the names that a run's folds have."""
    if not place.is_dir() or is_prediction_folder(place):
        return {}
    found = {
        int(match[1]): path
        for path in place.iterdir()
        if (match := _FOLD_TABLE.fullmatch(path.name.lower()))
    }
    return {str(number): found[number] for number in sorted(found)}
