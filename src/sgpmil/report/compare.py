"""Comparison of runs on the same test slides, with tables and a figure.

The command ``sgpmil compare`` calls `compare_runs`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgpmil.errors import PredictionError, RunFolderError
from sgpmil.evaluation.comparison.compare import compare
from sgpmil.evaluation.comparison.result import Comparison
from sgpmil.evaluation.comparison.tables import write_comparison_tables
from sgpmil.evaluation.metrics import get_metric
from sgpmil.evaluation.provenance import joined_provenance
from sgpmil.options import Options
from sgpmil.report.figures.comparison_figures import write_comparison_figure
from sgpmil.runs.prediction_files import TABLE
from sgpmil.runs.results import Results, open_results


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """Options of `compare_runs`.

    Args:
        runs: Two or more runs, or predictions of one test set (a folder, .parquet or .csv each).
            The first is the reference. NAME=PATH gives a run another name.
        out: Folder to write to.
        metric: Metric to compare, such as auc; may be repeated.
        alpha: Level of significance.
        keep_seen: Measure slides that the model was trained on, too; they are left out else.
        overwrite: Replace an existing comparison.
    """

    runs: tuple[str, ...]
    out: Path = Path("comparison")
    metric: tuple[str, ...] = ()
    alpha: float = 0.05
    keep_seen: bool = False
    overwrite: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ComparedRuns:
    """A comparison of runs.

    Args:
        comparison: The tests.
        results: Predictions of each run; some folds may not be done.
        files: Tables and figures that were written.
        provenance: Origin of each run's predictions in a line, where known.
    """

    comparison: Comparison
    results: dict[str, Results]
    files: tuple[Path, ...]
    provenance: dict[str, str]


def compare_runs(options: CompareOptions) -> ComparedRuns:
    """Test whether one run is better than others on the same test slides.

    Raises:
        PredictionError: There are no predictions, they are of different slides, or two runs have
            one name.
        RunFolderError: The folder holds a comparison already.
        SettingsError: There is no such metric.
    """
    out, paths = options.out, _named(options.runs)
    for name in options.metric:
        get_metric(name)  # Refuses an unknown one before large files are read.
    if (out / "tables" / "comparison.md").exists() and not options.overwrite:
        raise RunFolderError(f"{out} holds a comparison already. Replace it with `overwrite=True`.")
    results = {
        name: open_results(path, keep_seen=options.keep_seen) for name, path in paths.items()
    }
    folds = {name: found.evaluate() for name, found in results.items()}
    origins = {
        name: joined_provenance([fold.table.provenance for fold in own])
        for name, own in folds.items()
    }
    comparison = compare(
        folds,
        metrics=options.metric or None,
        alpha=options.alpha,
    )
    # No file of an earlier comparison stays beside the new ones.
    for old in ("tables/delong.csv", "figures/comparison.png"):
        (out / old).unlink(missing_ok=True)
    files = list(write_comparison_tables(out / "tables", comparison))
    if len(comparison.folds) > 1:
        files.append(write_comparison_figure(out / "figures", comparison))
    lines = {name: one.line for name, one in origins.items() if one is not None and one.line}
    return ComparedRuns(comparison, results, tuple(files), lines)


def _named(runs: Sequence[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for text in runs:
        name, equals, rest = text.partition("=")
        if equals and name and rest and not Path(text).exists():
            path = Path(rest)
        else:
            path = Path(text)
            # Every fold has a file of this name: the folder's name says more.
            is_common = path.name == TABLE
            name = path.resolve().parent.name if is_common else path.resolve().name
            name = name if path.is_dir() or is_common else path.stem
        if name in named:
            raise PredictionError(
                f"Expected a name of its own for each run, but got '{name}' twice. "
                f"Name them, as in {name}-1={named[name]}."
            )
        named[name] = path
    return named
