"""Study of Lipschitz bounds: the published figure, and the largest gradients found.

The command ``sgpmil experiment lipschitz`` calls `compare_lipschitz`. It trains SGPMIL, AGP and
ABMIL on data sets and seeds, multiplies their layers as the SGPMIL paper does, and checks the bound
of each path by the largest gradient that an ascent finds.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sgpmil.bags.files import write_text
from sgpmil.errors import SettingsError
from sgpmil.evaluation.lipschitz import lipschitz_paths
from sgpmil.evaluation.lipschitz_gradients import SLIDE, largest_gradients, slide_gradient
from sgpmil.experiments.ablation_designs import PAPER_TRAINING
from sgpmil.experiments.ablation_study import AblationOptions, choose_ablation_sets
from sgpmil.experiments.design_study import DesignJob, DesignStudyOptions, plan_designs
from sgpmil.experiments.jobs import is_done, read_result
from sgpmil.experiments.seed_spreads import csv_text, markdown_table
from sgpmil.experiments.study import job_errors, run_jobs
from sgpmil.experiments.uncertainty_designs import Design, train_design
from sgpmil.experiments.uncertainty_study import parse_seeds
from sgpmil.report.figures.canvas import save_figure
from sgpmil.report.figures.study_figures import BoundRow, bounds_figure

PUBLISHED = {"agp": (105.5, 25.9), "paper": (38.1, 9.1)}
"""Mean and standard deviation over the folds of CAMELYON16 in the SGPMIL paper."""

ALL_LAYERS = "all layers"

LIPSCHITZ_DESIGNS = (
    Design("default"),
    Design("points", settings={"preset": "points"}),
    Design("paper", settings={"preset": "paper"}, training=PAPER_TRAINING),
    Design("agp", "agp"),
    Design("abmil", "abmil"),
)
"""Designs of the study."""

_MOST_BAGS = 20
"""Test bags that gradients of whole slides are looked for in."""


@dataclass(frozen=True, kw_only=True)
class LipschitzStudyOptions(DesignStudyOptions):
    """Options of `compare_lipschitz`.

    Args:
        sets: Only this data set (digits, colon, camelyon); may be repeated. By default digits and
            colon, where they are.
        design: Only this design (default, points, paper, agp, abmil); may be repeated.
        out: Folder of the results.
    """

    sets: tuple[str, ...] = ()
    design: tuple[str, ...] = ()
    out: Path = Path("runs/lipschitz")


def plan_lipschitz(options: LipschitzStudyOptions) -> list[DesignJob]:
    """Return the runs.

    Raises:
        SettingsError: A name, a seed or the device does not exist.
        BagError: Data are missing.
    """
    known = [design.name for design in LIPSCHITZ_DESIGNS]
    for name in options.design:
        if name not in known:
            raise SettingsError(f"Expected `design` among {', '.join(known)}, but got '{name}'.")
    designs = [d for d in LIPSCHITZ_DESIGNS if not options.design or d.name in options.design]
    chosen = [d.shortened() for d in designs] if options.quick else designs
    places = AblationOptions(data=options.data, sets=options.sets, quick=options.quick)
    sets = choose_ablation_sets(places)
    return plan_designs(sets, chosen, parse_seeds(options.seeds), options.device)


def compare_lipschitz(
    options: LipschitzStudyOptions,
    jobs: Sequence[DesignJob] | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train and bound every design. A stopped study resumes where it left off.

    Args:
        options: Data sets, designs and seeds.
        jobs: Jobs of `plan_lipschitz`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_lipschitz(options) if jobs is None else jobs
    results = run_jobs(
        jobs,
        options.out,
        work=_TrainAndBound,
        executor=options.executor(options.jobs, needs_shared_folder=True),
        conditions={"quick": options.quick},
        overwrite=options.overwrite,
        progress=show_progress,
    )
    return job_errors(jobs, results)


class _TrainAndBound:
    """Trains designs, bounds their paths and looks for large gradients."""

    def __call__(self, job: DesignJob) -> dict[str, Any]:
        data = job.data_set.draw(job.seed)
        model = train_design(job.design, data, device=job.device).model
        test = data.test.bags
        return {
            "bounds": {path.name: path.bound for path in lipschitz_paths(model)},
            "gradients": {
                **largest_gradients(model, seed=job.seed),
                SLIDE: slide_gradient(model, test.subset(test.slide_ids[:_MOST_BAGS])),
            },
        }


@dataclass(frozen=True)
class BoundedRun:
    """A bounded model.

    Args:
        data_set: Name of the data set.
        design: Name of the design.
        seed: Seed.
        bounds: Bound of each path.
        gradients: Largest gradient norm found of each path, and of the slide.
    """

    data_set: str
    design: str
    seed: int
    bounds: Mapping[str, float]
    gradients: Mapping[str, float]

    @property
    def exceeded(self) -> tuple[str, ...]:
        """Paths whose bound a gradient exceeds, but for rounding: none, if bounds are right."""
        return tuple(
            name
            for name, bound in self.bounds.items()
            if self.gradients.get(name, 0.0) > bound * (1 + 1e-6)
        )


def read_bounded(out: Path, seeds: Sequence[int] | None = None) -> list[BoundedRun]:
    """Read the finished runs of a folder."""
    runs = []
    for path in sorted(out.glob("*/*/run-seed*.json")):
        found = read_result(path)
        if found is not None and is_done(found) and (seeds is None or found["seed"] in seeds):
            names = (found["data_set"], found["variant"], found["seed"])
            runs.append(BoundedRun(*names, found["bounds"], found["gradients"]))
    return runs


def write_lipschitz_tables(out: Path, seeds: Sequence[int]) -> tuple[Path, ...]:
    """Write ``lipschitz.md``, ``runs.csv`` and a figure a data set.

    Args:
        out: Folder of the results.
        seeds: Seeds that the tables are of.

    Raises:
        OSError: A file cannot be written.
    """
    runs = read_bounded(out, seeds)
    lines = [
        "# Lipschitz bounds",
        "",
        "Mean ± standard deviation over seeds, of standardised features. *Found*: the largest "
        "gradient norm that an ascent found; it must not exceed the bound of its path. *Slide*: "
        "the largest gradient norm of the class logits of a test bag in one of its instances, "
        "which the product of all layers does not bound.",
    ]
    files = []
    for data_set in dict.fromkeys(run.data_set for run in runs):
        here = [run for run in runs if run.data_set == data_set]
        lines += ["", f"## {data_set}", "", f"![Bounds](lipschitz-{data_set}.png)", ""]
        lines += _table(here)
        broken = [f"{r.design}, seed {r.seed}: {', '.join(r.exceeded)}" for r in here if r.exceeded]
        lines += ["", f"Bounds that a gradient exceeds: {'; '.join(broken) or 'none'}."]
        path = out / f"lipschitz-{data_set}.png"
        save_figure(bounds_figure(_rows(here), f"Lipschitz bounds, {data_set}"), path)
        files.append(path)
    texts = {
        out / "lipschitz.md": "\n".join(lines) + "\n",
        out / "runs.csv": csv_text([_flat(run) for run in runs]),
    }
    for path, text in texts.items():
        write_text(path, text)
    return (*texts, *files)


def _designs(runs: Sequence[BoundedRun]) -> list[str]:
    there = {run.design for run in runs}
    return [design.name for design in LIPSCHITZ_DESIGNS if design.name in there]


def _table(runs: Sequence[BoundedRun]) -> list[str]:
    rows = []
    for name in _designs(runs):
        own = [run for run in runs if run.design == name]
        for path in own[0].bounds:
            rows.append(
                [
                    name,
                    path,
                    str(len(own)),
                    _spread([run.bounds[path] for run in own]),
                    _spread([run.gradients[path] for run in own if path in run.gradients]),
                    "{:g} ± {:g}".format(*PUBLISHED[name])
                    if path == ALL_LAYERS and name in PUBLISHED
                    else "",
                ]
            )
        rows.append([name, SLIDE, str(len(own)), "–", _spread([r.gradients[SLIDE] for r in own])])
        rows[-1].append("")
    header = ["design", "path", "seeds", "bound", "found", "published (CAMELYON16)"]
    return markdown_table(header, rows)


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean = statistics.fmean(values)
    return f"{mean:.3g}" + (f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else "")


def _rows(runs: Sequence[BoundedRun]) -> list[BoundRow]:
    rows = []
    for name in _designs(runs):
        own = [run for run in runs if run.design == name]
        for path in own[0].bounds:
            found = [run.gradients[path] for run in own if path in run.gradients]
            if path == ALL_LAYERS:
                found = [run.gradients[SLIDE] for run in own]
            shown = f"{path} (found: slide)" if path == ALL_LAYERS else path
            rows.append(BoundRow(shown, name, [run.bounds[path] for run in own], found))
    return rows


def _flat(run: BoundedRun) -> dict[str, Any]:
    return {
        "data_set": run.data_set,
        "design": run.design,
        "seed": run.seed,
        **{f"bound, {path}": value for path, value in run.bounds.items()},
        **{f"found, {path}": value for path, value in run.gradients.items()},
    }
