"""Study of all models on bags of MNIST digits, with the SGPMIL paper's columns.

The command ``sgpmil experiment mnist`` calls `compare_on_mnist`. Every seed deals the digits anew
and fixes the training; all rows of a seed see the same bags, so rows can be compared in pairs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from sgpmil.errors import SettingsError
from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.localisation.lesion_detection import mnist_froc
from sgpmil.evaluation.localisation.scored_slides import InstanceGroup, groups_of, scored_slides
from sgpmil.evaluation.localisation.threshold import best_threshold, call_metrics
from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.prediction import CLASS_SCORES
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.ranking import auroc
from sgpmil.experiments.jobs import JobFile
from sgpmil.experiments.mnist_deal import (
    DealtBags,
    HeldOut,
    check_deal,
    deal_digits,
    digits_fingerprint,
    fetch_mnist,
)
from sgpmil.experiments.mnist_rows import choose_rows, own_row, with_rates
from sgpmil.experiments.study import job_errors, run_jobs
from sgpmil.experiments.uncertainty_designs import Design
from sgpmil.experiments.uncertainty_study import parse_seeds
from sgpmil.gpu.resident import where_it_fits
from sgpmil.processes import compute_device
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.training.fit import fit
from sgpmil.training.settings import resolve_training

_FOLD = "deal"


@dataclass(frozen=True, kw_only=True)
class MnistOptions(PlaceOptions):
    """Options of `compare_on_mnist`.

    Args:
        data: Folder that holds mnist/ with MNIST's four gzipped idx files.
        fetch: Fetch the files from OpenML where they are not there.
        out: Folder of the results.
        row: Only this row of the table; may be repeated.
        design: A row of your own: NAME:key=value,... with settings of the model and of the training
            (training.epochs=60), or ROW@NAME:key=value,... which starts from a row of the table;
            may be repeated.
        seeds: Seeds, each of which deals the digits anew.
        digit: The digit that makes a bag positive.
        choose: Compare settings instead, on bags of 10,000 training digits that are held out; each
            row is trained with several learning rates, and the test digits are not read.
        jobs: Processes on this machine, of one thread each.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        epochs: Epochs of every row instead of its own. Needs a folder of its own (``out``).
        max_bags: Most training bags, and a sixth as many to test on, to try the study. Needs a
            folder of its own (``out``).
        dry_run: Check the files, list the runs and stop.
        overwrite: Run jobs again whose results are of other settings.
    """

    data: Path = Path("data")
    fetch: bool = False
    out: Path = Path("runs/mnist")
    row: tuple[str, ...] = ()
    design: tuple[str, ...] = ()
    seeds: str = "0-4"
    digit: int = 9
    choose: bool = False
    jobs: int = 2
    device: str = "auto"
    epochs: int | None = None
    max_bags: int | None = None
    dry_run: bool = False
    overwrite: bool = False

    @property
    def folder(self) -> Path:
        """Folder of MNIST's files."""
        return self.data / "mnist"

    @property
    def held_out(self) -> HeldOut:
        """Bags that models are measured on."""
        return "validation" if self.choose else "test"


@dataclass(frozen=True)
class MnistJob:
    """A row with a seed.

    Args:
        design: The row.
        seed: Seed of bags and training.
        digit: The digit that makes a bag positive.
        held_out: Bags to measure on.
        max_bags: Most training bags.
        fingerprint: Digest of the digits.
        folder: Folder of MNIST's files.
        device: Device to train on.
    """

    design: Design
    seed: int
    digit: int
    held_out: HeldOut
    max_bags: int | None
    fingerprint: str
    folder: Path
    device: str

    @property
    def data_set(self) -> str:
        """Name of the data set."""
        return f"digit-{self.digit}" + ("" if self.held_out == "test" else f"-{self.held_out}")

    @property
    def file(self) -> JobFile:
        """The file of its result, with the settings that the result must have."""
        return JobFile(
            data_set=self.data_set,
            variant=self.design.name,
            fold=_FOLD,
            seed=self.seed,
            settings={**self.design.resolved(), "data": self.fingerprint},
        )


def plan_mnist(options: MnistOptions) -> list[MnistJob]:
    """Return the runs: all rows of a seed, then of the next.

    Raises:
        SettingsError: A row, digit, seed or device does not exist, or a name is there twice.
        BagError: MNIST's files are missing, or cannot be fetched.
    """
    compute_device(options.device)  # once, not in every job
    check_deal(options.digit, options.max_bags)
    seeds = parse_seeds(options.seeds)
    own = [own_row(text) for text in options.design]
    designs = [] if own and not options.row else choose_rows(options.row)
    designs = [*(with_rates(designs) if options.choose else designs), *own]
    if len({design.name for design in designs}) < len(designs):
        raise SettingsError("Expected every row once, but got a name twice.")
    if options.epochs is not None:
        epochs = options.epochs
        designs = [replace(one, training={**one.training, "epochs": epochs}) for one in designs]
    if options.fetch:
        fetch_mnist(options.folder)
    fingerprint = digits_fingerprint(options.folder, options.held_out)
    jobs = [
        MnistJob(
            design=design,
            seed=seed,
            digit=options.digit,
            held_out=options.held_out,
            max_bags=options.max_bags,
            fingerprint=fingerprint,
            folder=options.folder.absolute(),  # workers may have another folder
            device=options.device,
        )
        for seed in seeds
        for design in designs
    ]
    for job in jobs:
        job.file.check()
    return jobs


def compare_on_mnist(
    options: MnistOptions,
    jobs: Sequence[MnistJob] | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train and measure every row. A stopped study resumes where it left off.

    Args:
        options: Rows and seeds.
        jobs: Jobs of `plan_mnist`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_mnist(options) if jobs is None else jobs
    results = run_jobs(
        jobs,
        options.out,
        work=_TrainAndMeasure,
        executor=options.executor(options.jobs, needs_shared_folder=True),
        conditions={"epochs": options.epochs, "max_bags": options.max_bags},
        overwrite=options.overwrite,
        progress=show_progress,
    )
    return job_errors(jobs, results)


class _TrainAndMeasure:
    """Trains and measures rows, and keeps the bags that it dealt last, on a GPU if there is one."""

    dealt: tuple[Any, ...] | None = None

    def __call__(self, job: MnistJob) -> dict[str, Any]:
        device = compute_device(job.device)
        key = (job.folder, job.digit, job.seed, job.held_out, job.max_bags)
        if key != self.dealt:
            bags = deal_digits(
                job.folder,
                digit=job.digit,
                seed=job.seed,
                held_out=job.held_out,
                max_bags=job.max_bags,
            )
            self.bags = DealtBags(*(where_it_fits(part, device) for part in _parts(bags)))
            self.dealt = key
        ends: list[float] = []
        start = perf_counter()
        model = fit(
            self.bags.train,
            model=job.design.model,
            model_settings=job.design.settings,
            training=replace(
                resolve_training(job.design.model, job.design.training),
                seed=job.seed,
                device=job.device,
            ),
            on_epoch=lambda _: ends.append(perf_counter()),
        )
        trained = perf_counter()
        table = predict(model, self.bags.held_out, device=device, novelty=False, warn=False)
        epochs = [after - before for before, after in pairwise(ends)]
        return {
            "device": device.type,
            "parameters": model.num_parameters(),
            "num_train": len(self.bags.train),
            "num_test": len(self.bags.held_out),
            "seconds_per_epoch": median(epochs) if epochs else None,
            "seconds_to_train": trained - start,
            "seconds_to_predict": perf_counter() - trained,
            "columns": measure(table),
        }


def _parts(bags: DealtBags) -> tuple[Any, ...]:
    return bags.train, bags.held_out


def measure(table: PredictionTable) -> dict[str, float | None]:
    """Measure predictions of bags whose instances have labels, with the paper's columns and more.

    Columns of instances are of the attention, as published; ``evidence_auc`` and the like are of
    the other scores that the model gives.
    """
    columns = {key: get_metric(key)(table) for key in ("auc", "ace", "balanced_accuracy", "nll")}
    kinds = {k for bag in table.predictions if bag.instances for k in bag.instances.kinds}
    columns |= {
        f"instance_{name}": value for name, value in asdict(instance_columns(table)).items()
    }
    for kind in CLASS_SCORES:
        if kind in kinds and kind != "attention":
            columns[f"{kind}_auc"] = get_metric(f"{kind}_auc")(table)
    # JSON has no NaN.
    return {key: float(value) if np.isfinite(value) else None for key, value in columns.items()}


@dataclass(frozen=True, slots=True)
class InstanceColumns:
    """Metrics of the attention over positive bags with both kinds of instance.

    Attention is scaled to [0, 1] within each bag.

    Args:
        f1: Mean F1 of a bag at the threshold that is best for these very bags, as published.
        f1_half: The same at the threshold .5, which nobody chose.
        froc: Mean area of the published FROC, which is the AUC times the share of negatives.
        ceiling: Its largest possible value.
        auc: Mean AUC of a bag.
        ace: Mean adaptive calibration error of a bag, as published.
        ace_pooled: The same of the instances of all these bags together.
    """

    f1: float
    f1_half: float
    froc: float
    ceiling: float
    auc: float
    ace: float
    ace_pooled: float


def instance_columns(table: PredictionTable) -> InstanceColumns:
    """Measure the attention of a table of predictions."""
    slides = scored_slides(table, "attention")
    groups = groups_of(slides, "per_slide")
    froc = mnist_froc(slides)
    pooled = InstanceGroup(
        np.concatenate([group.scores for group in groups]) if groups else np.zeros(0),
        np.concatenate([group.positive for group in groups]) if groups else np.zeros(0, bool),
    )
    return InstanceColumns(
        f1=_f1(groups, best_threshold(groups, "f1")),
        f1_half=_f1(groups, 0.5),
        froc=froc.area,
        ceiling=froc.ceiling,
        auc=_mean([auroc(group.scores, group.positive) for group in groups]),
        ace=_mean([_ace(group) for group in groups]),
        ace_pooled=_ace(pooled) if groups else float("nan"),
    )


def _f1(groups: Sequence[InstanceGroup], threshold: float) -> float:
    return _mean([call_metrics(g.scores >= threshold, g.positive).f1 for g in groups])


def _ace(group: InstanceGroup) -> float:
    columns = np.stack([1 - group.scores, group.scores], axis=1)
    return adaptive_calibration_error(columns, group.positive.astype(np.int64))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
