"""The run of a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold, make_kfold
from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import DataSection, Recipe
from sgpmil.training.cross_validation import CrossValidation, cross_validate

__all__ = ["read_data", "run_recipe"]


def read_data(data: DataSection) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Open the bags of a recipe and read, or make, its folds."""
    bags = read_bags(**_reading(data), cache=data.cache)
    if not bags.target.names:
        raise SettingsError(
            f"Expected labels for the bags of {data.features}, but there are none. "
            "Give a table with --labels."
        )
    table = bags.label_table()
    if data.splits is not None:
        return bags, read_splits(data.splits, table)
    return bags, make_kfold(table, num_folds=data.folds, seed=data.folds_seed)


def run_recipe(
    recipe: Recipe,
    bags: BagDataset,
    folds: Sequence[Fold],
    run: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    only_folds: Sequence[str] | None = None,
    folds_at_once: int | None = None,
    devices: int = 1,
    progress: bool = True,
) -> CrossValidation:
    """Carry out a recipe: train and test every fold.

    Args:
        recipe: The recipe.
        bags: Its bags, from `read_data`.
        folds: Its folds, likewise.
        run: Folder of the run.
        resume: Go on with an interrupted run.
        overwrite: Replace an existing run.
        only_folds: Names of the folds to run.
        folds_at_once: As of `cross_validate`.
        devices: As of `cross_validate`.
        progress: Whether to show a progress bar.
    """
    return cross_validate(
        bags,
        folds,
        model=recipe.model.name,
        model_settings=recipe.model.settings,
        training=recipe.training,
        run=run,
        data={
            # They hold in whatever folder a later command is called.
            name: str(value.resolve()) if isinstance(value, Path) else value
            for name, value in _reading(recipe.data).items()
        },
        resume=resume,
        overwrite=overwrite,
        only_folds=only_folds,
        folds_at_once=folds_at_once,
        devices=devices,
        allow_missing=recipe.data.skip_missing or recipe.data.skip_bad,
        on_shared_case=recipe.data.shared_case,
        progress=progress,
    )


def _reading(data: DataSection) -> dict[str, Any]:
    """Return the arguments of `read_bags` that differ from its defaults."""
    arguments = {
        "folder": data.features,
        "labels": data.labels,
        "classes": data.classes,
        "slide_column": data.slide_column,
        "label_column": data.label_column,
        "case_column": data.case_column,
        "slide_table": data.slide_table,
        "on_mismatch": "skip" if data.skip_missing else None,
        "on_bad": "skip" if data.skip_bad else None,
    }
    return {name: value for name, value in arguments.items() if value is not None}
