"""Table and figure of the study of stability: failures of each design, in all and by level."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sgpmil.bags.files import write_text
from sgpmil.experiments.seed_spreads import csv_text, markdown_table
from sgpmil.experiments.stability_study import (
    LEVELS,
    OWN,
    STABILITY_DESIGNS,
    StabilityRun,
    read_stability,
)
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.study_figures import Share, shares_figure

KINDS = ("not finite", "error", "predictions")
"""Kinds of failure."""

HIGH_LOSS = 10.0
"""Mean loss of the last epoch above which a training is far from having learned anything."""


def failures(runs: Sequence[StabilityRun], kind: str = "") -> int:
    """Count the failures of runs, of one kind or of all."""
    found = [run.verdict.failure for run in runs]
    return sum(bool(one) and kind in ("", one) for one in found)


def high_losses(runs: Sequence[StabilityRun]) -> int:
    """Count the trainings that end with a loss above `HIGH_LOSS`."""
    return sum((run.verdict.last_loss or 0.0) > HIGH_LOSS for run in runs)


def write_stability_tables(out: Path, count: int) -> tuple[Path, ...]:
    """Write ``stability.md``, ``runs.csv`` and ``stability.png``.

    Args:
        out: Folder of the results.
        count: Number of conditions that the tables are of.

    Raises:
        OSError: A file cannot be written.
    """
    runs = read_stability(out, count)
    found = {
        name: [run for run in runs if run.design == name]
        for name in STABILITY_DESIGNS
        if any(run.design == name for run in runs)
    }
    lines = [
        "# Stability",
        "",
        "Failed trainings of each design: an error, a loss or a weight that is not finite, or a "
        "prediction that is not. A high loss at the end is no failure, but no success either.",
        "",
        *markdown_table(
            ["design", "trainings", "failed", *KINDS, f"loss above {HIGH_LOSS:g} at the end"],
            [
                [
                    name,
                    str(len(own)),
                    str(failures(own)),
                    *(str(failures(own, kind)) for kind in KINDS),
                    str(high_losses(own)),
                ]
                for name, own in found.items()
            ],
        ),
        "",
        "## By level",
        "",
        *_levels(found),
        "",
        "## Reasons",
        "",
        *_reasons(runs),
    ]
    texts = {
        out / "stability.md": "\n".join(lines) + "\n",
        out / "runs.csv": csv_text([_flat(run) for run in runs]),
    }
    for path, text in texts.items():
        write_text(path, text)
    if not runs:  # interrupted before the first was done
        return tuple(texts)
    save_figure(shares_figure(_shares(found), "Failed trainings"), out / "stability.png")
    return (*texts, out / "stability.png")


def _of_level(runs: Sequence[StabilityRun], factor: str, level: object) -> list[StabilityRun]:
    return [run for run in runs if getattr(run.condition, factor) == level]


def level_name(factor: str, level: object) -> str:
    """Return a level of a factor in words."""
    if factor == "lengthscale" and level == OWN:
        return "own"
    return f"{level:g}" if isinstance(level, float) else str(level)


def _levels(found: dict[str, list[StabilityRun]]) -> list[str]:
    rows = []
    for factor, levels in LEVELS.items():
        for level in levels:
            cells = []
            for own in found.values():
                here = _of_level(own, factor, level)
                cells.append(f"{failures(here)} of {len(here)}")
            rows.append([factor, level_name(factor, level), *cells])
    return markdown_table(["factor", "level", *found], rows)


def _reasons(runs: Sequence[StabilityRun]) -> list[str]:
    lines = [
        f"- {run.design}, seed {run.condition.seed}: {run.verdict.failure}: {run.verdict.reason}"
        for run in runs
        if run.verdict.failure
    ]
    return lines or ["No training failed."]


def _shares(found: dict[str, list[StabilityRun]]) -> list[Share]:
    shares = [Share("all", name, failures(own), len(own)) for name, own in found.items()]
    for factor, levels in LEVELS.items():
        for level in levels:
            for name, own in found.items():
                here = _of_level(own, factor, level)
                row = f"{factor}: {level_name(factor, level)}"
                shares.append(Share(row, name, failures(here), len(here)))
    return shares


def _flat(run: StabilityRun) -> dict[str, object]:
    names = {"design": run.design, "seconds": run.seconds}
    return {**names, **vars(run.verdict), **asdict(run.condition)}
