"""Study of every model on real data sets, each model with its own published training.

`ADJUSTMENTS` lists all settings that differ from a model's own, with their reasons.

An epoch of each model is timed one after another in one process of one thread: the processes of a
study share caches, memory and cores.
"""

import json
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import read_json, write_text
from sgpmil.bags.reading import read_bags
from sgpmil.bags.split_files import read_splits
from sgpmil.bags.splits import Fold
from sgpmil.bags.tables import listed
from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.classic_mil import CLASSIC_SETS, classic_bags
from sgpmil.experiments.mnist import mnist_bags
from sgpmil.experiments.study import Job, StudySet, Variant, load_set, plan_jobs, sentence
from sgpmil.models.registry import list_models
from sgpmil.processes import compute_device, one_thread
from sgpmil.runs.run import run_lock
from sgpmil.training.fit import fit
from sgpmil.training.settings import default_training


@dataclass(frozen=True)
class ModelSet:
    """A data set of the study.

    Args:
        place: Its path in the folder of data sets.
        load: Reads its bags and folds.
        seeds: Default number of seeds.
        about: Description in a sentence or two.
    """

    place: str
    load: Callable[[Path], tuple[BagDataset, tuple[Fold, ...]]]
    seeds: int
    about: str


def colon_bags(folder: Path) -> tuple[BagDataset, tuple[Fold, ...]]:
    """Read the colon nuclei: ``features/*.h5``, ``labels.csv`` and ``splits/``."""
    bags = read_bags(folder / "features", folder / "labels.csv")
    return bags, read_splits(folder / "splits", bags.label_table())


MODEL_SETS: dict[str, ModelSet] = {
    "colon": ModelSet(
        "colon",
        colon_bags,
        seeds=3,
        about="Nuclei of colon histology; positive bags hold epithelium.",
    ),
    "mnist": ModelSet(
        "mnist",
        mnist_bags,
        seeds=3,
        about="Nine images a bag; positive bags hold a 9. 1,000 bags to train on, 200 to validate "
        "and 1,000 to test, the same for all seeds, which fix the training alone.",
    ),
    **{
        name: ModelSet(f"classic_mil/{name}.npz", classic_bags, seeds=1, about=about)
        for name, about in CLASSIC_SETS.items()
    },
}


@dataclass(frozen=True)
class Adjustment:
    """A change of models' own settings on some data sets.

    Args:
        reason: Reason for the change.
        sets: Names of the data sets.
        models: Names of the models; all where empty.
        without: Names of models that it leaves alone.
        settings: Settings of the model.
        training: Training settings.
        max_epochs: Most epochs; fewer stay.
    """

    reason: str
    sets: tuple[str, ...]
    models: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    max_epochs: int | None = None

    def applies(self, model: str, data_set: str) -> bool:
        """Return whether a model is changed on a data set."""
        chosen = not self.models or model in self.models
        return data_set in self.sets and chosen and model not in self.without


ADJUSTMENTS: tuple[Adjustment, ...] = (
    Adjustment(
        "Instances are images: the network of the ABMIL paper reads them, trained with each "
        "model. Bag-size reads nothing.",
        sets=("mnist",),
        without=("bag-size",),
        settings={"encoder": "digit-cnn"},
    ),
    Adjustment(
        "All pixels have one scale, which the images come with; standardised one by one, those "
        "of the dark margin would be noise.",
        sets=("mnist",),
        settings={"standardise": False},
    ),
    Adjustment(
        "An equal budget of passes over the bags, that of the ABMIL paper on MNIST. The published "
        "30 to 1,000 epochs are for sets of tens to hundreds of bags, not for 1,000.",
        sets=("mnist",),
        without=("mixmil",),
        max_epochs=20,
    ),
    Adjustment(
        "A step of MixMIL takes 64 bags: 200 epochs are 3,200 steps, where the others take 20,000.",
        sets=("mnist",),
        models=("mixmil",),
        max_epochs=200,
    ),
    Adjustment(
        "An equal budget for the published 200 epochs of slides; the bags are a few vectors each.",
        sets=tuple(CLASSIC_SETS),
        without=("mixmil",),
        max_epochs=50,
    ),
    Adjustment(
        "These sets have 166 or 230 features: a projection to 512 would only blow them up.",
        sets=tuple(CLASSIC_SETS),
        models=("mixmil",),
        settings={"projection_dim": 0},
    ),
)


def choose_sets(data: Path, names: Sequence[str] = ()) -> list[str]:
    """Return the data sets to run: those asked for, or all that are there.

    Raises:
        SettingsError: A name is unknown.
        BagError: The folder, or a data set that was asked for, is missing, or all are.
    """
    for name in names:
        if name not in MODEL_SETS:
            raise SettingsError(
                f"Expected data sets (`sets`) among {', '.join(MODEL_SETS)}, but got '{name}'."
            )
    if not data.is_dir():
        raise BagError(f"Expected a folder of data sets at {data}, but there is none.")
    absent = [name for name in names if not (data / MODEL_SETS[name].place).exists()]
    if absent:
        raise BagError(
            f"Expected the data set '{absent[0]}' at {data / MODEL_SETS[absent[0]].place}, but "
            "there is none."
        )
    present = [name for name in MODEL_SETS if (data / MODEL_SETS[name].place).exists()]
    if not present:
        places = listed([dataset.place for dataset in MODEL_SETS.values()])
        raise BagError(f"Expected data sets such as {places} in {data}, but there is none.")
    return [name for name in present if not names or name in names]


def choose_models(names: Sequence[str] = ()) -> list[str]:
    """Return the models to run: those asked for, or all.

    Raises:
        SettingsError: A name is unknown.
    """
    for name in names:
        if name not in list_models():
            raise SettingsError(
                f"Expected models (`model`) among {', '.join(list_models())}, but got '{name}'."
            )
    return [name for name in list_models() if not names or name in names]


def study_set(data: Path, name: str) -> StudySet:
    """Return a data set that lies in a folder of data sets."""
    chosen = MODEL_SETS[name]
    return StudySet(name, partial(chosen.load, data / chosen.place))


def model_variant(model: str, data_set: str, epochs: int | None = None) -> Variant:
    """Return the variant of a model for a data set: its own settings, changed by `ADJUSTMENTS`.

    Args:
        model: Name of the model.
        data_set: Name of the data set.
        epochs: Number of epochs of every model, instead of its own.
    """
    settings: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for adjustment in ADJUSTMENTS:
        if not adjustment.applies(model, data_set):
            continue
        settings |= adjustment.settings
        training |= adjustment.training
        if adjustment.max_epochs is not None:
            own = training.get("epochs", default_training(model).epochs)
            training["epochs"] = min(own, adjustment.max_epochs)
    if epochs is not None:
        training["epochs"] = epochs
    return Variant(model, model, settings, training)


def plan_model_study(
    data: Path,
    sets: Sequence[str],
    models: Sequence[str],
    *,
    seeds: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
) -> list[Job]:
    """Make the jobs of the study, one data set after another.

    Args:
        data: Folder of data sets.
        sets: Names of the data sets.
        models: Names of the models.
        seeds: Number of seeds; each data set's own where None.
        epochs: Number of epochs of every model, instead of its own.
        device: Device to train on.
    """
    jobs = []
    for name in sets:
        variants = [model_variant(model, name, epochs) for model in models]
        count = MODEL_SETS[name].seeds if seeds is None else seeds
        jobs += plan_jobs(study_set(data, name), variants, seeds=count, device=device)
    return jobs


def plan_timing(
    data: Path, sets: Sequence[str], models: Sequence[str], *, device: str = "auto"
) -> list[Job]:
    """Make the jobs to time: each model on the first fold of each data set."""
    jobs = plan_model_study(data, sets, models, seeds=1, device=device)
    first = {job.data_set.name: job.fold for job in reversed(jobs)}
    return [job for job in jobs if job.fold == first[job.data_set.name]]


TIMING_FILE = "timing.json"
TIMED_EPOCHS = 3
"""Epochs that are timed, after one to warm up."""


@dataclass(frozen=True)
class Timed:
    """Measured time of an epoch, or the error that prevented it.

    Args:
        data_set: Name of the data set.
        model: Name of the model.
        seconds: Median seconds of an epoch; None where it failed.
        error: Error of a failure.
    """

    data_set: str
    model: str
    seconds: float | None
    error: str | None


def time_models(
    jobs: Sequence[Job],
    out: Path,
    *,
    on_start: Callable[[str], None],
    on_done: Callable[[str, str | None], None],
) -> list[Timed]:
    """Time an epoch of each job's model, without validation, and write ``timing.json``.

    Times of other models and data sets stay in the file. It is written after every model, so
    an interruption loses at most one.

    Args:
        jobs: Jobs of one fold and one seed each.
        out: Folder of the results.
        on_start: Called with the name of a job that begins.
        on_done: Called with its name and, where it failed, its error when it is done.

    Raises:
        RunFolderError: Another process writes to the folder, which would disturb the timing.
    """
    timed = []
    path = out / TIMING_FILE
    with run_lock(out), one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        times = _read(path)
        for data_set, group in groupby(jobs, key=lambda job: job.data_set):
            bags, folds = load_set(data_set)
            for job in group:
                on_start(job.file.key)
                train = bags.subset(folds[job.fold].train)
                found = _time(job, train)
                timed.append(found)
                if found.seconds is not None:
                    times.setdefault(found.data_set, {})[found.model] = {
                        "seconds_per_epoch": found.seconds,
                        "device": compute_device(job.training.device).type,
                        "bags": len(train),
                        "bags_per_step": job.training.bags_per_step,
                    }
                    write_text(path, json.dumps(times, indent=1))
                on_done(job.file.key, found.error)
    return timed


def _time(job: Job, train: BagDataset) -> Timed:
    names = job.data_set.name, job.variant.name
    try:
        return Timed(*names, _seconds_per_epoch(job, train), None)
    except Exception as error:  # noqa: BLE001 - one model's failure is not the others'
        return Timed(*names, None, sentence(error))


def _seconds_per_epoch(job: Job, train: BagDataset) -> float:
    ends: list[float] = []
    fit(
        train,
        model=job.variant.model,
        model_settings=job.variant.settings,
        training=replace(job.training, epochs=1 + TIMED_EPOCHS, select="last", patience=0),
        on_epoch=lambda _: ends.append(time.perf_counter()),
    )
    return statistics.median(after - before for before, after in pairwise(ends))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
