"""Study of ablations: SGPMIL with one setting changed at a time, and the grid of the paper.

The command ``sgpmil experiment ablations`` calls `compare_ablations`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.ablation_designs import ABLATIONS, AXES, AblationRow
from sgpmil.experiments.design_study import (
    DesignJob,
    DesignStudyOptions,
    DrawnSet,
    plan_designs,
    run_designs,
)
from sgpmil.experiments.stress_sets import camelyon_set, digits_set
from sgpmil.experiments.uncertainty_sets import UncertaintySet, uncertainty_set
from sgpmil.experiments.uncertainty_study import parse_seeds

ABLATION_SETS = ("digits", "colon", "camelyon")
"""Names of the data sets; ``camelyon`` needs no data, but a GPU."""

_PLACES = {"digits": "mnist", "colon": "colon", "camelyon": ""}
_BASES = (*AXES, "grid")


@dataclass(frozen=True, kw_only=True)
class AblationOptions(DesignStudyOptions):
    """Options of `compare_ablations`.

    Args:
        sets: Only this data set (digits, colon, camelyon); may be repeated. By default digits and
            colon, where they are.
        base: Only ablations of this base (default, paper), or the paper's table (grid); may be
            repeated.
        axis: Only this axis, such as kernel; may be repeated.
        out: Folder of the results.
    """

    sets: tuple[str, ...] = ()
    base: tuple[str, ...] = ()
    axis: tuple[str, ...] = ()
    out: Path = Path("runs/ablations")


def choose_rows(options: AblationOptions) -> list[AblationRow]:
    """Return the rows of the options.

    Raises:
        SettingsError: A base or an axis is unknown, or no row has both.
    """
    known = dict.fromkeys(row.axis for row in ABLATIONS if row.base != "grid")
    for name, values, choices in (
        ("base", options.base, _BASES),
        ("axis", options.axis, tuple(known)),
    ):
        for value in values:
            if value not in choices:
                raise SettingsError(
                    f"Expected `{name}` among {', '.join(choices)}, but got '{value}'."
                )
    rows = [
        row
        for row in ABLATIONS
        if (not options.base or row.base in options.base)
        and (not options.axis or row.axis in options.axis)
    ]
    if not rows:
        raise SettingsError(
            "Expected ablations of the bases and axes asked for, but there are none. Leave out "
            "`axis`, or choose the base default or paper."
        )
    return rows


def choose_ablation_sets(options: AblationOptions) -> list[DrawnSet]:
    """Return the data sets of the options: those asked for, or digits and colon if there.

    Raises:
        SettingsError: A name is unknown.
        BagError: The data of a set are missing, or of all.
    """
    for name in options.sets:
        if name not in ABLATION_SETS:
            raise SettingsError(
                f"Expected data sets (`sets`) among {', '.join(ABLATION_SETS)}, but got '{name}'."
            )
        if _PLACES[name] and not (options.data / _PLACES[name]).exists():
            raise BagError(
                f"Expected the data of '{name}' at {options.data / _PLACES[name]}, but there are "
                "none. Give the folder that holds them with `data`."
            )
    there = [n for n in ("digits", "colon") if (options.data / _PLACES[n]).exists()]
    names = [name for name in ABLATION_SETS if name in (options.sets or there)]
    if not names:
        raise BagError(
            f"Expected mnist/ or colon/ in {options.data}, but there is neither. Give the folder "
            "that holds them with `data`, or choose the set camelyon, which needs none."
        )
    return [_set(name, options) for name in names]


def _set(name: str, options: AblationOptions) -> DrawnSet:
    if name == "camelyon":
        return camelyon_set(quick=options.quick)
    if name == "digits":
        return digits_set(options.data, quick=options.quick)
    return DrawnSet(
        "colon",
        partial(_draw_colon, options.data.absolute()),
        "Colon nuclei; the seed chooses one of five folds, and the training.",
        place=options.data / "colon",
        independent=False,
    )


def _draw_colon(data: Path, seed: int) -> UncertaintySet:
    return uncertainty_set("colon", seed, data=data)


def plan_ablations(options: AblationOptions) -> list[DesignJob]:
    """Return the runs; rows that are the same design share them.

    Raises:
        SettingsError: A name, a seed or the device does not exist.
        BagError: Data are missing.
    """
    designs = {row.design.name: row.design for row in choose_rows(options)}
    chosen = [d.shortened() if options.quick else d for d in designs.values()]
    # Joint draws take by far the longest: last, in case there is no time for them.
    ordered = sorted(chosen, key=lambda d: d.settings.get("sampling") == "full")
    sets = choose_ablation_sets(options)
    return plan_designs(sets, ordered, parse_seeds(options.seeds), options.device)


def compare_ablations(
    options: AblationOptions,
    jobs: Sequence[DesignJob] | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train and measure every ablation. A stopped study resumes where it left off.

    Args:
        options: Data sets, ablations and seeds.
        jobs: Jobs of `plan_ablations`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_ablations(options) if jobs is None else jobs
    return run_designs(options, jobs, show_progress=show_progress)
