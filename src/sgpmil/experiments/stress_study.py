"""Study of stress: every model on few targets, wrong labels and few bags.

The command ``sgpmil experiment stress`` calls `compare_stress`. Every model passes equally often
over its bags, with the other training settings of its authors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.design_study import (
    DesignJob,
    DesignStudyOptions,
    DrawnSet,
    plan_designs,
    run_designs,
)
from sgpmil.experiments.stress_sets import (
    NOISE_BAGS,
    NOISE_PERCENT,
    TRAINING_BAGS,
    WITNESS_PERCENT,
    digits_set,
    witness_set,
)
from sgpmil.experiments.uncertainty_designs import Design
from sgpmil.experiments.uncertainty_study import parse_seeds

AGP_DIAGONAL = "agp-diagonal"
"""AGP with independent draws: the joint draw of 20,000 instances takes the cube of their number."""

STRESS_MODELS = (
    *("sgpmil", "abmil", "clam-sb", "dsmil", "mixmil", "mean-pool", "max-pool", AGP_DIAGONAL),
    *("bayesmil", "dgrmil", "transmil", "agp"),
)
"""Models of the study, those that train fast first."""

STRESS_AXES: dict[str, tuple[float, ...]] = {
    "witness": WITNESS_PERCENT,
    "noise": tuple(map(float, NOISE_PERCENT)),
    "bags": tuple(map(float, TRAINING_BAGS)),
}
"""Axes of the study and their values."""

EPOCHS = 40
MIXMIL_EPOCHS = 10 * EPOCHS
"""Epochs of MixMIL, whose step takes 64 bags where those of others take one to four."""


@dataclass(frozen=True, kw_only=True)
class StressOptions(DesignStudyOptions):
    """Options of `compare_stress`.

    Args:
        axis: Only this axis: witness (share of targets; needs a GPU), noise (wrong labels of 200
            bags of digits) or bags (20 to 500 training bags of digits); may be repeated. By
            default noise and bags, where mnist/ is among the data.
        value: Only this value of the axes, such as 0.3; may be repeated.
        model: Only this model; may be repeated.
        epochs: Epochs of every model; MixMIL, whose steps are of 64 bags, takes ten times as
            many.
        out: Folder of the results.
    """

    axis: tuple[str, ...] = ()
    value: tuple[float, ...] = ()
    model: tuple[str, ...] = ()
    epochs: int = EPOCHS
    out: Path = Path("runs/stress")


def stress_designs(options: StressOptions) -> list[Design]:
    """Return the designs of the options: models with their own settings and equal epochs.

    Raises:
        SettingsError: A model is not among those of the study, or epochs are below 1.
    """
    for name in options.model:
        if name not in STRESS_MODELS:
            raise SettingsError(
                f"Expected models (`model`) among {', '.join(STRESS_MODELS)}, but got '{name}'."
            )
    if options.epochs < 1:
        raise SettingsError(f"Expected epochs >= 1 (`epochs`), but got {options.epochs}.")
    designs = [
        _design(name, options.epochs)
        for name in STRESS_MODELS
        if not options.model or name in options.model
    ]
    return [design.shortened() for design in designs] if options.quick else designs


def _design(name: str, epochs: int) -> Design:
    if name == "mixmil":
        return Design(name, name, training={"epochs": epochs * MIXMIL_EPOCHS // EPOCHS})
    if name == AGP_DIAGONAL:
        return Design(name, "agp", {"sampling": "independent"}, {"epochs": epochs})
    return Design(name, name, training={"epochs": epochs})


def chosen_axes(options: StressOptions) -> list[str]:
    """Return the axes of the options.

    Raises:
        SettingsError: An axis is unknown.
        BagError: An axis needs MNIST, which is not there.
    """
    for name in options.axis:
        if name not in STRESS_AXES:
            raise SettingsError(
                f"Expected `axis` among {', '.join(STRESS_AXES)}, but got '{name}'."
            )
    axes = options.axis or ("noise", "bags")
    mnist = options.data / "mnist"
    if set(axes) - {"witness"} and not mnist.exists():
        raise BagError(
            f"Expected MNIST at {mnist} for wrong labels and numbers of bags, but there is none. "
            "Give the folder that holds mnist/ with `data`, or choose the axis witness, which "
            "needs none."
        )
    return [name for name in STRESS_AXES if name in axes]


def stress_set(axis: str, value: float, data: Path, *, quick: bool = False) -> DrawnSet:
    """Return the data set of a value of an axis; the axes noise and bags share one."""
    if axis == "witness":
        return witness_set(value, quick=quick)
    if axis == "noise":
        return digits_set(data, NOISE_BAGS, int(value), quick=quick)
    return digits_set(data, int(value), quick=quick)


def plan_stress(options: StressOptions) -> list[DesignJob]:
    """Return the runs.

    Raises:
        SettingsError: A name, a value, a seed or the device does not exist.
        BagError: MNIST is missing.
    """
    axes = chosen_axes(options)
    values = {axis: STRESS_AXES[axis] for axis in axes}
    known = {value for axis in axes for value in values[axis]}
    for one in options.value:
        if one not in known:
            shown = ", ".join(f"{v:g}" for v in sorted(known))
            raise SettingsError(f"Expected `value` among {shown}, but got {one:g}.")
    sets = {}
    for axis in axes:
        for value in values[axis]:
            if not options.value or value in options.value:
                found = stress_set(axis, value, options.data, quick=options.quick)
                sets[found.name] = found
    designs, seeds = stress_designs(options), parse_seeds(options.seeds)
    return plan_designs(list(sets.values()), designs, seeds, options.device)


def compare_stress(
    options: StressOptions,
    jobs: Sequence[DesignJob] | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train and measure every model. A stopped study resumes where it left off.

    Args:
        options: Axes, models and seeds.
        jobs: Jobs of `plan_stress`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_stress(options) if jobs is None else jobs
    return run_designs(options, jobs, show_progress=show_progress)
