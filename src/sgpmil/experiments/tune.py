"""Search for settings of a recipe, judged by validation slides alone.

The command ``sgpmil tune`` calls `tune`. Trials get a data set without the test slides of the folds
that they train, so that nothing of these can decide which settings win.
"""

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from shutil import rmtree
from typing import Any

import yaml

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import read_json, write_text
from sgpmil.bags.splits import Fold
from sgpmil.errors import (
    RunFolderError,
    SettingsError,
    SplitError,
    TrainingError,
    damage_as,
)
from sgpmil.evaluation.metrics import SLIDE_METRICS, Metric
from sgpmil.experiments.recipe import (
    Recipe,
    RecipeDraft,
    draft_recipe,
    read_yaml,
)
from sgpmil.experiments.train import read_data
from sgpmil.experiments.trials import TrialWork
from sgpmil.notebook import counted
from sgpmil.progress import ProgressBar, progress_bar
from sgpmil.runs.run import run_lock
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.scaleout.search import Dimension, Trial

_DESCRIPTION = "tune.json"
_RECIPE = "recipe.yaml"
_TABLE = "trials.csv"
_GPU_SHARE = 0.25
"""Part of this machine's GPU that a trial takes: small models leave most of it idle."""


@dataclass(frozen=True, kw_only=True)
class TuneOptions(PlaceOptions):
    """Options of `tune`.

    Args:
        recipe: Recipe to start from: a YAML file, or one of the package's own (paper, released).
        space: Setting to search, as KEY=LOW..HIGH, KEY=LOW..HIGH:log or KEY=A,B,C, such as
            training.learning-rate=1e-5..1e-3:log; may be repeated. Or a YAML file of such keys.
        out: Folder of the search.
        trials: Number of trials.
        metric: Metric of the validation slides, such as nll, auc or balanced_accuracy.
        fold: Fold whose validation slides judge; may be repeated, and a trial is then the mean. By
            default the first. No slide that is a test slide of one of these folds is used.
        assignments: Any setting of the recipe, such as training.epochs=20; may be repeated.
        prune: Stop trials early that are worse than others at the same epoch (ASHA).
        seed: Seed of the search.
        resume: Continue an interrupted search.
        overwrite: Replace an existing search.
    """

    recipe: Path
    space: tuple[str, ...]
    out: Path = Path("tuned")
    trials: int = 20
    metric: str = "nll"
    fold: tuple[str, ...] = ()
    assignments: tuple[str, ...] = ()
    prune: bool = True
    seed: int = 0
    resume: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class TunedRecipe:
    """The result of `tune`.

    Args:
        path: The recipe with the best values.
        table: Table of all trials.
        trials: The trials, the best first.
        metric: What they were compared by.
        folds: Names of the folds.
        num_slides: Number of slides that the trials used.
        num_hidden: Number of test slides that they could not read.
        spoilt: Other folds, some of whose test slides the trials trained or validated on.
    """

    path: Path
    table: Path
    trials: tuple[Trial, ...]
    metric: Metric
    folds: tuple[str, ...]
    num_slides: int
    num_hidden: int
    spoilt: tuple[str, ...] = ()

    @property
    def best(self) -> Trial:
        """The best trial."""
        return self.trials[0]

    def value(self, trial: Trial) -> float:
        """Return the metric of a trial; NaN where it failed."""
        return metric_value(self.metric, trial)


def metric_value(metric: Metric, trial: Trial) -> float:
    """Return the metric that a trial's loss stands for; NaN where there is none."""
    loss = math.inf if trial.progress is None else trial.progress.loss
    if math.isinf(loss):
        return math.nan
    return -loss if metric.better == "higher" else loss


def tune(
    options: TuneOptions,
    *,
    show_progress: bool = False,
    on_data: Callable[[BagDataset, Sequence[str], int], None] = lambda *_: None,
) -> TunedRecipe:
    """Search for the settings of a recipe that are best on validation slides; write a recipe.

    Args:
        options: The recipe, the space and the place of the trials.
        show_progress: Whether to show a bar on standard error.
        on_data: Called with the bags of the trials, the folds and the number of hidden test slides.

    Raises:
        SettingsError: A key, a range, the metric or a fold is refused.
        SplitError: A fold has no validation slides, or all of its slides are test slides of others.
        RunFolderError: The folder holds a search already, or one of other settings.
        TrainingError: Every trial failed.
        MissingPartError: Ray is not installed.
        ClusterError: The cluster does not answer.
        KeyboardInterrupt: The search was stopped.
    """
    options.require_ray(needs_shared_folder=True)
    if options.resume and options.overwrite:
        raise SettingsError("Expected resume or overwrite of a search, but got both.")
    if options.trials < 1:
        raise SettingsError(f"Expected at least one trial (`trials`), but got {options.trials}.")
    draft = draft_recipe(options.recipe, assignments=options.assignments)
    recipe, space = draft.recipe(), read_space(options.space)
    most_epochs = _check_space(draft, space)
    all_bags, all_folds = read_data(recipe.data, absolute=True)
    folds, hidden = _validation_folds(all_folds, options.fold)
    used = {slide for fold in folds for slide in (*fold.train, *fold.val)}
    bags = all_bags.only([slide for slide in all_bags.slide_ids if slide in used])
    metric = _metric(options.metric, bags, folds)
    on_data(bags, [fold.name for fold in folds], len(hidden))
    work = TrialWork(draft, bags, folds, metric.key)
    _require_room(options, recipe)  # before another search is replaced
    with run_lock(options.out.absolute()):
        _open(options, _description(options, draft, space, work))
        trials = _search(options, work, space, recipe, most_epochs, metric, show=show_progress)
        ranked = sorted(trials, key=lambda one: _loss(one))
        if math.isinf(_loss(ranked[0])):
            reason = next((t.progress.error for t in ranked if t.progress), "no reason is known")
            raise TrainingError(
                f"Expected a trial that trains, but all {len(ranked)} failed; the first: {reason}"
            )
        found = TunedRecipe(
            options.out / _RECIPE,
            options.out / _TABLE,
            tuple(ranked),
            metric,
            tuple(fold.name for fold in folds),
            len(bags),
            len(hidden),
            tuple(fold.name for fold in all_folds if used & set(fold.test)),
        )
        _write_recipe(found, draft)
        _write_table(found, space)
        rmtree(options.out / "trials", ignore_errors=True)  # checkpoints, to resume from
    return found


def read_space(texts: Sequence[str]) -> tuple[Dimension, ...]:
    """Read the settings to search.

    Args:
        texts: ``KEY=SPACE``, or files of such keys.

    Raises:
        SettingsError: One of them is none, is there twice, or is about the data.
    """
    given: list[tuple[str, Any]] = []
    for text in texts:
        key, equals, space = text.partition("=")
        if equals:
            given.append((key, space))
            continue
        try:
            content = read_yaml(Path(text), "a space of settings")
        except FileNotFoundError as error:
            raise SettingsError(
                f"Expected `space` as KEY=LOW..HIGH, KEY=A,B,C or a YAML file of these, but got "
                f"'{text}'."
            ) from error
        if not isinstance(content, dict):
            raise SettingsError(f"Expected keys and their values in {text}, but got other YAML.")
        given += [(str(name), value) for name, value in content.items()]
    found = tuple(Dimension.parse(key.strip().replace("-", "_"), text) for key, text in given)
    if not found:
        raise SettingsError("Expected a setting to search (`space`), but got none.")
    for number, one in enumerate(found):
        if one.key in [other.key for other in found[:number]]:
            raise SettingsError(
                f"Expected each setting of the space once, but got {one.key} twice."
            )
        if one.key.split(".")[0] not in ("model", "training"):
            raise SettingsError(
                f"Expected settings of model or training to search, but got {one.key}. Their keys "
                "start with model.settings, model.name or training."
            )
    return found


def _check_space(draft: RecipeDraft, space: Sequence[Dimension]) -> int:
    """Try the ends of every dimension; return the most epochs of a trial."""
    epochs = [draft.recipe().training.epochs]
    for dimension in space:
        for value in dimension.ends:
            try:
                epochs.append(draft.with_values({dimension.key: value}).recipe().training.epochs)
            except SettingsError as error:
                raise SettingsError(
                    f"With {dimension.key} = {value} of the space: {error}"
                ) from error
    return max(epochs)


def _validation_folds(
    folds: Sequence[Fold], names: Sequence[str]
) -> tuple[tuple[Fold, ...], frozenset[str]]:
    """Return the folds to judge by, without any of their test slides, and these."""
    by_name = {fold.name: fold for fold in folds}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise SplitError(
            f"Expected folds among {', '.join(by_name)}, but got {', '.join(unknown)}. Name folds "
            "of the splits."
        )
    chosen = [by_name[name] for name in dict.fromkeys(names)] or [folds[0]]
    hidden = frozenset(slide for fold in chosen for slide in fold.test)
    found = []
    for fold in chosen:
        train, val = (
            tuple(slide for slide in part if slide not in hidden) for part in (fold.train, fold.val)
        )
        if not train or not val:
            raise SplitError(
                f"Expected training and validation slides of fold {fold.name} that are test slides "
                f"of none of the folds {', '.join(f.name for f in chosen)}, but got {len(train)} "
                f"and {len(val)}. Choose one `fold`, or splits with a validation part."
            )
        found.append(replace(fold, train=train, val=val, test=()))
    return tuple(found), hidden


def _metric(name: str, bags: BagDataset, folds: Sequence[Fold]) -> Metric:
    known = {
        metric.key: metric
        for metric in SLIDE_METRICS
        if metric.better != "neither" and bags.target.kind in metric.targets
    }
    if name not in known:
        raise SettingsError(
            f"Expected a metric among {', '.join(known)}, but got '{name}'. Choose one of these."
        )
    metric = known[name]
    if metric.two_classes_only and bags.num_classes > 2:
        raise SettingsError(
            f"Expected a metric of {bags.num_classes} classes, but {name} is of two. Take nll."
        )
    return metric


def _description(
    options: TuneOptions, draft: RecipeDraft, space: Sequence[Dimension], work: TrialWork
) -> dict[str, Any]:
    """Return what decides a search, to know it again."""
    found: dict[str, Any] = json.loads(
        json.dumps(
            {
                "recipe": draft.content,
                "space": [asdict(one) for one in space],
                "trials": options.trials,
                "metric": options.metric,
                "folds": [asdict(fold) for fold in work.folds],
                "data": work.bags.fingerprint(),
                "prune": options.prune,
                "seed": options.seed,
            },
            default=str,
        )
    )
    return found


def _open(options: TuneOptions, description: Mapping[str, Any]) -> None:
    """Begin or continue the search of a folder."""
    out, file = options.out, options.out / _DESCRIPTION
    if file.exists() and options.resume:
        advice = "Begin a new search in another folder (`out`), or replace it."
        with damage_as(RunFolderError, "the description of a search", file, advice):
            before = dict(read_json(file))
        other = [
            name
            for name, value in description.items()
            if repr(before.get(name)) != repr(value)  # NaN, too, is the same as before
        ]
        if other:
            raise RunFolderError(
                f"Expected the search of {out} as it was begun, but {', '.join(other)} is another. "
                "Begin a new one in another folder (`out`), or replace it with `overwrite=True`."
            )
        return
    if file.exists() and not options.overwrite:
        raise RunFolderError(
            f"{out} holds a search already. Continue it with `resume=True`, or replace it with "
            "`overwrite=True`."
        )
    for part in ("search", "trials"):
        rmtree(out / part, ignore_errors=True)
    for name in (_RECIPE, _TABLE):
        (out / name).unlink(missing_ok=True)
    write_text(file, json.dumps(description, indent=1))


def _search(
    options: TuneOptions,
    work: TrialWork,
    space: Sequence[Dimension],
    recipe: Recipe,
    most_epochs: int,
    metric: Metric,
    *,
    show: bool,
) -> tuple[Trial, ...]:
    from sgpmil.scaleout.ray_tune import SearchPlan, search

    several = len(work.folds) > 1
    most = len(work.folds) if several else most_epochs
    plan = SearchPlan(
        space,
        options.trials,
        most_steps=most,
        prune=options.prune,
        least_steps=1 if several else math.ceil(most / 4),
        seed=options.seed,
        cpus=options.cpus_per_job,
        gpus=_gpus(options, recipe),
    )
    with progress_bar("Tuning", options.trials, "trials", show=show) as bar:
        return search(
            work,
            plan,
            options.out,
            address=_address(options),
            resume=options.resume,
            on_change=lambda trials: _show(bar, trials, metric, "fold" if several else "epoch"),
        )


def _require_room(options: TuneOptions, recipe: Recipe) -> None:
    from sgpmil.scaleout.ray_cluster import RayExecutor

    gpus = _gpus(options, recipe)
    RayExecutor(_address(options), cpus=options.cpus_per_job, gpus=gpus).require_room()


def _address(options: TuneOptions) -> str | None:
    """Return the address of the cluster of the trials: on this machine, one of their own."""
    return "local" if options.is_local else options.address


def _gpus(options: TuneOptions, recipe: Recipe) -> float:
    """Return the GPUs of a trial: four share that of this machine, unless a number is given."""
    import torch

    if options.gpus_per_job or not options.is_local or recipe.training.device == "cpu":
        return options.gpus_per_job
    return _GPU_SHARE if torch.cuda.is_available() else 0.0


def _show(bar: ProgressBar, trials: Sequence[Trial], metric: Metric, step: str) -> None:
    """Show the trials that run, and the best so far."""
    bar.reach(sum(trial.is_done for trial in trials))
    rows = []
    for trial in trials:
        if not trial.is_done:
            done = trial.progress
            found = "" if done is None else f"{metric.short_name} {metric_value(metric, trial):.3f}"
            text = "starting" if done is None else f"{step} {done.step}"
            rows.append((shown_values(trial), text, found, trial.place))
    bar.show_table(rows)
    best = min(trials, key=_loss, default=None)
    if best is not None and not math.isinf(_loss(best)):
        value = metric_value(metric, best)
        bar.show(state=f"best so far: {metric.short_name} {value:.3f} of {shown_values(best)}")


def shown_values(trial: Trial) -> str:
    """Return the values of a trial in a line.

    Example:
        >>> shown_values(Trial("a", {"training.learning_rate": 0.00123456, "model.name": "abmil"}))
        'learning_rate 0.00123, name abmil'
    """
    return ", ".join(
        f"{key.rpartition('.')[2]} {shown_value(value)}" for key, value in trial.values.items()
    )


def shown_value(value: Any) -> str:
    """Return a value with three digits where it is a fraction."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _loss(trial: Trial) -> float:
    return math.inf if trial.progress is None else trial.progress.loss


def _write_recipe(found: TunedRecipe, draft: RecipeDraft) -> None:
    """Write the recipe of the best trial, with every training setting and absolute paths."""
    recipe = draft.with_values(found.best.values).recipe()
    data = {
        name: str(value.absolute()) if isinstance(value, Path) else value
        for name, value in recipe.data.model_dump(exclude_defaults=True).items()
    }
    content = {
        "data": data,
        "model": {"name": recipe.model.name, "settings": dict(recipe.model.settings)},
        "training": asdict(recipe.training),
    }
    plain = json.loads(json.dumps(content, default=str))
    lines = [
        f"# The best of {counted(len(found.trials), 'trial')} of sgpmil tune: "
        f"{found.metric.name} {found.value(found.best):.4g} on the validation slides of "
        f"{'folds' if len(found.folds) > 1 else 'fold'} {', '.join(found.folds)}.",
        f"# {counted(found.num_hidden, 'test slide')} of these folds had no part in it.",
        yaml.safe_dump(plain, sort_keys=False, allow_unicode=True),
    ]
    write_text(found.path, "\n".join(lines))


def _write_table(found: TunedRecipe, space: Sequence[Dimension]) -> None:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = [one.key for one in space]
    writer.writerow(("trial", f"val_{found.metric.key}", "steps", *keys, "error"))
    for trial in found.trials:
        done, value = trial.progress, found.value(trial)
        writer.writerow(
            (
                trial.name,
                "" if math.isnan(value) else repr(value),
                0 if done is None else done.step,
                *(trial.values.get(key, "") for key in keys),
                "" if done is None else done.error,
            )
        )
    write_text(found.table, text.getvalue())
