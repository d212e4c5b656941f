"""Study of uncertainty: designs over data sets and seeds, one file for each finished run.

The command ``sgpmil experiment uncertainty`` calls `compare_uncertainty`. Every seed draws training
and test bags of its own and fixes the training. To choose a design, look at seeds 0 to 9; report
seeds 10 to 19, which nobody has looked at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.jobs import JobFile
from sgpmil.experiments.study import job_errors, run_jobs
from sgpmil.experiments.uncertainty_designs import (
    DESIGNS,
    Design,
    find_design,
    parse_design,
    read_designs,
    train_design,
)
from sgpmil.experiments.uncertainty_measures import measure
from sgpmil.experiments.uncertainty_sets import (
    UNCERTAINTY_SETS,
    DrawOptions,
    UncertaintySet,
    set_fingerprint,
    uncertainty_set,
)
from sgpmil.processes import compute_device
from sgpmil.scaleout.executors import PlaceOptions

_FOLD = "run"
_PHANTOMS = "phantoms"
_PACKAGES = ("shapely", "cv2", "efficientnet_lite_pytorch")
"""Packages that draw and embed phantoms."""
_MOST_SEEDS = 1000


@dataclass(frozen=True, kw_only=True)
class UncertaintyOptions(PlaceOptions):
    """Options of `compare_uncertainty`.

    Args:
        data: Folder of data sets: mnist/ and colon/; sets that are not there are left out.
        out: Folder of the results.
        cache: Folder in which the features of phantoms are kept.
        sets: Only this data set; may be repeated. By default all but those for a GPU.
        row: Only this design or model; may be repeated.
        design: A design of your own: NAME:key=value,... with settings of the model, of the
            training (training.epochs=60), model, members and dropout_samples; may be repeated.
        designs: YAML file of designs.
        reference: Design that the others are compared with.
        seeds: Seeds, such as 0-9 to choose a design and 10-19 to report it.
        jobs: Processes on this machine, of one thread each.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        quick: Few and small bags and two epochs, to test whether everything works. Needs a folder
            of its own (``out``).
        dry_run: List the runs and stop.
        overwrite: Run jobs again whose results are of other settings.
    """

    data: Path = Path("data")
    out: Path = Path("runs/uncertainty")
    cache: Path = Path("runs/cache")
    sets: tuple[str, ...] = ()
    row: tuple[str, ...] = ()
    design: tuple[str, ...] = ()
    designs: Path | None = None
    reference: str = "abmil"
    seeds: str = "0-9"
    jobs: int = 2
    device: str = "auto"
    quick: bool = False
    dry_run: bool = False
    overwrite: bool = False


@dataclass(frozen=True)
class UncertaintyJob:
    """A design on a data set with a seed.

    Args:
        design: The design.
        data_set: Name of the data set.
        seed: Seed of bags and training.
        fingerprint: Digest of the set.
        data: Folder of data sets.
        cache: Folder of cached features.
        device: Device to train on.
        quick: Whether bags are few and small.
    """

    design: Design
    data_set: str
    seed: int
    fingerprint: str
    data: Path
    cache: Path
    device: str
    quick: bool

    @property
    def file(self) -> JobFile:
        """The file of its result, with the settings that the result must have."""
        return JobFile(
            data_set=self.data_set,
            variant=self.design.name,
            fold=_FOLD,
            seed=self.seed,
            settings={**self.design.resolved(), "data": self.fingerprint},
        )


def parse_seeds(text: str) -> tuple[int, ...]:
    """Read seeds: numbers and ranges, separated by commas.

    Raises:
        SettingsError: The text is none of these.

    Example:
        >>> parse_seeds("0-2,7")
        (0, 1, 2, 7)
    """
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise SettingsError(f"Expected seeds such as 0-9 or 0,3,5 (`seeds`), but got '{text}'.")
        found += range(int(first), int(last or first) + 1)
    if not 0 < len(found) <= _MOST_SEEDS or max(found) >= _MOST_SEEDS:
        raise SettingsError(
            f"Expected seeds from 0 to {_MOST_SEEDS - 1} (`seeds`), but got '{text}'."
        )
    return tuple(dict.fromkeys(found))


def choose_designs(options: UncertaintyOptions) -> list[Design]:
    """Return the designs of the options, the reference among them.

    Raises:
        SettingsError: A design is unknown, impossible or there twice.
    """
    own = [parse_design(text) for text in options.design]
    own += read_designs(options.designs) if options.designs is not None else []
    names = [design.name for design in own]
    rows = options.row or (() if own else tuple(DESIGNS))
    wanted = dict.fromkeys((*(() if options.reference in names else (options.reference,)), *rows))
    chosen = [*(find_design(name) for name in wanted if name not in names), *own]
    if len({design.name for design in chosen}) < len(chosen):
        raise SettingsError("Expected every design once, but got a name twice.")
    return [design.shortened() for design in chosen] if options.quick else chosen


def choose_uncertainty_sets(options: UncertaintyOptions) -> list[str]:
    """Return the data sets of the options: those asked for, or all that are there.

    Raises:
        SettingsError: A name is unknown.
        BagError: The data of a set that was asked for are missing.
    """
    known = UNCERTAINTY_SETS
    for name in options.sets:
        if name not in known:
            raise SettingsError(
                f"Expected data sets (`sets`) among {', '.join(known)}, but got '{name}'."
            )
        if name != _PHANTOMS and not _is_there(name, options.data):
            raise BagError(
                f"Expected the data of '{name}' at {options.data / known[name].place}, but there "
                "are none. Give the folder that holds them with `data`."
            )
    if options.sets:
        return [name for name in known if name in options.sets]
    return [
        name
        for name in known
        if not name.startswith("planted-full") and _is_there(name, options.data)
    ]


def _is_there(name: str, data: Path) -> bool:
    place = UNCERTAINTY_SETS[name].place
    if name == _PHANTOMS:
        return all(find_spec(package) is not None for package in _PACKAGES)
    return not place or (data / place).exists()


def plan_uncertainty(options: UncertaintyOptions) -> list[UncertaintyJob]:
    """Return the runs: a data set after another, and of each all designs of a seed first.

    Raises:
        SettingsError: A design, data set, seed or device does not exist.
        BagError: The data of a set that was asked for are missing.
    """
    compute_device(options.device)  # once, not in every job
    designs, seeds = choose_designs(options), parse_seeds(options.seeds)
    jobs = []
    for name in choose_uncertainty_sets(options):
        fingerprint = set_fingerprint(name, options.data)
        jobs += [
            UncertaintyJob(
                design=design,
                data_set=name,
                seed=seed,
                fingerprint=fingerprint,
                data=options.data.absolute(),  # workers may have another folder
                cache=options.cache.absolute(),
                device=options.device,
                quick=options.quick,
            )
            for seed in seeds
            for design in designs
        ]
    for job in jobs:
        job.file.check()
    return jobs


def compare_uncertainty(
    options: UncertaintyOptions,
    jobs: Sequence[UncertaintyJob] | None = None,
    *,
    show_progress: bool = False,
) -> dict[str, str]:
    """Train and measure every design. A stopped study resumes where it left off.

    Args:
        options: Data sets, designs and seeds.
        jobs: Jobs of `plan_uncertainty`, where they are planned already.
        show_progress: Whether to show a bar on standard error.

    Returns:
        The error of each run that failed.

    Raises:
        RunFolderError: The folder has results of other settings, or another process writes to it.
    """
    jobs = plan_uncertainty(options) if jobs is None else jobs
    of_phantoms = [job.seed for job in jobs if job.data_set == _PHANTOMS]
    if of_phantoms:  # here, so that processes do not all do the same
        from sgpmil.experiments.uncertainty_phantoms import prepare_phantoms

        draw = DrawOptions(of_phantoms[0], options.data, options.cache, options.quick)
        prepare_phantoms(of_phantoms, draw)
    results = run_jobs(
        jobs,
        options.out,
        work=_TrainAndMeasure,
        executor=options.executor(options.jobs, needs_shared_folder=True),
        conditions={"quick": options.quick},
        overwrite=options.overwrite,
        progress=show_progress,
    )
    return job_errors(jobs, results)


class _TrainAndMeasure:
    """Trains and measures designs, and keeps the data set that it drew last."""

    drawn: tuple[str, int] | None = None

    def __call__(self, job: UncertaintyJob) -> dict[str, Any]:
        if (job.data_set, job.seed) != self.drawn:
            self.data: UncertaintySet = uncertainty_set(
                job.data_set, job.seed, data=job.data, cache=job.cache, quick=job.quick
            )
            self.drawn = (job.data_set, job.seed)
        trained = train_design(job.design, self.data, device=job.device)
        return {
            "device": compute_device(job.device).type,
            "parameters": sum(model.num_parameters() for model in trained.models),
            "num_train": len(self.data.train),
            "num_test": len(self.data.test.bags),
            "columns": measure(trained, self.data),
        }
