"""A run with everything that explains it: predictions, models, embeddings, slides, annotations."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.labels import clean_slide_id, read_labels
from sgpmil.bags.reading import read_bags
from sgpmil.bags.splits import Fold
from sgpmil.bags.target import Target
from sgpmil.errors import BagError, ExplanationError, SettingsError, SgpmilError
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.evaluation.localisation.scored_slides import InstanceLabeller
from sgpmil.evaluation.prediction import Prediction
from sgpmil.evaluation.provenance import PredictionProvenance, joined_provenance
from sgpmil.runs.description import is_run
from sgpmil.runs.results import open_results
from sgpmil.runs.run import Run
from sgpmil.runs.slide_picture import (
    SlideSources,
    find_nuclei_files,
    find_slide_files,
)
from sgpmil.slides.annotations.folder import AnnotationFolder, AnnotationOptions

_NOT_FOR_PATHOLOGY = ("efficientnet", "resnet", "imagenet")

_PHANTOMS = "phantoms.json"
"""File that marks a folder of phantoms."""


@dataclass(frozen=True, slots=True, eq=False)
class RunMaterial:
    """A run, or predictions of another system, with everything that explains it.

    Args:
        path: The run, or the place of the predictions.
        folds: The folds that are done, their instances labelled by annotations where given.
        run: The run that they belong to; None for predictions of other systems.
        unfinished: Name of each other fold.
        bags: The embeddings that were predicted; None where they were not found.
        bags_missing: Reason why they were not, in a sentence.
        damaged: Reason why the scores of a slide's patches cannot be read, by slide.
        sources: Slides, annotations and nuclei.
    """

    path: Path
    folds: tuple[TestedFold, ...]
    run: Run | None = None
    unfinished: tuple[str, ...] = ()
    bags: BagDataset | None = None
    bags_missing: str = ""
    damaged: Mapping[str, str] = field(default_factory=dict)
    sources: SlideSources = field(default_factory=SlideSources)

    @property
    def model(self) -> str:
        """Name of the model; empty where predictions do not say it."""
        if self.run is not None:
            return self.run.model
        return "" if self.provenance is None else self.provenance.model

    @property
    def provenance(self) -> PredictionProvenance | None:
        """Origin of the predictions, where they say it."""
        return joined_provenance([fold.test.provenance for fold in self.folds])

    @property
    def target(self) -> Target:
        """Quantity that the models predict."""
        return self.folds[0].test.target

    @property
    def is_ensemble(self) -> bool:
        """Whether several models, such as the folds of a run, predicted each slide together."""
        return any(not math.isnan(p.disagreement) for _, p in self.predictions())

    def predictions(self) -> Iterator[tuple[TestedFold, Prediction]]:
        """Iterate over the test slides of all folds."""
        for fold in self.folds:
            for prediction in fold.test.predictions:
                yield fold, prediction

    @property
    def slide_ids(self) -> frozenset[str]:
        """Names of the test slides."""
        return frozenset(prediction.slide_id for _, prediction in self.predictions())


@dataclass(frozen=True, kw_only=True)
class MaterialOptions(AnnotationOptions):
    """A run, and the files that explain it.

    Args:
        run: A run, the folder of a fold, or predictions.
        slides: Folder of the slide files. A run remembers it, and the folders of annotations and
            nuclei, for the next command. Without it, maps are drawn on an empty canvas.
        features: The embeddings, for prototypes; by default where the run found them.
        nuclei: Folder of <slide>.json files of HoVer-Net or CellViT, to count nuclei by prototype.
        mpp: Microns per level-0 pixel, for slides that do not state it.
    """

    run: Path
    slides: Path | None = None
    features: Path | None = None
    nuclei: Path | None = None
    mpp: float | None = None

    @property
    def shows_seen(self) -> bool:
        """Return whether slides that the model was trained on are shown, too."""
        return True

    def read_material(self) -> RunMaterial:
        """Read the run, and find the embeddings, slides and annotations that belong to it.

        A run remembers the folders that are named here. Those that are not named are where they
        were named before, if they are still there.
        """
        return self._read_material(with_instances=True)

    def read_outline(self) -> RunMaterial:
        """Read the run as `read_material`, without scores of patches and without embeddings.

        Those of many slides need not fit in memory; a viewer reads them slide by slide.
        """
        return self._read_material(with_instances=False)

    def _read_material(self, *, with_instances: bool) -> RunMaterial:
        run = Run.open(self.run) if is_run(self.run) else None
        known = {} if run is None else run.sources
        before = {name: Path(path) for name, path in known.items() if os.path.exists(path)}
        named = replace(self, annotations=self.annotations or before.get("annotations"))
        material = read_material(
            self.run,
            features=self.features,
            slides=self.slides or before.get("slides"),
            annotations=named.open_annotations(),
            min_coverage=self.min_coverage,
            nuclei=self.nuclei or before.get("nuclei"),
            mpp=self.mpp,
            keep_seen=self.shows_seen,
            with_instances=with_instances,
        )
        if run is not None:
            # Annotations read by other rules would label patches differently without them.
            rules = (self.regions, self.min_coverage, self.mask_downsample)
            plain = rules == (None, 0.5, None)
            run.remember_sources(
                slides=self.slides,
                annotations=self.annotations if plain else None,
                nuclei=self.nuclei,
            )
        return material


def read_material(
    path: Path | str,
    *,
    features: Path | None = None,
    slides: Path | None = None,
    annotations: AnnotationFolder | None = None,
    min_coverage: float = 0.5,
    nuclei: Path | None = None,
    mpp: float | None = None,
    keep_seen: bool = True,
    with_instances: bool = True,
) -> RunMaterial:
    """Read a run, and find the embeddings, slides and annotations that belong to it.

    Args:
        path: A run, the folder of a fold, or predictions.
        features: The embeddings; by default where the run found them.
        slides: Folder of the slide files.
        annotations: Annotations of the slides; they label the instances.
        min_coverage: Least share of a patch that is positive; 0 means any overlap.
        nuclei: Folder of the slides' nuclei, ``<slide>.json``.
        mpp: Microns per level-0 pixel, for slides whose files do not say.
        keep_seen: Whether predicted slides are kept that the model was trained on.
        with_instances: Whether to read the scores of the instances and find the embeddings.

    Raises:
        SgpmilError: The predictions, or a folder that was named, cannot be read; or no slide file
            is of the run.
    """
    if mpp is not None and not 0 < mpp < math.inf:
        raise SettingsError(f"Expected `mpp` above 0, such as 0.25, but got {mpp:g}.")
    results = open_results(path, keep_seen=keep_seen)
    if not results.folds:
        raise ExplanationError(
            f"Expected a run with at least one fold that is done at {results.path}, but none is. "
            "Resume it (`resume=True`)."
        )
    damaged: dict[str, str] = {}
    folds = results.load(damaged, with_instances=with_instances)
    if annotations is not None and with_instances:
        labeller = InstanceLabeller(annotations, min_coverage)
        folds = tuple(replace(fold, test=labeller.label(fold.test).table) for fold in folds)
    wanted = {slide_id for fold in folds for slide_id in fold.test.slide_ids}
    run = results.run
    bags, missing = None, "They were not looked for."
    if with_instances:
        bags, missing = find_embeddings(run, features, wanted)
    files = {} if slides is None else find_slide_files(slides, wanted)
    return RunMaterial(
        results.path,
        folds,
        run,
        results.unfinished,
        bags,
        missing,
        damaged,
        SlideSources(
            {slide_id: files[slide_id] for slide_id in sorted(wanted) if slide_id in files},
            annotations,
            {} if nuclei is None else find_nuclei_files(nuclei, wanted),
            mpp,
            files,
        ),
    )


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Counts and names of the data of a run.

    Args:
        num_slides: Number of distinct test slides.
        num_patients: Number of distinct patients of them.
        class_counts: Number of distinct test slides of each class.
        num_unlabelled: Number of test slides without a label.
        bag_sizes: Number of instances of each distinct test slide, where known.
        tested: Number of folds that test each slide.
        patients: Patient of each slide of any part, by the slide's cleaned name.
        splits: Slides of each fold's parts; empty where the run does not say.
        encoders: Names of the patch encoders, where stored.
        is_synthetic: Whether the slides are phantoms of this package.
    """

    num_slides: int
    num_patients: int
    class_counts: tuple[int, ...]
    num_unlabelled: int
    bag_sizes: tuple[int, ...]
    tested: Mapping[str, int]
    patients: Mapping[str, str]
    splits: tuple[Fold, ...]
    encoders: tuple[str, ...]
    is_synthetic: bool

    @property
    def encoders_not_for_pathology(self) -> tuple[str, ...]:
        """Names of the encoders that learned from everyday photographs."""
        return tuple(
            name
            for name in self.encoders
            if any(part in name.lower() for part in _NOT_FOR_PATHOLOGY)
        )


def run_facts(material: RunMaterial) -> RunFacts:
    """Count the slides, patients, classes, bags and folds of a run."""
    run = material.run
    first = {p.slide_id: p for _, p in reversed(list(material.predictions()))}
    labels = Counter(p.label for p in first.values())
    sizes = _bag_sizes(material)
    return RunFacts(
        num_slides=len(first),
        num_patients=len({p.case_id or p.slide_id for p in first.values()}),
        class_counts=tuple(labels[c] for c in range(material.target.num_outputs)),
        num_unlabelled=labels[None],
        bag_sizes=tuple(sizes[slide_id] for slide_id in first if slide_id in sizes),
        tested=Counter(p.slide_id for _, p in material.predictions()),
        patients=_patients(material),
        # Of a fold's folder, the other folds say nothing.
        splits=() if run is None or run.path != material.path else tuple(run.splits.values()),
        encoders=_encoders(material),
        is_synthetic=_is_synthetic(material),
    )


def _is_synthetic(material: RunMaterial) -> bool:
    """Look for the file of phantoms beside the slides and the labels."""
    files = list(material.sources.files.values())[:1]
    recorded = None if material.run is None else material.run.data.get("labels")
    if recorded is not None:
        files.append(Path(recorded))
    return any(os.path.exists(folder / _PHANTOMS) for file in files for folder in file.parents[:2])


def _bag_sizes(material: RunMaterial) -> dict[str, int]:
    sizes = {}
    if material.bags is not None:
        sizes = dict(zip(material.bags.slide_ids, material.bags.num_instances, strict=True))
    for _, prediction in material.predictions():
        if prediction.instances is not None:
            sizes[prediction.slide_id] = prediction.instances.num_instances
    return sizes


def _patients(material: RunMaterial) -> dict[str, str]:
    """Collect the patients: of tested and validated slides, and of the labels where they lie."""
    patients: dict[str, str] = {}
    data = {} if material.run is None else material.run.data
    if data.get("labels") is not None:
        slide_table = data.get("slide_table")
        try:
            table = read_labels(
                Path(data["labels"]),
                slide_column=data.get("slide_column"),
                label_column=data.get("label_column"),
                case_column=data.get("case_column"),
                slide_table=None if slide_table is None else Path(slide_table),
            )
            rows = zip(table.slide_ids, table.case_ids, strict=True)
            patients = {clean_slide_id(slide): case for slide, case in rows}
        except (SgpmilError, OSError):  # moved or changed since: what follows remains
            patients = {}
    for fold in material.folds:
        for part in (fold.test, fold.validation):
            for prediction in () if part is None else part.predictions:
                patients[clean_slide_id(prediction.slide_id)] = (
                    prediction.case_id or prediction.slide_id
                )
    return patients


def _encoders(material: RunMaterial) -> tuple[str, ...]:
    if material.bags is None:
        return () if material.provenance is None else material.provenance.encoders
    headers = (material.bags.source.header(slide_id) for slide_id in material.bags.slide_ids)
    return tuple(sorted({header.encoder for header in headers if header.encoder is not None}))


def find_embeddings(
    run: Run | None, features: Path | None, wanted: Iterable[str]
) -> tuple[BagDataset | None, str]:
    """Open the embeddings of slides; those that were named must be there.

    Args:
        run: The run, which knows where it found them.
        features: Their folder, where it is named.
        wanted: Names of the slides.

    Raises:
        SgpmilError: The folder that was named cannot be read, or is of other slides.

    Returns:
        The embeddings, or None and the reason why there are none.
    """
    recorded = None if run is None else run.data.get("folder")
    folder = features or (None if recorded is None else Path(recorded))
    if folder is None:
        return None, "It is not known where the embeddings lie: name them with `features`."
    try:
        bags = read_bags(folder)
        there = set(bags.slide_ids)
        known = [slide_id for slide_id in wanted if slide_id in there]
        if not known:
            raise BagError(
                f"Expected embeddings of the run's slides in {folder}, but got those of others. "
                "Name the folder that the run was trained on."
            )
    except (SgpmilError, OSError) as error:
        if features is not None:
            raise
        return None, f"{error} Name another folder with `features`."
    return bags.subset(sorted(known)), ""
