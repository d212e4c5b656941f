"""Plan of a cohort's study: its options, data, runs and jobs.

Each row of the table is a run of its own, one for each seed, which every other command reads.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from sgpmil.bags.steps import LabelOptions
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError, SettingsError, SplitError
from sgpmil.experiments.cohorts.cohort import (
    Cohort,
    Row,
    choose_rows,
    find_cohort,
    row_training,
)
from sgpmil.experiments.cohorts.costs import fold_seconds
from sgpmil.experiments.cohorts.data import CohortData, read_cohort
from sgpmil.experiments.cohorts.measures import MeasuredFold
from sgpmil.models.contract import Recordable
from sgpmil.models.registry import build_model
from sgpmil.processes import compute_device
from sgpmil.runs.description import is_run
from sgpmil.runs.run import Run
from sgpmil.scaleout.executors import PlaceOptions
from sgpmil.slides.annotations.folder import AnnotationFolder, AnnotationOptions
from sgpmil.training.settings import TrainingSettings

RUNS, MEASURES, STORE = "runs", "measures", "bags"
"""Folders of a study."""

ENCODER = "uni_v1"
"""Encoder of the paper: UNI."""


@dataclass(frozen=True, kw_only=True)
class CohortOptions(PlaceOptions, LabelOptions, AnnotationOptions):
    """Options of `run_cohort`.

    Args:
        cohort: Cohort of the paper: camelyon16, tcga-nsclc, panda or bracs.
        splits: CLAM splits as published with the paper. Without them, folds of the same kind are
            made.
        out: Folder of the study; runs/<cohort> by default.
        model: Only this row of the table (abmil, clam-sb, transmil, dgrmil, bayesmil, mixmil, agp,
            sgpmil-paper, sgpmil), or another model; may be repeated.
        fold: Run only this fold; may be repeated.
        seed: Seed of the training; may be repeated. By default 2025, and on BRACS five seeds.
        epochs: Epochs of every model instead of its own; 1 tests whether everything works. Needs
            a folder of its own (``out``).
        prevalence: Class shares that the probabilities are for. As in the paper all classes are
            equally frequent; training takes those of the training slides.
        slides: Folder of the slide files, which maps are drawn on.
        show: Name of a test slide to draw maps of all models of; may be repeated. By default the
            positive slides of the first fold that are predicted best, in the middle, and worst.
        maps: Draw maps and prototypes.
        jobs: Processes on this machine, of one thread each.
        device: Device: auto, cpu, gpu, or one of several GPUs, such as cuda:1.
        skip_missing: Leave out slides without a label, labels without a slide, and unknown slides
            of the splits, instead of stopping.
        dry_run: Check the files, say what is missing, and estimate time, memory and disk space.
        overwrite: Train the chosen rows anew.
    """

    cohort: str
    splits: Path | None = None
    out: Path | None = None
    model: tuple[str, ...] = ()
    fold: tuple[str, ...] = ()
    seed: tuple[int, ...] = ()
    epochs: int | None = None
    prevalence: str = "balanced"
    slides: Path | None = None
    show: tuple[str, ...] = ()
    maps: bool = True
    jobs: int = 1
    device: str = "auto"
    skip_missing: bool = False
    dry_run: bool = False
    overwrite: bool = False

    @property
    def folder(self) -> Path:
        """Folder of the study."""
        return self.out or Path("runs") / self.cohort

    @property
    def with_regions(self) -> AnnotationOptions:
        """The annotations, by the cohort's own rule where no other is named."""
        regions = find_cohort(self.cohort).regions
        if self.annotations is None or self.regions is not None or not regions:
            return self
        return replace(self, regions=regions)


@dataclass(frozen=True)
class StudyRun:
    """A run of a study: a row of the table with one seed.

    Args:
        row: The row.
        seed: Seed of the training.
        name: Name of its folder.
    """

    row: Row
    seed: int
    name: str

    def path(self, out: Path) -> Path:
        """Return its folder."""
        return out / RUNS / self.name

    def measured(self, out: Path, fold: str) -> Path:
        """Return the file of the measures of a fold."""
        return out / MEASURES / self.name / f"{fold}.json"


@dataclass(frozen=True)
class CohortJob:
    """Folds of a run that one process trains.

    Args:
        run: The run.
        folds: Names of the folds.
    """

    run: StudyRun
    folds: tuple[str, ...]

    @property
    def key(self) -> str:
        """Name of the job."""
        which = f"fold {self.folds[0]}" if len(self.folds) == 1 else f"{len(self.folds)} folds"
        return f"{self.run.name}, {which}"


@dataclass(frozen=True)
class CohortPlan:
    """Everything that the jobs of a study share.

    Args:
        cohort: The cohort.
        data: Bags and folds.
        runs: All runs.
        folds: Names of the folds to train.
        out: Folder of the study.
        epochs: Epochs of every model; each row's own where None.
        prevalence: Class shares that the probabilities are for.
        device: Device to train on.
        annotations: Annotations that label instances.
        min_coverage: Least share of a patch that is positive.
        allow_missing: Whether slides of the splits without a bag are left out.
    """

    cohort: Cohort
    data: CohortData
    runs: tuple[StudyRun, ...]
    folds: tuple[str, ...]
    out: Path
    epochs: int | None = None
    prevalence: str = "balanced"
    device: str = "auto"
    annotations: AnnotationFolder | None = None
    min_coverage: float = 0.5
    allow_missing: bool = False

    def is_finished(self, run: StudyRun, fold: str) -> bool:
        """Return whether a fold is trained, tested and measured."""
        path = run.path(self.out)
        if not is_run(path):
            return False
        opened = Run.open(path)
        folds = opened.folds
        # One of other settings is trained: the run then refuses them, and says which differ.
        if fold not in folds or not self._has_our_settings(run, opened):
            return False
        found = MeasuredFold.read(run.measured(self.out, fold))
        place = "" if self.annotations is None else str(self.annotations.folder.resolve())
        is_current = found is not None and (not place or found.annotations == place)
        return folds[fold].is_done and is_current

    def training(self, run: StudyRun) -> TrainingSettings:
        """Return the training of a run."""
        return row_training(
            run.row,
            self.cohort,
            seed=run.seed,
            epochs=self.epochs,
            prevalence=self.prevalence,
            device=self.device,
        )

    def _has_our_settings(self, run: StudyRun, opened: Run) -> bool:
        ours = json.loads(json.dumps(asdict(self.training(run))))
        theirs = dict(opened.settings.get("training", {}))
        for training in (ours, theirs):
            training.pop("device", None)  # where it ran, not what
        bags = opened.settings.get("data_fingerprint")
        return ours == theirs and bags == self._bags_fingerprint

    @cached_property
    def _bags_fingerprint(self) -> str:
        return self.data.bags.fingerprint()

    def jobs(self, *, side_by_side: bool = True) -> list[CohortJob]:
        """Make the jobs that are not done yet: fold by fold, in each the longest first.

        So that a study that is stopped has the same folds of all models.

        Args:
            side_by_side: On a GPU, whether folds of models whose steps are recorded are trained
                side by side in one process, which is the fastest on one machine.
        """
        # The device that is asked for may be on another machine.
        device = compute_device(self.device if side_by_side else "auto")
        bags, first = self.data.bags, self.data.folds[0]
        sizes = dict(zip(bags.slide_ids, bags.num_instances, strict=True))
        recorded = recorded_rows([r.row for r in self.runs], bags.feature_dim, self.cohort)
        made: list[tuple[int, float, CohortJob]] = []
        for run in self.runs:
            todo = [fold for fold in self.folds if not self.is_finished(run, fold)]
            (_, one) = fold_seconds(run.row, self.cohort, first, sizes, device.type, self.epochs)
            is_recorded = device.type == "cuda" and run.row.name in recorded
            if side_by_side and is_recorded and len(todo) > 1:
                made.append((0, one * len(todo), CohortJob(run, tuple(todo))))
            else:
                order = {fold: i for i, fold in enumerate(self.folds)}
                made += [(order[fold], one, CohortJob(run, (fold,))) for fold in todo]
        return [job for _, _, job in sorted(made, key=lambda item: (item[0], -item[1]))]


def plan_cohort(options: CohortOptions) -> CohortPlan:
    """Read the data of a study and list its runs.

    Raises:
        SettingsError: A model or a device does not exist.
        SgpmilError: The data cannot be used.
    """
    cohort = find_cohort(options.cohort)
    rows = choose_rows(options.model)
    if options.is_local:
        compute_device(options.device)  # once, not in every job
    annotations = options.with_regions.open_annotations()
    if not options.features.exists():
        raise BagError(
            f"Expected features of {cohort.title} at {options.features}, but there is nothing. "
            f"Make them from slides: {extract_command(cohort, options)}"
        )
    out = options.folder.absolute()
    data = read_cohort(
        cohort,
        options,
        splits=options.splits,
        store=out / STORE,
        skip_missing=options.skip_missing,
    )
    names = tuple(fold.name for fold in data.folds)
    unknown = [fold for fold in options.fold if fold not in names]
    if unknown:
        raise SplitError(
            f"Expected folds (`fold`) among {', '.join(names)}, but got '{unknown[0]}'. Choose "
            "among these."
        )
    seeds = options.seed or cohort.seeds
    if len(set(seeds)) < len(seeds):
        raise SettingsError("Expected every seed once, but got one twice. Name it once.")
    return CohortPlan(
        cohort=cohort,
        data=data,
        runs=study_runs(rows, seeds),
        folds=tuple(name for name in names if not options.fold or name in options.fold),
        out=out,
        epochs=options.epochs,
        prevalence=options.prevalence,
        device=options.device,
        annotations=annotations,
        min_coverage=options.min_coverage,
        allow_missing=options.skip_missing,
    )


def study_runs(rows: Sequence[Row], seeds: Sequence[int]) -> tuple[StudyRun, ...]:
    """List the runs of rows: one each, or one for each seed."""
    if len(seeds) == 1:
        return tuple(StudyRun(row, seeds[0], row.name) for row in rows)
    return tuple(StudyRun(row, seed, f"{row.name}-seed{seed}") for row in rows for seed in seeds)


def recorded_rows(rows: Sequence[Row], in_dim: int, cohort: Cohort) -> tuple[str, ...]:
    """Name the rows whose steps a GPU records, and whose folds it trains side by side."""
    names = []
    for row in {row.name: row for row in rows}.values():
        target = ClassTarget.numbered(len(cohort.classes))
        model = build_model(row.model, in_dim=in_dim, target=target, **row.settings)
        if model.recordable is Recordable.STEPS:
            names.append(row.name)
    return tuple(names)


def extract_command(cohort: Cohort, options: CohortOptions) -> str:
    """Return the command that makes the features of a cohort from its slides."""
    slides = "SLIDES" if options.slides is None else str(options.slides)
    return (
        f"sgpmil extract {shlex.quote(slides)} --out extracted --encoder {ENCODER} "
        f"--mag {cohort.magnification} --patch-size {cohort.patch_size}"
    )
