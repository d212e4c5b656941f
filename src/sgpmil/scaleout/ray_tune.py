"""Searches by Ray Tune: trials as jobs on a cluster, of which bad ones are stopped early.

Ray Tune schedules: asynchronous successive halving (ASHA) stops trials that are worse than others
at the same step, and Optuna, where it is installed, or chance chooses the next values.
"""

import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import ConcurrencyLimiter
from ray.tune.search.basic_variant import BasicVariantGenerator

from sgpmil.scaleout.ray_cluster import MOST_ATTEMPTS, RayExecutor
from sgpmil.scaleout.search import Dimension, Objective, Progress, Trial

_STATE = "search"
"""Folder of Ray Tune's state, within that of the search."""

_TRIALS = "trials"

_made: dict[str, Objective] = {}
"""The function of this worker, which keeps what trials share."""


@dataclass(frozen=True)
class SearchPlan:
    """A search.

    Args:
        space: The settings to search.
        trials: Number of trials.
        most_steps: Steps of the longest trial.
        prune: Whether to stop trials that are worse than others at the same step.
        least_steps: Steps before which none is stopped.
        seed: Seed of the values.
        cpus: CPU cores of a trial.
        gpus: GPUs of a trial; a fraction lets trials share one.
    """

    space: Sequence[Dimension]
    trials: int
    most_steps: int
    prune: bool = True
    least_steps: int = 1
    seed: int = 0
    cpus: float = 1.0
    gpus: float = 0.0


def search(
    start: Callable[[], Objective],
    plan: SearchPlan,
    folder: Path,
    *,
    address: str | None = None,
    resume: bool = False,
    on_change: Callable[[Sequence[Trial]], None] = lambda trials: None,
) -> tuple[Trial, ...]:
    """Search for the values of the least loss.

    Ctrl-C ends the trials that run; a resumed search continues them where they stopped.

    Args:
        start: Makes the function that runs a trial; called once in every worker.
        plan: The space and the trials.
        folder: Folder of the search, which all workers see.
        address: Address of the cluster, as of `connect`.
        resume: Whether to go on with a search that was stopped.
        on_change: Called with all trials so far, when one begins, reports or ends.

    Returns:
        All trials, in the order in which they began.

    Raises:
        ClusterError: The cluster does not answer, or has no machine that a trial fits on.
        KeyboardInterrupt: The search was stopped.
    """
    RayExecutor(address, cpus=plan.cpus, gpus=plan.gpus).require_room()
    place = str(folder.absolute())
    space = tuple(plan.space)
    trainable = tune.with_resources(
        tune.with_parameters(_run_trial, start=start, space=space, folder=place),
        {"cpu": plan.cpus, "gpu": plan.gpus},
    )
    watch = _Watch(on_change, space)
    with _quiet(), watch.listening():
        if resume and tune.Tuner.can_restore(f"{place}/{_STATE}"):
            tuner = tune.Tuner.restore(
                f"{place}/{_STATE}", trainable, resume_unfinished=True, resume_errored=True
            )
        else:
            tuner = tune.Tuner(
                trainable,
                tune_config=_tune_config(plan),
                run_config=tune.RunConfig(
                    name=_STATE,
                    storage_path=place,
                    failure_config=tune.FailureConfig(max_failures=MOST_ATTEMPTS - 1),
                    callbacks=[_Listener()],
                    verbose=0,
                ),
                param_space=None if _is_guided() else _ray_space(plan.space),
            )
        tuner.fit()
    if len(watch.trials) < plan.trials or not all(trial.is_done for trial in watch.trials):
        raise KeyboardInterrupt
    return watch.trials


def _run_trial(
    config: Mapping[str, Any],
    start: Callable[[], Objective],
    space: Sequence[Dimension],
    folder: str,
) -> None:
    """Run a trial in a worker of Ray Tune."""
    torch.set_num_threads(max(1, int(ray.get_runtime_context().get_assigned_resources()["CPU"])))
    if folder not in _made:
        _made[folder] = start()
    context = tune.get_context()

    def report(progress: Progress) -> None:
        tune.report({"step": progress.step, "loss": progress.loss, "error": progress.error})

    values = _values(config, space)
    _made[folder](values, Path(folder) / _TRIALS / context.get_trial_id(), report)


def _values(config: Mapping[str, Any], space: Sequence[Dimension]) -> dict[str, Any]:
    """Return the values of a configuration, in which a choice is its number."""

    def value(one: Dimension) -> Any:
        found = config[one.key]
        if one.choices:
            return one.choices[int(found)]
        return int(found) if one.is_whole else float(found)

    return {one.key: value(one) for one in space if one.key in config}


def _tune_config(plan: SearchPlan) -> tune.TuneConfig:
    scheduler: Any = FIFOScheduler()
    if plan.prune and plan.most_steps > plan.least_steps:
        scheduler = ASHAScheduler(
            time_attr="step",
            max_t=plan.most_steps,
            grace_period=plan.least_steps,
            reduction_factor=3,
            stop_last_trials=False,
        )
    algorithm: Any = BasicVariantGenerator(random_state=plan.seed)
    if _is_guided():
        from ray.tune.search.optuna import OptunaSearch

        room = RayExecutor(cpus=plan.cpus, gpus=plan.gpus).slots()
        guided = OptunaSearch(_optuna_space(plan.space), seed=plan.seed, metric="loss", mode="min")
        # Values are chosen when there is room for a trial: by then more is known.
        algorithm = ConcurrencyLimiter(guided, max_concurrent=max(1, room))
    return tune.TuneConfig(
        metric="loss",
        mode="min",
        num_samples=plan.trials,
        scheduler=scheduler,
        search_alg=algorithm,
        reuse_actors=True,
        trial_dirname_creator=lambda trial: str(trial.trial_id),
    )


def _is_guided() -> bool:
    try:
        import optuna  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def _ray_space(space: Sequence[Dimension]) -> dict[str, Any]:
    def domain(one: Dimension) -> Any:
        if one.choices:
            return tune.choice(list(range(len(one.choices))))
        if one.is_whole:
            kind = tune.lograndint if one.is_log else tune.randint
            return kind(int(one.low), int(one.high) + 1)
        return (tune.loguniform if one.is_log else tune.uniform)(one.low, one.high)

    return {one.key: domain(one) for one in space}


def _optuna_space(space: Sequence[Dimension]) -> dict[str, Any]:
    from optuna import distributions

    def distribution(one: Dimension) -> Any:
        if one.choices:
            return distributions.CategoricalDistribution(list(range(len(one.choices))))
        if one.is_whole:
            return distributions.IntDistribution(int(one.low), int(one.high), log=one.is_log)
        return distributions.FloatDistribution(one.low, one.high, log=one.is_log)

    return {one.key: distribution(one) for one in space}


@dataclass
class _Watch:
    """How far the trials are."""

    on_change: Callable[[Sequence[Trial]], None]
    space: Sequence[Dimension]
    trials: tuple[Trial, ...] = ()

    def see(self, trials: Sequence[RayTrial]) -> None:
        self.trials = tuple(_trial(one, self.space) for one in trials)
        self.on_change(self.trials)

    @contextmanager
    def listening(self) -> Iterator[None]:
        _watches.append(self)
        try:
            yield
        finally:
            _watches.remove(self)


_watches: list[_Watch] = []
"""The searches of this process. Ray Tune pickles its callbacks, which so cannot refer to them."""


class _Listener(tune.Callback):
    """Tells the search of this process how far the trials are."""

    def _tell(self, trials: Sequence[RayTrial]) -> None:
        for watch in _watches:
            watch.see(trials)

    def on_trial_start(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, **_: Any
    ) -> None:
        self._tell(trials)

    def on_trial_result(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, result: Any, **_: Any
    ) -> None:
        self._tell(trials)

    def on_trial_complete(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, **_: Any
    ) -> None:
        self._tell(trials)

    def on_experiment_end(self, trials: list[RayTrial], **_: Any) -> None:
        self._tell(trials)


def _trial(found: RayTrial, space: Sequence[Dimension]) -> Trial:
    last = found.last_result or {}
    error = str(last.get("error", ""))
    if found.status == RayTrial.ERROR:
        error = error or "Workers died with it, or it failed: see its error.txt."
    progress = None
    if "loss" in last or error:
        loss = math.inf if error else float(last["loss"])
        progress = Progress(int(last.get("step", 0)), loss, error)
    return Trial(
        found.trial_id,
        _values(found.config, space),
        progress,
        # Trials that Ctrl-C ends are terminated, too, but not done.
        is_done=found.status == RayTrial.ERROR or bool(last.get("done")),
        place=str(last.get("hostname", "")) if found.status == RayTrial.RUNNING else "",
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave it to the caller to say what happens."""
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
    with suppress(ModuleNotFoundError):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("ray", "ray.tune")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
