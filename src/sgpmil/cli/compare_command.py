"""`sgpmil compare`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sgpmil.cli.options import Overwrite
from sgpmil.cli.output import console, grid
from sgpmil.errors import PredictionError, RunFolderError

if TYPE_CHECKING:
    from sgpmil.evaluation.comparison.result import Comparison

__all__ = ["compare"]


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Two or more runs, or predictions of one test set (a folder, .parquet or .csv "
            "each). The first is the reference. NAME=PATH gives a run another name."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("comparison"),
    metric: Annotated[
        list[str] | None,
        typer.Option(help="Metric to compare, such as auc; may be given several times."),
    ] = None,
    alpha: Annotated[float, typer.Option(help="Level of significance.")] = 0.05,
    overwrite: Overwrite = False,
) -> None:
    """Say whether one run is better than others, on the same test slides."""
    from sgpmil.evaluation.comparison.compare import compare as compare_runs
    from sgpmil.evaluation.comparison.tables import write_comparison_tables
    from sgpmil.evaluation.metrics import get_metric
    from sgpmil.runs.results import open_results

    paths = _named(runs)
    for name in metric or []:
        get_metric(name)  # Refuses an unknown one before large files are read.
    if (out / "tables" / "comparison.md").exists() and not overwrite:
        raise RunFolderError(f"{out} holds a comparison already. Replace it with --overwrite.")
    folds = {}
    for name, path in paths.items():
        found = open_results(path)
        folds[name] = found.evaluate()
        if found.unfinished:
            total = len(found.folds) + len(found.unfinished)
            console.print(f"{name}: {len(found.unfinished)} of {total} folds are not done.")
    comparison = compare_runs(folds, metrics=metric, alpha=alpha)
    _print(comparison)
    # Of an earlier comparison, nothing stays beside the new one.
    for old in ("tables/delong.csv", "figures/comparison.png"):
        (out / old).unlink(missing_ok=True)
    written = list(write_comparison_tables(out / "tables", comparison))
    if len(comparison.folds) > 1:
        from sgpmil.report.figures.comparison_figures import write_comparison_figure

        written.append(write_comparison_figure(out / "figures", comparison))
    console.print("Written to " + ", ".join(str(path) for path in written))


def _named(runs: list[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for text in runs:
        name, equals, rest = text.partition("=")
        if equals and name and rest and not Path(text).exists():
            path = Path(rest)
        else:
            path = Path(text)
            # Of a file that every fold has, the folder is the telling name.
            is_common = path.name == "predictions.parquet"
            name = path.resolve().parent.name if is_common else path.resolve().name
            name = name if path.is_dir() or is_common else path.stem
        if name in named:
            raise PredictionError(
                f"Expected a name of its own for each run, but got '{name}' twice. "
                f"Name them, as in {name}-1={named[name]}."
            )
        named[name] = path
    return named


def _print(comparison: "Comparison") -> None:
    from sgpmil.evaluation.comparison.cells import delong_rows, fixed, p_value_rows, table_cell
    from sgpmil.evaluation.metrics import get_metric

    rows = []
    for metric in comparison.metrics:
        row = [f"{get_metric(metric).name} {get_metric(metric).arrow}".strip()]
        for run in comparison.runs:
            cell = table_cell(comparison, run, metric)
            spread = f" ± {fixed(cell.sd)}" if len(comparison.folds) > 1 else ""
            row.append(f"{fixed(cell.mean)}{spread}{' ★' if cell.is_marked else ''}")
        rows.append(row)
    num = len(comparison.folds)
    grid(f"{num} folds" if num > 1 else "One fold", ["metric", *comparison.runs], rows)
    if comparison.tests:
        starred = any("★" in cell for row in rows for cell in row)
        verdict = (
            f"★: {comparison.reference} is better than this run"
            if starred
            else f"{comparison.reference} is not significantly better than any run in any metric"
        )
        console.print(f"{verdict}, at p < {comparison.alpha:g} ({comparison.marking}).")
        adjusted = "; adjusted (Holm) in parentheses" if len(comparison.runs) > 2 else ""
        title = f"P of whether {comparison.reference} is better, across folds{adjusted}"
        grid(title, *p_value_rows(comparison))
    if comparison.auc_tests:
        grid("DeLong's one-sided test of the AUC", *delong_rows(comparison))
    for note in comparison.notes:
        console.print(note)
