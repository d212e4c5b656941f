"""Time and memory that every model needs to train and predict, on random bags."""

import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch

from sgpmil.bags.bag import BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import write_text
from sgpmil.errors import RunFolderError, SettingsError
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.bench_table import BenchRow, write_bench_table
from sgpmil.experiments.peak_memory import PeakMemory
from sgpmil.experiments.study import sentence
from sgpmil.gpu.resident import where_it_fits
from sgpmil.models.contract import MILModel
from sgpmil.models.registry import build_model, list_models, resolve_settings
from sgpmil.options import Options
from sgpmil.processes import compute_device
from sgpmil.progress import progress_bar
from sgpmil.report.figures.bench_figures import GrowthCurve, write_growth_figure
from sgpmil.shapes import Int
from sgpmil.training.fit import fit
from sgpmil.training.settings import resolve_training


@dataclass(frozen=True)
class Workload:
    """Number and sizes of the bags of a benchmark.

    Args:
        train_bags: Bags to train on.
        test_bags: Bags to predict.
        in_dim: Number of features of an instance.
        scale: Factor of the bags' sizes.
        seed: Seed of sizes and features.

    Raises:
        SettingsError: A number is not positive.
    """

    train_bags: int = 270
    test_bags: int = 129
    in_dim: int = 1024
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, lowest in (("train_bags", 2), ("test_bags", 1), ("in_dim", 1)):
            if getattr(self, name) < lowest:
                raise SettingsError(f"Expected {name} >= {lowest}, but got {getattr(self, name)}.")
        if not 0 < self.scale <= 100:
            raise SettingsError(f"Expected scale above 0 and up to 100, but got {self.scale}.")

    def train(self) -> BagDataset:
        """Draw the bags to train on."""
        sizes = bag_sizes(self.train_bags, self.seed, self.scale)
        return random_dataset(sizes, self.in_dim, self.seed)

    def test(self) -> BagDataset:
        """Draw the bags to predict."""
        sizes = bag_sizes(self.test_bags, self.seed + 1, self.scale)
        return random_dataset(sizes, self.in_dim, self.seed + 1)


def bag_sizes(num_bags: int, seed: int, scale: float = 1.0) -> Int[np.ndarray, " B"]:
    r"""Draw $\exp N(\log 2200, 0.6^2)$ instances a bag, cut off at 200 and 12,000, times a scale.

    Example:
        >>> int(bag_sizes(270, 0).sum())
        694241
    """
    normal = torch.randn(num_bags, generator=torch.Generator().manual_seed(seed))
    sizes = (math.log(2200) + 0.6 * normal).exp().int().clamp(200, 12_000)
    return np.maximum(1, np.rint(scale * sizes.numpy())).astype(np.int64)


def random_dataset(sizes: Int[np.ndarray, " B"], in_dim: int, seed: int) -> BagDataset:
    """Draw bags of two classes, alternately, whose features are noise."""
    generator = torch.Generator().manual_seed(seed)
    features = [torch.randn(int(size), in_dim, generator=generator) for size in sizes]
    labels = [i % 2 for i in range(len(sizes))]
    return BagDataset.from_arrays(features, labels, class_names=("no", "yes"))


Growth = Literal["instances", "bags"]
_BAG_SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
_BAG_COUNTS = (16, 32, 64, 128, 256)
_GROWING_BAG = 500
"""Instances of each bag where their number grows."""
_SCALE_ON_CPU = 0.05
_WARM_UP = {"cpu": 1, "cuda": 2}
"""Epochs before the first that counts: on a GPU, passes may be recorded in the second."""


@dataclass(frozen=True)
class BenchSettings:
    """Settings of a benchmark.

    Args:
        models: Names of the models.
        workload: The bags.
        bags_per_step: Bags of a step; None takes each model's own number.
        precision: Arithmetic of the dense layers; None takes each model's own.
        repeats: Epochs, and passes over the test bags, of which the median counts.
        growth_model: Model whose time and memory are measured as bags grow; None for none.
        largest: Instances of the largest bag that is predicted then; training stops at a tenth.
        device: ``auto``, ``cpu`` or ``gpu``.

    Raises:
        SettingsError: A number is not positive, or the precision unknown.
    """

    models: tuple[str, ...]
    workload: Workload = Workload()
    bags_per_step: int | None = None
    precision: str | None = None
    repeats: int = 5
    growth_model: str | None = "sgpmil"
    largest: int = 100_000
    device: str = "auto"

    def __post_init__(self) -> None:
        for name in ("repeats", "largest"):
            if getattr(self, name) < 1:
                raise SettingsError(f"Expected {name} >= 1, but got {getattr(self, name)}.")
        for name in self.models:  # refused before anything is measured
            resolve_training(model_of(name)[0], self.training)

    @property
    def training(self) -> dict[str, Any]:
        """Training settings that every model takes instead of its own."""
        given = {"bags_per_step": self.bags_per_step, "precision": self.precision}
        return {name: value for name, value in given.items() if value is not None}


def model_of(name: str) -> tuple[str, dict[str, str]]:
    """Divide ``MODEL:PRESET`` into a model and its settings.

    Example:
        >>> model_of("sgpmil:paper"), model_of("abmil")
        (('sgpmil', {'preset': 'paper'}), ('abmil', {}))
    """
    model, _, preset = name.partition(":")
    return model, {"preset": preset} if preset else {}


@dataclass(frozen=True)
class GrowthPoint:
    """Time and memory at one size.

    Args:
        along: Quantity that grows: instances of a bag, or number of bags.
        size: That number.
        job: ``train`` for forward and backward, or ``predict``.
        seconds: Median seconds.
        bytes: Peak memory.
    """

    along: Growth
    size: int
    job: Literal["train", "predict"]
    seconds: float
    bytes: int | None


def bench(
    settings: BenchSettings,
    device: torch.device,
    *,
    on_start: Callable[[str], None] = lambda _: None,
    on_row: Callable[[BenchRow], None] = lambda _: None,
) -> tuple[list[BenchRow], list[GrowthPoint]]:
    """Measure models one after another in this process."""
    train = where_it_fits(settings.workload.train(), device)
    test = where_it_fits(settings.workload.test(), device)
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in settings.models:
            on_start(name)
            rows.append(_row(name, train, test, settings, device))
            on_row(rows[-1])
        points: list[GrowthPoint] = []
        if settings.growth_model is not None:
            on_start(f"{settings.growth_model}, growing bags")
            points = list(_growth(settings.growth_model, settings, device))
    return rows, points


def write_bench(
    path: Path, settings: BenchSettings, rows: Sequence[BenchRow], points: Sequence[GrowthPoint]
) -> None:
    """Write the measurements and a description of the machine as JSON."""
    content: dict[str, Any] = {
        "machine": _machine(),
        "settings": asdict(settings),
        "models": [asdict(row) for row in rows],
        "growth": [asdict(point) for point in points],
    }
    write_text(path, json.dumps(content, indent=1))


def _row(
    name: str, train: BagDataset, test: BagDataset, settings: BenchSettings, device: torch.device
) -> BenchRow:
    ends: list[float] = []
    training: dict[str, Any] = {
        "epochs": _WARM_UP[device.type] + settings.repeats,
        "balanced_sampling": False,  # every bag once an epoch
        "select": "last",
        "patience": 0,
        "device": "gpu" if device.type == "cuda" else "cpu",
        **settings.training,
    }
    own, given = model_of(name)
    try:
        with PeakMemory(device, with_kept=True) as training_peak:
            model = fit(
                train,
                model=own,
                model_settings=given,
                training=training,
                on_epoch=lambda _: ends.append(_now(device)),
            )
        with PeakMemory(device) as predicting_peak:
            model.to(device)
            passes = [_timed(lambda: _predict(model, test, device), device)]
        passes = [
            _timed(lambda: _predict(model, test, device), device) for _ in range(settings.repeats)
        ]
    except Exception as error:  # noqa: BLE001 - one model's failure is not the others'
        return BenchRow(name, error=sentence(error))
    epochs = [after - before for before, after in pairwise(ends)][-settings.repeats :]
    return BenchRow(
        name,
        model.num_parameters(),
        median(epochs),
        (min(epochs), max(epochs)),
        median(passes),
        training_peak.bytes,
        predicting_peak.bytes,
    )


def _growth(name: str, settings: BenchSettings, device: torch.device) -> Iterable[GrowthPoint]:
    in_dim = settings.workload.in_dim
    torch.manual_seed(0)
    model = build_model(name, in_dim=in_dim, num_classes=2).to(device)
    for size in (n for n in _BAG_SIZES if n <= settings.largest):
        bags = where_it_fits(random_dataset(np.array([size]), in_dim, seed=0), device)
        yield _point(model, bags, "instances", size, "predict", settings.repeats, device)
        if 10 * size <= settings.largest:
            yield _point(model, bags, "instances", size, "train", settings.repeats, device)
    for count in _BAG_COUNTS:
        bags = where_it_fits(random_dataset(np.full(count, _GROWING_BAG), in_dim, seed=0), device)
        yield _point(model, bags, "bags", count, "predict", settings.repeats, device)
        yield _point(model, bags, "bags", count, "train", settings.repeats, device)


def _point(
    model: MILModel,
    bags: BagDataset,
    along: Growth,
    size: int,
    job: Literal["train", "predict"],
    repeats: int,
    device: torch.device,
) -> GrowthPoint:
    def work() -> None:
        if job == "predict":
            _predict(model, bags, device)
        else:
            _step(model, bags, device)

    with PeakMemory(device) as peak:
        work()
    passes = [_timed(work, device) for _ in range(max(1, repeats // 2))]
    return GrowthPoint(along, size, job, median(passes), peak.bytes)


def _predict(model: MILModel, bags: BagDataset, device: torch.device) -> None:
    predict(model, bags, with_instances=False, device=device, warn=False)


def _step(model: MILModel, bags: BagDataset, device: torch.device) -> None:
    batch = BagBatch.pack(list(bags)).to(device)
    model.train()
    model.zero_grad()
    model.loss(model(batch), batch.labels, num_bags=len(bags)).total.backward()


def _timed(work: Callable[[], None], device: torch.device) -> float:
    start = _now(device)
    work()
    return _now(device) - start


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found["cpu"] = next((x.split(":")[1].strip() for x in lines if "model name" in x), None)
    return found


@dataclass(frozen=True, kw_only=True)
class BenchOptions(Options):
    """Options of `bench_models`.

    Args:
        model: A model, or MODEL:PRESET; may be repeated. By default all, and sgpmil:paper.
        scale: Factor of the bags' sizes; 1 on a GPU and 0.05 on a CPU by default.
        train_bags: Bags to train on.
        test_bags: Bags to predict.
        features: Features of an instance.
        bags_per_step: Bags of a training step; each model's own by default.
        precision: Arithmetic of the dense layers: 32, bf16, 16 or 64.
        repeats: Epochs and passes to take the median of.
        growth: Measure also how sgpmil grows with the size and the number of bags.
        largest: Instances of the largest bag of that measurement.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        out: Folder to write to.
        overwrite: Replace an existing measurement.
    """

    model: tuple[str, ...] = ()
    scale: float | None = None
    train_bags: int = 270
    test_bags: int = 129
    features: int = 1024
    bags_per_step: int | None = None
    precision: str | None = None
    repeats: int = 5
    growth: bool = True
    largest: int = 100_000
    device: str = "auto"
    out: Path = Path("bench")
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Measurements that `bench_models` wrote.

    Args:
        settings: The settings.
        rows: Time and memory of each model.
        files: Files that were written.
    """

    settings: BenchSettings
    rows: tuple[BenchRow, ...]
    files: tuple[Path, ...]


def bench_models(options: BenchOptions, *, show_progress: bool = False) -> BenchResult:
    """Measure time and memory of models on random bags; write them with a figure.

    Raises:
        RunFolderError: The folder has a measurement already.
        SettingsError: There is no such model or device, or a number is out of range.
    """
    path = options.out / "bench.json"
    if path.exists() and not options.overwrite:
        raise RunFolderError(
            f"{options.out} holds a bench already. Replace it with `overwrite=True`."
        )
    device = compute_device(options.device)
    for name in options.model:
        resolve_settings(*model_of(name))  # refuses unknown names
    scale = options.scale
    if scale is None:
        scale = 1.0 if device.type == "cuda" else _SCALE_ON_CPU
    settings = BenchSettings(
        models=options.model or tuple(sorted([*list_models(), "sgpmil:paper"])),
        workload=Workload(options.train_bags, options.test_bags, options.features, scale),
        bags_per_step=options.bags_per_step,
        precision=options.precision,
        repeats=options.repeats,
        growth_model="sgpmil" if options.growth else None,
        largest=options.largest,
        device=device.type,
    )
    num_parts = len(settings.models) + options.growth
    with progress_bar("Measuring", num_parts, "models", show=show_progress) as bar:
        rows, points = bench(
            settings,
            device,
            on_start=lambda name: bar.show(state=name),
            on_row=lambda _: bar.advance(),
        )
    write_bench(path, settings, rows, points)
    load = settings.workload
    about = (
        f"{load.train_bags} bags to train on and {load.test_bags} to predict, sizes × "
        f"{load.scale:g}, on {_machine_name(device)}; median of {settings.repeats}."
    )
    files = [path, *write_bench_table(options.out, rows, about)]
    if points:
        files.append(options.out / "growth.png")
        _draw_growth(files[-1], points, "GPU" if device.type == "cuda" else "CPU")
    return BenchResult(settings, tuple(rows), tuple(files))


def _machine_name(device: torch.device) -> str:
    found = _machine()
    if device.type == "cuda":
        return str(found["gpu"])
    threads = torch.get_num_threads()
    return f"{threads} thread{'' if threads == 1 else 's'} of {found.get('cpu') or 'a CPU'}"


def _draw_growth(path: Path, points: Sequence[GrowthPoint], device: str) -> None:
    curves = []
    for along, job in sorted({(p.along, p.job) for p in points}):
        mine = [p for p in points if (p.along, p.job) == (along, job)]
        curves.append(
            GrowthCurve(
                along,
                job,
                [p.size for p in mine],
                [p.seconds for p in mine],
                [float("nan") if p.bytes is None else p.bytes / 2**30 for p in mine],
            )
        )
    write_growth_figure(path, curves, f"SGPMIL on a {device}; dotted: linear")
