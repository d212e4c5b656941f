"""Study of stability: small trainings under hostile conditions, and how many fail.

The command ``sgpmil experiment stability`` calls `measure_stability`. Every design is trained
under the same conditions: a seed, a lengthscale, inducing points of which some are equal, features
that are constant or repeated, a scale of the features, and a precision. A training *fails* by an
error, a loss or a weight that is not finite, or a prediction that is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import SettingsError, TrainingError
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.ablation_designs import PAPER_TRAINING
from sgpmil.experiments.jobs import JobFile, is_done, read_result
from sgpmil.experiments.study import job_errors, run_jobs, sentence
from sgpmil.gp.prior import set_lengthscale
from sgpmil.models.contract import MILModel
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.processes import compute_device
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.training.callbacks import Callback, FitProgress
from sgpmil.training.fit import fit

Content = Literal["distinct", "repeated", "constant columns", "constant"]
Points = Literal["distinct", "half equal", "all equal"]

OWN = 0.0
"""Lengthscale that stands for the design's own start."""

LEVELS: dict[str, tuple[Any, ...]] = {
    "lengthscale": (OWN, 0.01, 0.1, 10.0, 100.0),
    "points": ("distinct", "half equal", "all equal"),
    "content": ("distinct", "repeated", "constant columns", "constant"),
    "scale": (1e-3, 1e-1, 1.0, 10.0, 1e3),
    "precision": ("32", "bf16"),
}
"""Levels of each factor."""

_SMALL = {"hidden_dims": (64, 32), "gp_dim": 16, "num_inducing": 40}

STABILITY_DESIGNS: dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "default": ("sgpmil", _SMALL, {}),
    "points": ("sgpmil", {**_SMALL, "preset": "points"}, {}),
    "paper": ("sgpmil", {**_SMALL, "preset": "paper"}, PAPER_TRAINING),
    "agp": ("agp", _SMALL, {}),
}
"""Model, settings and training of each design."""

RUNS = 200
EPOCHS = 8
_DIM = 24
_TRAIN, _TEST = 16, 6
_SIZES = (1, 40)
_DISTINCT = 12
"""Number of different instances where features are repeated: fewer than inducing points."""


@dataclass(frozen=True)
class Condition:
    """Conditions of a training.

    Args:
        seed: Seed of bags and training.
        lengthscale: Lengthscale of the kernel at the start; 0 leaves the design's own.
        points: Equal inducing points at the start.
        content: ``distinct`` instances; ``repeated``, 12 different ones in all bags; ``constant
            columns``, half of the features; ``constant``, all instances alike.
        scale: Factor of the features.
        precision: Precision of the dense layers.
    """

    seed: int
    lengthscale: float = OWN
    points: Points = "distinct"
    content: Content = "distinct"
    scale: float = 1.0
    precision: Literal["32", "bf16"] = "32"


def conditions(count: int = RUNS) -> tuple[Condition, ...]:
    """Return conditions in which every level of a factor is equally frequent.

    The levels of each factor are shuffled independently, and the seeds are 0, 1, 2, ...

    Example:
        >>> sum(one.precision == "bf16" for one in conditions(200))
        100
    """
    generator = np.random.default_rng(0)
    columns = {
        name: generator.permutation(np.arange(count) % len(levels))
        for name, levels in LEVELS.items()
    }
    return tuple(
        Condition(row, **{name: LEVELS[name][int(columns[name][row])] for name in LEVELS})
        for row in range(count)
    )


@dataclass(frozen=True, kw_only=True)
class StabilityOptions(PlaceOptions):
    """Options of `measure_stability`.

    Args:
        design: Only this design (default, points, paper, agp); may be repeated.
        runs: Number of conditions.
        out: Folder of the results.
        jobs: Processes on this machine, of one thread each.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        dry_run: List the runs and stop.
        tables: Write tables and the figure of the runs that are there, and stop.
        overwrite: Run jobs again whose results are of other settings.
    """

    design: tuple[str, ...] = ()
    runs: int = RUNS
    out: Path = Path("runs/stability")
    jobs: int = 2
    device: str = "cpu"
    dry_run: bool = False
    tables: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class StabilityJob:
    """A design under a condition.

    Args:
        design: Name of the design.
        condition: The condition.
        device: Device to train on.
    """

    design: str
    condition: Condition
    device: str = "cpu"
    data_set: str = field(default="stability", init=False)

    @property
    def file(self) -> JobFile:
        """The file of its result, with the settings that the result must have."""
        model, settings, training = STABILITY_DESIGNS[self.design]
        return JobFile(
            data_set=self.data_set,
            variant=self.design,
            fold="run",
            seed=self.condition.seed,
            settings={
                "model": model,
                "model_settings": dict(settings),
                "training": {**training, "epochs": EPOCHS},
                "condition": asdict(self.condition),
            },
        )


def plan_stability(options: StabilityOptions) -> list[StabilityJob]:
    """Return the runs: all designs under a condition, then under the next.

    Raises:
        SettingsError: A design or the device does not exist, or there are no runs.
    """
    compute_device(options.device)
    for name in options.design:
        if name not in STABILITY_DESIGNS:
            raise SettingsError(
                f"Expected `design` among {', '.join(STABILITY_DESIGNS)}, but got '{name}'."
            )
    if options.runs < 1:
        raise SettingsError(f"Expected at least one run (`runs`), but got {options.runs}.")
    names = [name for name in STABILITY_DESIGNS if not options.design or name in options.design]
    return [
        StabilityJob(name, condition, options.device)
        for condition in conditions(options.runs)
        for name in names
    ]


def measure_stability(
    options: StabilityOptions,
    jobs: Sequence[StabilityJob] | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train every design under every condition. A stopped study resumes where it left off.

    Args:
        options: Designs and number of conditions.
        jobs: Jobs of `plan_stability`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that could not be judged: its process died.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_stability(options) if jobs is None else jobs
    results = run_jobs(
        jobs,
        options.out,
        work=_TrainAndJudge,
        executor=options.executor(options.jobs, needs_shared_folder=True),
        conditions={"device": compute_device(options.device).type},
        overwrite=options.overwrite,
        progress=show_progress,
    )
    return job_errors(jobs, results)


class _TrainAndJudge:
    """Trains designs under conditions and looks for failures."""

    def __call__(self, job: StabilityJob) -> dict[str, Any]:
        return vars(judge(job.design, job.condition, device=job.device))


@dataclass(frozen=True)
class Verdict:
    """Outcome of a training.

    Args:
        failure: Kind of failure, empty where there is none: ``not finite`` (a loss or a weight),
            ``error``, or ``predictions``.
        reason: Reason of the failure.
        worst_loss: Largest mean loss of an epoch; None where no epoch ended with a finite one.
        last_loss: Mean loss of the last epoch; None likewise.
    """

    failure: str
    reason: str = ""
    worst_loss: float | None = None
    last_loss: float | None = None


def judge(design: str, condition: Condition, *, device: str = "cpu") -> Verdict:
    """Train a design under a condition, and look for failures."""
    model, settings, training = STABILITY_DESIGNS[design]
    bags = hostile_bags(condition)
    train, test = bags.subset(bags.slide_ids[:_TRAIN]), bags.subset(bags.slide_ids[_TRAIN:])
    losses: list[float] = []
    try:
        fitted = fit(
            train,
            model=model,
            model_settings=settings,
            training={
                **training,
                "epochs": EPOCHS,
                "seed": condition.seed,
                "precision": condition.precision,
                "device": device,
            },
            callbacks=[_Hostile(condition)],
            on_epoch=lambda metrics: losses.append(float(metrics["train_loss"])),
        )
        finite = bool(np.isfinite(losses).all())
        if not finite or not weights_finite(fitted):
            return Verdict("not finite", f"losses {losses}" if not finite else "a weight")
        table = predict(fitted, test, device=device, warn=False)
    except TrainingError as error:
        return Verdict("not finite", sentence(error))
    except Exception as error:  # noqa: BLE001 - any error of a training is what is counted
        return Verdict("error", sentence(error))
    reason = _not_finite(table)
    return Verdict("predictions" if reason else "", reason, max(losses), losses[-1])


def _not_finite(table: PredictionTable) -> str:
    """Name what is not finite in predictions; empty where all is."""
    if not (np.isfinite(table.probs).all() and np.isfinite(table.std).all()):
        return "probabilities or their deviations are not finite"
    for one in table.predictions:
        scores = one.instances
        if scores is not None and not np.isfinite(scores.attention_mean).all():
            return f"the attention of {one.slide_id} is not finite"
    return ""


def weights_finite(model: MILModel) -> bool:
    """Return whether all weights are finite."""
    return all(bool(torch.isfinite(weight).all()) for weight in model.parameters())


def hostile_bags(condition: Condition) -> BagDataset:
    """Draw the bags of a condition; the first of each part has one instance."""
    generator = np.random.default_rng([condition.seed, 5])
    few = generator.standard_normal((_DISTINCT, _DIM))
    shift = generator.standard_normal(_DIM)
    constant = generator.random(_DIM) < 0.5
    features = []
    for number in range(_TRAIN + _TEST):
        size = 1 if number in (0, _TRAIN) else int(generator.integers(*_SIZES))
        values = generator.standard_normal((size, _DIM))
        if number % 2:
            values[: max(1, size // 10)] += 2 * shift
        match condition.content:
            case "repeated":
                values = few[generator.integers(len(few), size=size)]
            case "constant columns":
                values[:, constant] = few[0, constant]
            case "constant":
                values[:] = few[0]
            case "distinct":
                pass
        features.append((condition.scale * values).astype(np.float32))
    labels = [number % 2 for number in range(len(features))]
    return BagDataset.from_arrays(features, labels, class_names=("background", "planted"))


class _Hostile(Callback):
    """Sets the lengthscale and makes inducing points equal as training begins.

    Inducing patches are chosen in the first epoch: these become equal after it.
    """

    def __init__(self, condition: Condition) -> None:
        self.condition = condition
        self.is_due = True

    def on_fit_start(self, progress: FitProgress) -> None:
        model = progress.model
        if isinstance(model, SGPMIL):
            if self.condition.lengthscale != OWN:
                set_lengthscale(model.gp.kernel, self.condition.lengthscale)
            if model.patches is None:
                equalise(model, self.condition.points)

    def on_epoch_end(self, progress: FitProgress) -> None:
        model = progress.model
        if isinstance(model, SGPMIL) and model.patches is not None and self.is_due:
            equalise(model, self.condition.points)
            self.is_due = False


@torch.no_grad()
def equalise(model: SGPMIL, points: Points) -> None:
    """Make inducing points or patches equal: the second half to the first, or all to one."""
    if points == "distinct":
        return
    rows = model.gp.points if model.patches is None else model.patches.features
    half = len(rows) // 2
    if points == "half equal":
        rows[half : 2 * half] = rows[:half].clone()
    else:
        rows[:] = rows[0].clone()


@dataclass(frozen=True)
class StabilityRun:
    """A judged training.

    Args:
        design: Name of the design.
        condition: The condition.
        verdict: Its outcome.
        seconds: Seconds that it took.
    """

    design: str
    condition: Condition
    verdict: Verdict
    seconds: float


def read_stability(out: Path, count: int | None = None) -> list[StabilityRun]:
    """Read the judged trainings of a folder, of the first conditions where a number is given."""
    runs = []
    for path in sorted(out.glob("stability/*/run-seed*.json")):
        found = read_result(path)
        if found is not None and is_done(found) and (count is None or found["seed"] < count):
            condition = Condition(**found["settings"]["condition"])
            verdict = Verdict(**{one.name: found[one.name] for one in fields(Verdict)})
            runs.append(StabilityRun(found["variant"], condition, verdict, found["seconds"]))
    return runs
