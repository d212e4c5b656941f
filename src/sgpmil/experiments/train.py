"""Training of a recipe: read the data, train and test every fold, draw the figures.

The command ``sgpmil train`` calls `train`.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import write_text
from sgpmil.bags.labels import read_labels
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold, make_kfold
from sgpmil.bags.steps import ColumnOptions
from sgpmil.errors import SettingsError
from sgpmil.experiments.recipe import DataSection, Recipe, load_recipe, starter_recipe
from sgpmil.models.registry import resolve_settings
from sgpmil.report.figures.run_figures import write_run_figures
from sgpmil.runs.prediction_files import write_predictions_csv
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.training.cross_validation import CrossValidation, cross_validate
from sgpmil.training.tracking import TrackedResults, Tracker, tracked


@dataclass(frozen=True, kw_only=True)
class TrainOptions(PlaceOptions, ColumnOptions):
    """Options of `train`. A missing value is the recipe's, or else the model's own.

    Args:
        recipe: Recipe: a YAML file, or one of the package's own (paper, released). The other
            options replace its values.
        features: Folder of bag files, packed store, or .npz of many bags.
        labels: Table of labels (.csv, .tsv, .xlsx) with columns slide_id, label, case_id; or
            torchmil's folder of labels.
        splits: CLAM, Patho-Bench or STAMP splits. Without them, five patient-grouped folds are
            made.
        run: Folder of the run.
        model: Name of the model, such as sgpmil or abmil. Each model has its own training settings.
        preset: Settings of the model: default; released for most; paper and points for sgpmil; deep
            for abmil; vis and enc for bayesmil. Training settings stay; the recipe paper has both.
        epochs: Number of epochs.
        learning_rate: Peak learning rate.
        bags_per_step: Bags packed into a step. Without ``learning_rate``, the model's own rate is
            scaled by the square root of the ratio to its own number of bags.
        seed: Seed.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        prevalence: Class shares that the probabilities are for: training (those of the training
            slides; default), balanced (all equal), the share of the second class of two, which is
            the positive one, such as 0.1, or shares such as tumour=0.1,normal=0.9.
        devices: GPUs that divide the bags of each step among them; on the CPU, processes.
        num_nodes: Number of machines that train together.
        strategy: Lightning Fabric's strategy for several devices, such as ddp.
        fold: Run only this fold; may be repeated.
        folds_at_once: Folds trained side by side on a GPU, 1 to 8; by default as many as are
            faster. Fewer need less memory. Results are the same.
        assignments: Any setting, such as training.weight-decay=1e-4; may be repeated.
        classes: Order of the classes, such as normal,tumor; the last is the positive one.
        ordinal: The classes are ordered, such as grades: the quadratic kappa and the mean absolute
            error of grades are measured. Their order must be known or given.
        order: The ordered classes from the lowest to the highest, such as NC,G3,G4,G5.
        skip_missing: Leave out slides without a label, labels without a slide, and unknown slides
            of the splits, instead of stopping.
        skip_bad: Leave out bags that are damaged, not finite, or of another width than
            most, instead of stopping.
        track: Record settings, curves, results, figures and predictions of the run with
            tensorboard, mlflow or wandb; may be repeated. Nothing leaves this machine unless the
            tracker's own environment variables say so.
        cache: Packed store to make of the bags and read from.
        shared_case: A patient in two parts of a fold is an error, or (published splits) a warning.
        resume: Continue an interrupted run.
        overwrite: Replace an existing run.
    """

    recipe: Path | None = None
    features: Path | None = None
    labels: Path | None = None
    splits: Path | None = None
    run: Path = Path("runs/latest")
    model: str | None = None
    preset: str | None = None
    epochs: int | None = None
    learning_rate: float | None = None
    bags_per_step: int | None = None
    seed: int | None = None
    device: str | None = None
    prevalence: str | None = None
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    fold: tuple[str, ...] = ()
    folds_at_once: int | None = None
    assignments: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    ordinal: bool = False
    order: tuple[str, ...] | None = None
    skip_missing: bool = False
    skip_bad: bool = False
    track: tuple[str, ...] = ()
    cache: Path | None = None
    shared_case: Literal["error", "warn"] | None = None
    resume: bool = False
    overwrite: bool = False

    def load_recipe(self) -> Recipe:
        """Return the recipe with the values of these options.

        Raises:
            SettingsError: The file is unreadable, or a key or value is refused.
        """
        values = {
            "data.features": self.features,
            "data.labels": self.labels,
            "data.splits": self.splits,
            "data.classes": self.order or self.classes,
            "data.ordinal": self.ordinal or self.order is not None or None,
            "data.slide_column": self.slide_column,
            "data.label_column": self.label_column,
            "data.case_column": self.case_column,
            "data.slide_table": self.slide_table,
            "data.skip_missing": self.skip_missing or None,
            "data.skip_bad": self.skip_bad or None,
            "data.cache": self.cache,
            "data.shared_case": self.shared_case,
            "model.name": self.model,
            "model.settings.preset": self.preset,
            "training.epochs": self.epochs,
            "training.learning_rate": self.learning_rate,
            "training.bags_per_step": self.bags_per_step,
            "training.seed": self.seed,
            "training.device": self.device,
            "training.prevalence": self.prevalence,
        }
        return load_recipe(self.recipe, values=values, assignments=self.assignments)


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRun:
    """A run that `train` wrote.

    Args:
        recipe: The recipe.
        result: Predictions and metrics of each fold.
        figures: Figures that were written.
    """

    recipe: Recipe
    result: CrossValidation
    figures: tuple[Path, ...]


def train(
    options: TrainOptions,
    *,
    show_progress: bool = False,
    on_data: Callable[[Recipe, BagDataset, Sequence[Fold]], None] = lambda *_: None,
) -> TrainedRun:
    """Train on every fold, test each fold on its test slides, and draw the figures.

    Args:
        options: The recipe and the values that replace its own.
        show_progress: Whether to show a bar on standard error.
        on_data: Called with recipe, bags and folds before the training starts.

    Raises:
        SettingsError: A key or a value is refused.
        SgpmilError: The data do not fit, or the run exists.
    """
    if options.devices < 1:
        raise SettingsError(f"Expected `devices` of at least 1, but got {options.devices}.")
    recipe = options.load_recipe()
    executor = options.executor()
    bags, folds = read_data(recipe.data, absolute=not options.is_local)
    on_data(recipe, bags, folds)
    if not options.shared_folder:
        from sgpmil.scaleout.shared_bags import share_bags

        bags = share_bags(bags, options.address)
    with tracked(options.track, options.run, tracked_settings(recipe)) as trackers:
        result = run_recipe(
            recipe,
            bags,
            folds,
            options.run,
            resume=options.resume,
            overwrite=options.overwrite,
            only_folds=options.fold or None,
            folds_at_once=options.folds_at_once,
            devices=options.devices,
            num_nodes=options.num_nodes,
            strategy=options.strategy,
            executor=executor,
            shared_folder=options.shared_folder,
            progress=show_progress,
            loggers=trackers,
        )
        figures = write_run_figures(options.run / "figures", result.predictions)
        if trackers:
            track_results(trackers, result, figures)
    return TrainedRun(recipe, result, tuple(figures))


def tracked_settings(recipe: Recipe) -> dict[str, str]:
    """Return the settings of a recipe by name, with those that a model has by default."""
    model = resolve_settings(recipe.model.name, recipe.model.settings)
    data = {name: value for name, value in recipe.data.model_dump().items() if value is not None}
    return {
        "model": recipe.model.name,
        **{f"model.{name}": str(value) for name, value in vars(model).items()},
        **{f"training.{name}": str(value) for name, value in asdict(recipe.training).items()},
        **{f"data.{name}": str(value) for name, value in data.items()},
    }


def track_results(
    trackers: Sequence[Tracker], result: CrossValidation, figures: Sequence[Path]
) -> None:
    """Give the results of a run to its trackers."""
    summary = result.summary()
    names = [fold.fold for fold in result.metrics]
    with TemporaryDirectory() as folder:
        files, header, rows = [], [], []
        for name, table in zip(names, result.predictions, strict=True):
            files.append(Path(folder) / f"predictions-fold-{name}.csv")
            write_predictions_csv(files[-1], table)
            with files[-1].open(newline="", encoding="utf-8") as file:
                first, *others = csv.reader(file)
            header = ["fold", *first]
            rows += [[name, *cells] for cells in others]
        results = TrackedResults(
            folds={
                name: {metric.name: metric.values[i] for metric in summary}
                for i, name in enumerate(names)
            },
            summary={
                key: value
                for metric in summary
                for key, value in (
                    (f"mean_{metric.name}", metric.mean),
                    (f"sd_{metric.name}", metric.sd),
                )
            },
            figures={path.stem: path for path in figures},
            header=header,
            rows=rows,
            files=files,
        )
        for tracker in trackers:
            tracker.log_results(results)


def write_starter_recipe(path: Path, *, overwrite: bool = False) -> None:
    """Write a commented recipe to start from.

    Raises:
        SettingsError: The file exists.
    """
    if path.exists() and not overwrite:
        raise SettingsError(f"{path} exists already. Replace it with `overwrite=True`.")
    write_text(path, starter_recipe())


def read_data(data: DataSection, *, absolute: bool = False) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Open the bags of a recipe and read, or make, its folds.

    Args:
        data: Places of bags, labels and folds.
        absolute: Whether to open them by absolute paths, for workers in other folders.
    """
    reading = _reading(data)
    if absolute:
        reading |= {k: v.absolute() for k, v in reading.items() if isinstance(v, Path)}
    bags = read_bags(**reading, cache=data.cache)
    if not bags.target.names:
        raise SettingsError(
            f"Expected labels for the bags of {data.features}, but there are none. "
            "Give a table with `labels`."
        )
    table = bags.label_table()
    if data.splits is not None:
        return bags, read_splits(data.splits, table)
    return bags, make_kfold(table, num_folds=data.folds, seed=data.folds_seed)


def label_columns(data: DataSection) -> str:
    """Return the columns that the labels of a recipe come from, in a few words.

    It is empty where the labels are not of a table.
    """
    if data.labels is None:
        return ""
    return read_labels(
        data.labels,
        slide_column=data.slide_column,
        label_column=data.label_column,
        case_column=data.case_column,
        slide_table=data.slide_table,
    ).columns


def run_recipe(
    recipe: Recipe, bags: BagDataset, folds: Sequence[Fold], run: Path, **options: Any
) -> CrossValidation:
    """Train and test every fold of a recipe."""
    return cross_validate(
        bags,
        folds,
        model=recipe.model.name,
        model_settings=recipe.model.settings,
        training=recipe.training,
        run=run,
        data={
            # Absolute paths: a later command may run in another folder.
            name: str(value.resolve()) if isinstance(value, Path) else value
            for name, value in _reading(recipe.data).items()
        },
        allow_missing=recipe.data.skip_missing or recipe.data.skip_bad,
        on_shared_case=recipe.data.shared_case,
        **options,
    )


def _reading(data: DataSection) -> dict[str, Any]:
    """Return the arguments of `read_bags` that differ from its defaults."""
    arguments = {
        "folder": data.features,
        "labels": data.labels,
        "classes": data.classes,
        "ordinal": data.ordinal or None,
        "slide_column": data.slide_column,
        "label_column": data.label_column,
        "case_column": data.case_column,
        "slide_table": data.slide_table,
        "on_mismatch": "skip" if data.skip_missing else None,
        "on_bad": "skip" if data.skip_bad else None,
    }
    found: dict[str, Any] = {k: value for k, value in arguments.items() if value is not None}
    return found
