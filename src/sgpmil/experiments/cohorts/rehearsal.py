"""Rehearsals: synthetic embeddings under the slides, labels and folds of a cohort.

A rehearsal has the form of the real data and none of its content, so that a study can be run from
end to end, and timed, before there are slides. `sgpmil.experiments.cohorts.synthetic` says how
slides are drawn. Annotations are the outlines of the lesions, as ASAP's XML (CAMELYON16) or as
GeoJSON (BRACS).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sgpmil.bags.bag import Bag
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.files import write_text
from sgpmil.bags.labels import LabelTable
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.split_files import read_splits, write_splits
from sgpmil.bags.splits import Fold
from sgpmil.bags.steps import LabelOptions
from sgpmil.bags.tables import sheet_text
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import SettingsError
from sgpmil.experiments.cohorts.cohort import Cohort, find_cohort
from sgpmil.experiments.cohorts.data import cohort_folds, read_cohort_labels
from sgpmil.experiments.cohorts.synthetic import (
    BASE_MAGNIFICATION,
    SYNTHETIC,
    Drawing,
    DrawnSlide,
    SyntheticSource,
)
from sgpmil.options import Options
from sgpmil.progress import progress_bar


@dataclass(frozen=True, kw_only=True)
class RehearsalOptions(Options):
    """Options of `write_rehearsal`.

    Args:
        cohort: Cohort of the paper: camelyon16, tcga-nsclc, panda or bracs.
        labels: Its table of labels.
        out: New folder.
        splits: Its split files; those of the paper's folds that are missing are made.
        form: store writes a packed store, trident a file for each slide in TRIDENT's layout.
        scale: Factor of the number of patches of each slide.
        share: Share of the slides of each class and part; 1 takes all.
        dim: Number of features.
        seed: Seed.
        device: Device that draws the features.
    """

    cohort: str
    labels: Path
    out: Path
    splits: Path | None = None
    form: Literal["store", "trident"] = "store"
    scale: float = 1.0
    share: float = 1.0
    dim: int = 1024
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """A rehearsal on disk.

    Args:
        features: Its packed store, or folder of files.
        labels: Its table of labels.
        splits: Folder of its split files.
        annotations: Folder of its annotations; None where the cohort has none.
        num_slides: Number of slides.
        num_patches: Number of patches.
    """

    features: Path
    labels: Path
    splits: Path
    annotations: Path | None
    num_slides: int
    num_patches: int


def write_rehearsal(options: RehearsalOptions, *, show_progress: bool = False) -> Rehearsal:
    """Write synthetic embeddings, labels, splits and annotations of a cohort.

    Raises:
        SettingsError: A number is impossible.
        LabelError: The labels are not those of the cohort.
        BagError: The folder is taken or cannot be written.
    """
    if not 0 < options.scale <= 100 or not 0 < options.share <= 1 or options.dim < 8:
        raise SettingsError(
            "Expected a scale above 0 and up to 100, a share above 0 and up to 1, and at least 8 "
            f"features, but got {options.scale}, {options.share} and {options.dim}."
        )
    cohort = find_cohort(options.cohort)
    published = LabelOptions(features=options.out, labels=options.labels)
    whole = read_cohort_labels(cohort, published)
    folds = _folds(cohort, whole, options)
    table, folds = _shared(whole, folds, options.share)
    source = SyntheticSource(
        cohort, table, Drawing(options.scale, options.dim, options.seed, options.device)
    )
    target = ClassTarget.of(table.labels, cohort.classes, ordinal=cohort.ordinal)
    bags = BagDataset(
        source,
        table.slide_ids,
        table.case_ids,
        tuple(target.encode(label) for label in table.labels),
        target,
    )
    features = options.out / "features"
    with progress_bar("Drawing", len(bags), "slides", show=show_progress) as bar:
        if options.form == "store":
            pack_bags(bags, features, dtype="float16", on_bag=lambda _: bar.advance())
        else:
            for bag in bags:
                _write_trident(features, bag, source)
                bar.advance()
    labels = options.out / "labels.csv"
    rows = zip(table.slide_ids, table.case_ids, table.labels, strict=True)
    write_text(labels, sheet_text(("slide_id", "case_id", "label"), rows))
    write_splits(folds, options.out / "splits", overwrite=True)
    annotations = options.out / "annotations" if cohort.regions else None
    if annotations is not None:
        annotations.mkdir(parents=True, exist_ok=True)
        for slide_id in table.slide_ids:
            _write_annotations(annotations, cohort, source.slide(slide_id))
    return Rehearsal(
        features,
        labels,
        options.out / "splits",
        annotations,
        len(bags),
        sum(bags.num_instances),
    )


def _folds(cohort: Cohort, table: LabelTable, options: RehearsalOptions) -> list[Fold]:
    """Take the folds that are given, and make those that the paper has more."""
    made = cohort_folds(cohort, table, None, options.labels)
    if options.splits is None:
        return list(made)
    given = {fold.name: fold for fold in read_splits(options.splits, table)}
    return [given.get(fold.name, fold) for fold in made]


def _shared(table: LabelTable, folds: list[Fold], share: float) -> tuple[LabelTable, list[Fold]]:
    """Keep a share of the slides: in every part of the first fold, of each class."""
    if share == 1:
        return table, folds
    kept: set[str] = set()
    for part in ("train", "val", "test"):
        groups: dict[str, list[str]] = {}
        for slide_id in folds[0].part(part):
            groups.setdefault(table.row(slide_id).label, []).append(slide_id)
        for slides in groups.values():
            kept.update(slides[: max(2, round(share * len(slides)))])
    slides = [slide_id for slide_id in table.slide_ids if slide_id in kept]
    fewer = [
        Fold(f.name, *(tuple(s for s in f.part(p) if s in kept) for p in ("train", "val", "test")))
        for f in folds
    ]
    return table.subset(slides), fewer


def _write_trident(folder: Path, bag: Bag, source: SyntheticSource) -> None:
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / f"{bag.slide_id}.h5", "w") as file:
        features = bag.features.numpy()
        file.create_dataset(
            "features",
            data=features,
            chunks=(1, features.shape[1]),
            maxshape=(None, features.shape[1]),
        ).attrs["encoder"] = SYNTHETIC
        drawn = source.slide(bag.slide_id)
        coords = file.create_dataset("coords", data=drawn.cells * drawn.side)
        coords.attrs["patch_size"] = source.cohort.patch_size
        coords.attrs["patch_size_level0"] = source.side
        coords.attrs["level0_magnification"] = BASE_MAGNIFICATION
        coords.attrs["target_magnification"] = source.cohort.magnification
        coords.attrs["overlap"] = 0
        file.create_dataset("instance_labels", data=drawn.instance_labels)


def _write_annotations(folder: Path, cohort: Cohort, slide: DrawnSlide) -> None:
    if not slide.lesions:
        return
    if cohort.name == "bracs":
        features = [
            {
                "type": "Feature",
                "properties": {"classification": {"name": lesion.name}},
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [_closed(lesion.outline(slide.side).tolist())],
                },
            }
            for lesion in slide.lesions
        ]
        text = json.dumps({"type": "FeatureCollection", "features": features})
        write_text(folder / f"{slide.slide_id}.geojson", text)
        return
    drawn = []
    for number, lesion in enumerate(slide.lesions):
        corners = "".join(
            f'<Coordinate Order="{i}" X="{x:.1f}" Y="{y:.1f}"/>'
            for i, (x, y) in enumerate(lesion.outline(slide.side).tolist())
        )
        drawn.append(
            f'<Annotation Name="{number}" Type="Polygon" PartOfGroup="{lesion.name}">'
            f"<Coordinates>{corners}</Coordinates></Annotation>"
        )
    text = f"<ASAP_Annotations><Annotations>{''.join(drawn)}</Annotations></ASAP_Annotations>"
    write_text(folder / f"{slide.slide_id}.xml", text)


def _closed(ring: list[list[float]]) -> list[list[float]]:
    return [*ring, ring[0]]
