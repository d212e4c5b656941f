"""Tracking of a run by TensorBoard, MLflow or Weights & Biases.

A tracker is a logger: it takes the metrics of each epoch, named ``fold-0/train_loss``, from
`sgpmil.cross_validate`. It also takes the settings of a run, and its results. Nothing leaves this
machine unless an environment variable of the tracker says so. A resumed run continues in the same
record: its name is in ``tracking.json`` of the run.

| tracker | where | a fold is |
|---|---|---|
| TensorBoard | ``tensorboard/`` in the run | a folder beside the others |
| MLflow | ``mlflow.db`` beside the run, or ``MLFLOW_TRACKING_URI`` | a run within the run |
| W&B | ``wandb/`` in the run; ``WANDB_MODE=online`` sends it | the start of a metric's name |
"""

import json
import math
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from sgpmil.bags.files import read_json, write_text
from sgpmil.errors import MissingPartError, SettingsError
from sgpmil.installation import install_command
from sgpmil.processes import is_first_process

TrackerName = Literal["tensorboard", "mlflow", "wandb"]

_RECORD = "tracking.json"
_PROJECT = "sgpmil"
_WHOLE = ""
"""Key of the metrics that belong to no fold."""


@dataclass(frozen=True, slots=True)
class TrackedResults:
    """Results of a run, as trackers take them.

    Args:
        folds: Test metrics of each fold.
        summary: Metrics of the run by name.
        figures: Image files by name.
        header: Names of the columns of the predictions.
        rows: Predictions of all test slides.
        files: Files to keep as they are.
    """

    folds: Mapping[str, Mapping[str, float]]
    summary: Mapping[str, float]
    figures: Mapping[str, Path]
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    files: Sequence[Path] = ()


class Tracker(ABC):
    """A record of a run. It is opened when the first epoch ends.

    Args:
        run: Folder of the run.
        settings: Its settings by name.
    """

    name: ClassVar[TrackerName]
    module: ClassVar[str]
    part: ClassVar[str]

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self.run = run
        self.settings = settings
        self._is_open = False

    def log_metrics(self, metrics: Mapping[str, int | float], step: int | None = None) -> None:
        """Record the metrics of an epoch. A name may start with a fold, such as ``fold-0/``."""
        self._require_open()
        folds: dict[str, dict[str, float]] = {}
        for name, value in metrics.items():
            fold, _, metric = name.rpartition("/")
            if metric != "epoch" and not math.isnan(value):
                folds.setdefault(fold, {})[metric] = float(value)
        for fold, values in folds.items():
            self._log(fold, values, step)

    def log_results(self, results: TrackedResults) -> None:
        """Record the results of the run."""
        self._require_open()
        for fold, values in results.folds.items():
            defined = {f"test_{k}": v for k, v in values.items() if not math.isnan(v)}
            self._log(f"fold-{fold}", defined, None)
        self._log(_WHOLE, {k: v for k, v in results.summary.items() if not math.isnan(v)}, None)
        self._log_files(results)

    def finalize(self, status: str) -> None:
        """End the record with ``success`` or ``failed``; a resume opens it again."""
        if self._is_open:
            self._is_open = False
            self._close(status == "success")

    def _require_open(self) -> None:
        if not self._is_open:
            self._open()
            self._is_open = True

    def _recorded(self) -> dict[str, str]:
        """Return the names by which the tracker knows this run and its folds."""
        known = self._all_recorded().get(self.name)
        return dict(known) if isinstance(known, dict) else {}

    def _all_recorded(self) -> dict[str, Any]:
        """Return the names of every tracker; none where they are missing or damaged."""
        try:
            found = read_json(self.run / _RECORD)
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _record(self, names: Mapping[str, str]) -> None:
        content = {**self._all_recorded(), self.name: dict(names)}
        write_text(self.run / _RECORD, json.dumps(content, indent=1))

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _log(self, fold: str, metrics: Mapping[str, float], step: int | None) -> None:
        """Record metrics of a fold, or of the run; without a step they are results."""

    @abstractmethod
    def _log_files(self, results: TrackedResults) -> None: ...

    @abstractmethod
    def _close(self, is_success: bool) -> None: ...


class TensorBoardTracker(Tracker):
    """A record in event files, one folder for the run and one for each fold."""

    name, module, part = "tensorboard", "tensorboard", "tracking"

    def _open(self) -> None:
        self._writers: dict[str, Any] = {}
        rows = [f"| {name} | {value} |" for name, value in self.settings.items()]
        self._writer(_WHOLE).add_text("settings", "\n".join(["| | |", "|---|---|", *rows]))

    def _writer(self, fold: str) -> Any:
        if fold not in self._writers:
            build = import_module("torch.utils.tensorboard").SummaryWriter
            self._writers[fold] = build(str(self.run / "tensorboard" / (fold or "run")))
        return self._writers[fold]

    def _log(self, fold: str, metrics: Mapping[str, float], step: int | None) -> None:
        writer = self._writer(fold)
        for name, value in metrics.items():
            writer.add_scalar(name, value, 0 if step is None else step)
        writer.flush()

    def _log_files(self, results: TrackedResults) -> None:
        from PIL import Image

        writer = self._writer(_WHOLE)
        for name, path in results.figures.items():
            with Image.open(path) as image:
                writer.add_image(name, np.asarray(image.convert("RGB")), dataformats="HWC")
        lines = [" | ".join(cells) for cells in (results.header, *results.rows)]
        lines.insert(1, " | ".join("---" for _ in results.header))
        writer.add_text("predictions", "\n".join(f"| {line} |" for line in lines))

    def _close(self, is_success: bool) -> None:
        del is_success  # an event file has no status
        for writer in self._writers.values():
            writer.close()


class MLflowTracker(Tracker):
    """A run of MLflow, with a run for each fold in it."""

    name, module, part = "mlflow", "mlflow", "mlflow"

    def _open(self) -> None:
        os.environ.setdefault("MLFLOW_ENABLE_TELEMETRY", "false")
        client = import_module("mlflow").MlflowClient
        runs = self.run.resolve().parent
        self._client = client(
            os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{runs / 'mlflow.db'}"
        )
        found = self._client.get_experiment_by_name(_PROJECT)
        if found is None:
            place = None
            if "MLFLOW_TRACKING_URI" not in os.environ:
                place = (runs / "mlflow-files").as_uri()
            self._experiment = self._client.create_experiment(_PROJECT, artifact_location=place)
        else:
            self._experiment = found.experiment_id
        self._runs = self._recorded()
        for run_id in self._runs.values():
            self._client.update_run(run_id, status="RUNNING")
        if _WHOLE not in self._runs:
            whole = self._run_id(_WHOLE)
            for name, value in self.settings.items():
                self._client.log_param(whole, name, value)

    def _run_id(self, fold: str) -> str:
        if fold not in self._runs:
            name = f"{self.run.name} {fold}".strip()
            tags = {"mlflow.parentRunId": self._runs[_WHOLE]} if fold else {}
            made = self._client.create_run(self._experiment, run_name=name, tags=tags)
            self._runs[fold] = made.info.run_id
            self._record(self._runs)
        return self._runs[fold]

    def _log(self, fold: str, metrics: Mapping[str, float], step: int | None) -> None:
        for name, value in metrics.items():
            self._client.log_metric(self._run_id(fold), name, value, step=step or 0)

    def _log_files(self, results: TrackedResults) -> None:
        whole = self._run_id(_WHOLE)
        for path in results.figures.values():
            self._client.log_artifact(whole, str(path), "figures")
        for path in results.files:
            self._client.log_artifact(whole, str(path), "tables")

    def _close(self, is_success: bool) -> None:
        for run_id in self._runs.values():
            self._client.set_terminated(run_id, "FINISHED" if is_success else "KILLED")


class WandbTracker(Tracker):
    """A run of Weights & Biases; each fold has its own charts."""

    name, module, part = "wandb", "wandb", "wandb"

    def _open(self) -> None:
        self._wandb = import_module("wandb")
        before = self._recorded()
        name = before.get("run") or uuid.uuid4().hex[:8]
        self._record({"run": name})
        self._opened = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=self.run.resolve().name,
            dir=str(self.run),
            id=name,
            resume="allow",
            config=dict(self.settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=self._wandb.Settings(silent=True, console="off"),
        )
        self._folds: set[str] = set()

    def _log(self, fold: str, metrics: Mapping[str, float], step: int | None) -> None:
        start = f"{fold}/" if fold else ""
        named = {f"{start}{name}": value for name, value in metrics.items()}
        if step is None:
            self._opened.summary.update(named)
            return
        if fold not in self._folds:  # Steps of one run only rise: each fold has epochs of its own.
            self._folds.add(fold)
            self._opened.define_metric(f"{start}epoch")
            self._opened.define_metric(f"{start}*", step_metric=f"{start}epoch")
        self._opened.log({**named, f"{start}epoch": step})

    def _log_files(self, results: TrackedResults) -> None:
        figures = {name: self._wandb.Image(str(path)) for name, path in results.figures.items()}
        table = self._wandb.Table(list(results.header), [list(row) for row in results.rows])
        self._opened.log({**figures, "predictions": table})

    def _close(self, is_success: bool) -> None:
        self._opened.finish(exit_code=0 if is_success else 1)


_TRACKERS: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (TensorBoardTracker, MLflowTracker, WandbTracker)
}


@contextmanager
def tracked(
    names: Sequence[str], run: Path, settings: Mapping[str, Any]
) -> Iterator[tuple[Tracker, ...]]:
    """Yield the trackers of a run, and end their records with the block.

    Args:
        names: ``tensorboard``, ``mlflow`` and ``wandb``, or none.
        run: Folder of the run. It may not exist yet.
        settings: Settings to record, by name.

    Raises:
        SettingsError: There is no such tracker.
        MissingPartError: The package of a tracker is not installed.
    """
    for name in names:
        if name not in _TRACKERS:
            raise SettingsError(
                f"Expected `track` to be one of {', '.join(get_args(TrackerName))}, but got "
                f"'{name}'."
            )
        if find_spec(_TRACKERS[name].module) is None:
            raise MissingPartError(
                f"Expected the package '{_TRACKERS[name].module}' to track a run, but it is not "
                f"installed. Install it with: {install_command(_TRACKERS[name].part)}."
            )
    # Where several processes train together, the first one keeps the record.
    kept = dict.fromkeys(names) if is_first_process() else ()
    trackers = tuple(_TRACKERS[name](run, settings) for name in kept)
    status = "failed"
    try:
        yield trackers
        status = "success"
    finally:
        for tracker in trackers:
            tracker.finalize(status)
