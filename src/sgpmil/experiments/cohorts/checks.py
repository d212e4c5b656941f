"""Check of a user's files before a study: what is there, what is missing, what it will cost."""

import shutil
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.labels import LabelTable
from sgpmil.bags.readers.formats import find_bag_files
from sgpmil.bags.readers.raw import BagHeader
from sgpmil.bags.splits import Fold, MissingSlideWarning, check_folds
from sgpmil.bags.store import PackedStore, is_store
from sgpmil.bags.tables import listed
from sgpmil.errors import BagError, SgpmilError
from sgpmil.experiments.cohorts.cohort import Cohort, choose_rows, find_cohort
from sgpmil.experiments.cohorts.costs import StudyEstimate, estimate_study
from sgpmil.experiments.cohorts.data import cohort_folds, read_cohort_labels
from sgpmil.experiments.cohorts.plan import CohortOptions, extract_command, recorded_rows
from sgpmil.notebook import counted
from sgpmil.processes import compute_device
from sgpmil.progress import progress_bar

_UNI_DIM = 1024
_FEW_PATCHES = 4
"""Factor between the median size of the slides and the paper's beyond which a note is due."""


@dataclass(frozen=True)
class Finding:
    """A fact about the files.

    Args:
        about: What it is about, in a word or two.
        text: The fact.
        is_problem: Whether the study cannot run with it.
    """

    about: str
    text: str
    is_problem: bool = False


@dataclass(frozen=True)
class CohortCheck:
    """Check of the files of a study.

    Args:
        findings: Facts and problems.
        estimate: Time, memory and disk space; None where no slide can be read.
        free_bytes: Free disk space of the study's folder.
    """

    findings: tuple[Finding, ...]
    estimate: StudyEstimate | None
    free_bytes: int

    @property
    def is_ready(self) -> bool:
        """Whether the study can run."""
        return not any(found.is_problem for found in self.findings)


def check_cohort(options: CohortOptions, *, show_progress: bool = False) -> CohortCheck:
    """Check the files of a study, and estimate what it costs.

    Nothing is written, and no features are read but the sizes of their files.

    Args:
        options: The study.
        show_progress: Whether to show a bar on standard error.

    Raises:
        SettingsError: A cohort, model or device does not exist.
    """
    cohort = find_cohort(options.cohort)
    rows = choose_rows(options.model)
    device = compute_device(options.device)
    found: list[Finding] = []
    table = _labels(cohort, options, found)
    headers = _features(cohort, options, found, show_progress)
    skipping = options.skip_missing
    if table is not None and headers:
        _join(table, headers, found, skipping)
    folds: tuple[Fold, ...] = ()
    if table is not None:
        folds = _folds(cohort, options, table, headers, found)
    if cohort.regions or options.annotations is not None:
        _annotations(cohort, options, table, headers, found)
    estimate = None
    sizes = {slide: header.num_instances for slide, header in headers.items()}
    if sizes and folds:
        chosen = [fold for fold in folds if not options.fold or fold.name in options.fold]
        dims = [header.feature_dim for header in headers.values()]
        half = {header.dtype for header in headers.values()} == {"float16"}
        estimate = estimate_study(
            cohort,
            rows,
            chosen,
            options.seed or cohort.seeds,
            sizes,
            device=device.type,
            jobs=options.jobs,
            epochs=options.epochs,
            bytes_per_patch=max(dims) * (2 if half else 4),
            packs=not is_store(options.features),
            recorded=recorded_rows(rows, max(dims), cohort) if device.type == "cuda" else (),
        )
    free = shutil.disk_usage(_existing(options.folder)).free
    if estimate is not None and estimate.store_bytes + estimate.run_bytes > free:
        text = f"Too little space is free at {options.folder}. Choose another folder with `out`."
        found.append(Finding("disk", text, is_problem=True))
    return CohortCheck(tuple(found), estimate, free)


def _labels(cohort: Cohort, options: CohortOptions, found: list[Finding]) -> LabelTable | None:
    try:
        table = read_cohort_labels(cohort, options)
    except SgpmilError as error:
        found.append(Finding("labels", str(error), is_problem=True))
        return None
    counts = Counter(table.labels)
    classes = ", ".join(f"{counts[name]} {name}" for name in cohort.classes)
    text = f"{counted(len(table), 'slide')}: {classes}."
    published = dict(zip(cohort.classes, cohort.counts, strict=True))
    if dict(counts) != published:
        others = ", ".join(f"{count} {name}" for name, count in published.items())
        text += f" The paper has {cohort.num_slides}: {others}."
    found.append(Finding("labels", text))
    return table


def _features(
    cohort: Cohort, options: CohortOptions, found: list[Finding], show_progress: bool
) -> dict[str, BagHeader]:
    try:
        headers, bad = _headers(options.features, show_progress)
    except SgpmilError as error:
        text = f"{error} To make them from slides: {extract_command(cohort, options)}"
        found.append(Finding("features", text, is_problem=True))
        return {}
    empty = [slide for slide, header in headers.items() if header.num_instances == 0]
    usable = {slide: h for slide, h in headers.items() if h.num_instances}
    sizes = sorted(header.num_instances for header in usable.values())
    if not usable:
        text = f"None of {len(headers) + len(bad)} files can be used."
        found.append(Finding("features", text, is_problem=True))
        return {}
    dims = sorted({header.feature_dim for header in usable.values()})
    median = sizes[len(sizes) // 2]
    found.append(
        Finding(
            "features",
            f"{counted(len(usable), 'slide')} of {sizes[0]:,} to {sizes[-1]:,} patches, median "
            f"{median:,}; {', '.join(map(str, dims))} features as "
            f"{', '.join(sorted({h.dtype for h in usable.values()}))}; encoder "
            f"{', '.join(sorted({h.encoder for h in usable.values() if h.encoder})) or 'unknown'}.",
        )
    )
    if bad:
        text = f"{len(bad)} damaged: {listed(list(bad))}. The first: {next(iter(bad.values()))}"
        found.append(Finding("features", text, is_problem=True))
    if empty:
        found.append(Finding("features", f"{len(empty)} without patches: {listed(empty)}."))
    if len(dims) > 1:
        text = "Features of several lengths. Use embeddings of one encoder."
        found.append(Finding("features", text, is_problem=True))
    elif dims[0] != _UNI_DIM:
        text = f"The paper has {_UNI_DIM} features of UNI: its results are of another encoder."
        found.append(Finding("features", text))
    _patches(cohort, usable, median, found)
    return usable


def _patches(
    cohort: Cohort, usable: Mapping[str, BagHeader], median: int, found: list[Finding]
) -> None:
    usual = f"{cohort.patch_size} px at {cohort.magnification}×"
    known = {h.magnification for h in usable.values() if h.magnification is not None}
    if known - {float(cohort.magnification)}:
        shown = ", ".join(f"{value:g}×" for value in sorted(known))
        found.append(Finding("patches", f"Cut at {shown}; the paper's are {usual}."))
    elif not cohort.patches / _FEW_PATCHES < median < cohort.patches * _FEW_PATCHES:
        text = f"A median of {median:,} is far from the {cohort.patches:,} or so of {usual}."
        found.append(Finding("patches", text))
    without = [slide for slide, header in usable.items() if not header.has_coords]
    if without:
        text = (
            f"{len(without)} slides without coordinates ({listed(without)}): they have no maps, "
            "and BayesMIL cannot place their patches."
        )
        found.append(Finding("patches", text))


def _headers(features: Path, show_progress: bool) -> tuple[dict[str, BagHeader], dict[str, str]]:
    """Read the sizes of all bags, and the reasons of those that cannot be read."""
    if is_store(features):
        store = PackedStore.open(features)
        return {slide: store.header(slide) for slide in store.slide_ids}, {}
    files = find_bag_files(features)
    headers: dict[str, BagHeader] = {}
    bad: dict[str, str] = {}
    with progress_bar("Reading sizes", len(files), "slides", show=show_progress) as bar:
        for file in files:
            try:
                headers[file.slide_id] = file.peek()
            except BagError as error:
                bad[file.slide_id] = str(error)
            bar.advance()
    return headers, bad


def _join(
    table: LabelTable, headers: Mapping[str, BagHeader], found: list[Finding], skipping: bool
) -> None:
    missing = [slide for slide in table.slide_ids if slide not in headers]
    unlabelled = [slide for slide in headers if slide not in table]
    skip = "" if skipping else " Leave them out with `skip_missing=True`."
    if missing:
        text = (
            f"{len(missing)} of {len(table)} labelled slides have no features: {listed(missing)}."
        )
        found.append(Finding("missing", text + skip, is_problem=not skipping))
    if unlabelled:
        text = f"{len(unlabelled)} slides with features have no label: {listed(unlabelled)}."
        found.append(Finding("missing", text + skip, is_problem=not skipping))


def _folds(
    cohort: Cohort,
    options: CohortOptions,
    table: LabelTable,
    headers: Mapping[str, BagHeader],
    found: list[Finding],
) -> tuple[Fold, ...]:
    try:
        folds = cohort_folds(cohort, table, options.splits, options.labels)
        known = [slide for slide in table.slide_ids if not headers or slide in headers]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kept = check_folds(
                folds, table.subset(known), allow_missing=True, on_shared_case=cohort.shared_case
            )
    except SgpmilError as error:
        found.append(Finding("splits", str(error), is_problem=True))
        return ()
    named = {slide for fold in folds for slide in (*fold.train, *fold.val, *fold.test)}
    parts = " / ".join(str(len(part)) for part in (folds[0].train, folds[0].val, folds[0].test))
    made = "" if options.splits is not None else ", made here: the paper's own are others"
    text = f"{counted(len(folds), 'fold')} of {parts} slides to train, validate and test{made}."
    if len(folds) < cohort.folds:
        text += f" The paper has {cohort.folds}."
    found.append(Finding("splits", text))
    # Slides that are missing are listed below.
    told = (w for w in caught if not issubclass(w.category, MissingSlideWarning))
    found += [Finding("splits", text) for text in dict.fromkeys(str(w.message) for w in told)]
    unknown = sorted(named - set(table.slide_ids))
    if unknown:
        text = f"{len(unknown)} slides of the splits have no label: {listed(unknown)}."
        found.append(Finding("splits", text, is_problem=not options.skip_missing))
    unheld = sorted(slide for slide in named - set(unknown) if headers and slide not in headers)
    if unheld:
        text = f"{len(unheld)} slides of the splits have no features: {listed(unheld)}."
        found.append(Finding("splits", text, is_problem=not options.skip_missing))
    return kept


def _annotations(
    cohort: Cohort,
    options: CohortOptions,
    table: LabelTable | None,
    headers: Mapping[str, BagHeader],
    found: list[Finding],
) -> None:
    labelled = sum(header.has_instance_labels for header in headers.values())
    if options.annotations is None:
        text = (
            f"The labels that {counted(labelled, 'slide')} carry for their patches."
            if labelled
            else "None: there will be no table of instances. Give a folder with `annotations`."
        )
        found.append(Finding("annotations", text))
        return
    try:
        folder = options.with_regions.open_annotations()
    except SgpmilError as error:
        found.append(Finding("annotations", str(error), is_problem=True))
        return
    if folder is None or table is None:
        return
    positive = {cohort.classes[c] for c in cohort.positive_classes} or set(cohort.classes[1:])
    wanted = [row.slide_id for row in table if row.label in positive]
    without = [slide for slide in wanted if slide not in folder]
    text = f"{len(wanted) - len(without)} of {len(wanted)} positive slides are annotated."
    if without:
        text += f" Without: {listed(without)}; their patches count as unknown."
    found.append(Finding("annotations", text, is_problem=len(without) == len(wanted)))


def _existing(path: Path) -> Path:
    return next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
