"""`sgpmil bench`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgpmil.cli.options import Device, Overwrite
from sgpmil.cli.output import console, counting, grid
from sgpmil.errors import RunFolderError

if TYPE_CHECKING:
    from sgpmil.experiments.bench import BenchRow, BenchSettings, GrowthPoint

__all__ = ["bench"]

_SCALE_ON_CPU = 0.05


def bench(
    model: Annotated[
        list[str] | None, typer.Option(help="A model; may be repeated. All by default.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(help="Factor of the bags' sizes; 1 on a GPU and 0.05 on a CPU by default."),
    ] = None,
    train_bags: Annotated[int, typer.Option(help="Bags to train on.")] = 270,
    test_bags: Annotated[int, typer.Option(help="Bags to predict.")] = 129,
    features: Annotated[int, typer.Option(help="Features of an instance.")] = 1024,
    bags_per_step: Annotated[
        int | None, typer.Option(help="Bags of a training step; each model's own by default.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Arithmetic of the dense layers: 32, bf16, 16 or 64.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Epochs and passes to take the median of.")] = 5,
    growth: Annotated[
        bool, typer.Option(help="Also measure sgpmil as bags grow and become more.")
    ] = True,
    largest: Annotated[
        int, typer.Option(help="Instances of the largest bag that is predicted for that.")
    ] = 100_000,
    device: Device = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("bench"),
    overwrite: Overwrite = False,
) -> None:
    """Time training and prediction of every model, and their memory, on bags of random features.

    The bags are 270 to train on and 129 to predict, of exp(N(log 2200, 0.6)) instances each, from
    200 to 12,000.
    """
    from sgpmil.experiments.bench import BenchSettings, write_bench
    from sgpmil.experiments.bench import bench as run_bench
    from sgpmil.experiments.workload import Workload
    from sgpmil.models import list_models
    from sgpmil.models.registry import resolve_settings
    from sgpmil.processes import compute_device

    if (out / "bench.json").exists() and not overwrite:
        raise RunFolderError(f"{out} holds a bench already. Replace it with --overwrite.")
    where = compute_device(device or "auto")
    for name in model or ():
        resolve_settings(name, {})  # refuses names that it does not know
    if scale is None:
        scale = 1.0 if where.type == "cuda" else _SCALE_ON_CPU
    settings = BenchSettings(
        models=tuple(model or list_models()),
        workload=Workload(train_bags, test_bags, features, scale),
        bags_per_step=bags_per_step,
        precision=precision,
        repeats=repeats,
        growth_model="sgpmil" if growth else None,
        largest=largest,
        device=where.type,
    )
    with counting("Measuring", len(settings.models) + growth, "models") as bar:
        task = bar.task_ids[0]
        rows, points = run_bench(
            settings,
            where,
            on_start=lambda what: bar.update(task, description=f"Measuring {what}"),
            on_row=lambda _: bar.advance(task),
        )
        bar.update(task, completed=len(settings.models) + growth)
    write_bench(out / "bench.json", settings, rows, points)
    _print(settings, rows)
    written = ["bench.json"]
    if points:
        _draw(out / "growth.png", points, where.type)
        written.append("growth.png")
    console.print(f"Written to {shlex.quote(str(out))}: {', '.join(written)}")


def _print(settings: "BenchSettings", rows: "list[BenchRow]") -> None:
    load = settings.workload
    grid(
        f"{load.train_bags} training and {load.test_bags} test bags, sizes × {load.scale:g}, "
        f"{settings.device}, median of {settings.repeats}",
        ["model", "parameters", "train s/epoch", "predict s", "GiB, both"],
        [
            (row.model, row.error, "", "", "")
            if row.error is not None
            else (
                row.model,
                f"{row.parameters:,}",
                _seconds(row.train_seconds),
                _seconds(row.predict_seconds),
                f"{_gibibytes(row.train_bytes)}, {_gibibytes(row.predict_bytes)}",
            )
            for row in rows
        ],
    )


def _draw(path: Path, points: "list[GrowthPoint]", device: str) -> None:
    from sgpmil.report.figures.bench_figures import GrowthCurve, write_growth_figure

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
    where = "GPU" if device == "cuda" else "CPU"
    write_growth_figure(path, curves, f"SGPMIL on a {where}; dotted: linear")


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _gibibytes(value: int | None) -> str:
    return "–" if value is None else f"{value / 2**30:.2f}"
