"""What a run is about: its slides, patients, classes, bags and folds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sgpmil.bags.labels import clean_slide_id, read_labels
from sgpmil.bags.splits import Fold
from sgpmil.errors import SgpmilError
from sgpmil.runs.description import is_run
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.run import Run

__all__ = ["RunFacts", "run_facts"]

_NOT_FOR_PATHOLOGY = ("efficientnet", "resnet", "imagenet")

_PHANTOMS = "phantoms.json"
"""What the folder of phantoms holds."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the data of a run.

    Args:
        num_slides: Number of distinct test slides.
        num_patients: Number of distinct patients of them.
        class_counts: Number of distinct test slides of each class.
        num_unlabelled: Number of test slides without a label.
        bag_sizes: Number of instances of each distinct test slide, where known.
        tested: How often each slide is tested.
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
    """Gather what is known of the data of a run.

    Args:
        material: The run.
    """
    first = {p.slide_id: p for _, p in reversed(list(material.predictions()))}
    labels = Counter(p.label for p in first.values())
    sizes = _bag_sizes(material)
    return RunFacts(
        num_slides=len(first),
        num_patients=len({p.case_id or p.slide_id for p in first.values()}),
        class_counts=tuple(labels[c] for c in range(len(material.class_names))),
        num_unlabelled=labels[None],
        bag_sizes=tuple(sizes[slide_id] for slide_id in first if slide_id in sizes),
        tested=Counter(p.slide_id for _, p in material.predictions()),
        patients=_patients(material),
        splits=_splits(material.path),
        encoders=_encoders(material),
        is_synthetic=_is_synthetic(material),
    )


def _is_synthetic(material: RunMaterial) -> bool:
    """Look for what phantoms are written with, beside the slides and the labels."""
    files = list(material.sources.files.values())[:1]
    recorded = material.description.get("data", {}).get("labels")
    if recorded is not None:
        files.append(Path(recorded))
    return any((folder / _PHANTOMS).exists() for file in files for folder in file.parents[:2])


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
    recorded = material.description.get("data", {}).get("labels")
    if recorded is not None and Path(recorded).exists():
        try:
            table = read_labels(Path(recorded))
        except SgpmilError:  # columns that the run was told the names of: what follows remains
            table = None
        if table is not None:
            rows = zip(table.slide_ids, table.case_ids, strict=True)
            patients = {clean_slide_id(slide): case for slide, case in rows}
    for fold in material.folds:
        for part in (fold.test, fold.validation):
            for prediction in () if part is None else part.predictions:
                patients[clean_slide_id(prediction.slide_id)] = (
                    prediction.case_id or prediction.slide_id
                )
    return patients


def _splits(path: Path) -> tuple[Fold, ...]:
    try:
        return tuple(Run.open(path).splits.values()) if is_run(path) else ()
    except SgpmilError:
        return ()


def _encoders(material: RunMaterial) -> tuple[str, ...]:
    if material.bags is None:
        return ()
    headers = (material.bags.source.header(slide_id) for slide_id in material.bags.slide_ids)
    return tuple(sorted({header.encoder for header in headers if header.encoder is not None}))
