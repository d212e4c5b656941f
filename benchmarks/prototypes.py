"""Do prototypes separate tissue types, and better than k-means does?

    python benchmarks/prototypes.py --set RUN FEATURES REGIONS [--set RUN FEATURES REGIONS ...]

Of each fold of a run of sgpmil or agp: the normalised mutual information (and the adjusted one,
which corrects for chance) between the prototype of each test patch and the tissue class that covers
most of it, and between the prototype and whether that is the tumour; of the latter also the share
told, I / H(class), which many clusters do not lower. The same for the groups of prototypes that
share a colour. Beside them k-means, fitted to the fold's training patches: on the
embeddings (standardised), and on the inputs of the Gaussian process, with as many clusters as
there are prototypes and groups. REGIONS is a folder of GeoJSON with every tissue class, such as a
phantom's ``regions``.

Folds and seeds of one set of slides share slides, so the unit is the set: figures are means over
sets of the means over folds and seeds, with the standard deviation of sets. With several sets, the
difference to k-means of the embeddings is tested by a paired t-test over sets.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import ttest_1samp
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import (
    adjusted_mutual_info_score,
    homogeneity_score,
    normalized_mutual_info_score,
)
from sklearn.preprocessing import StandardScaler

from sgpmil.bags import BagDataset, read_bags, read_splits
from sgpmil.explanation.prototypes import (
    MEASURES,
    explain_prototypes,
    mean_inputs,
)
from sgpmil.explanation.prototypes.similarity import input_chunks, model_with_prototypes
from sgpmil.models import SGPMIL, load_model
from sgpmil.slides.annotations import read_geojson
from sgpmil.slides.annotations.patch_labels import patch_coverage
from sgpmil.slides.annotations.regions import Annotations, Region

TISSUES = ("Stroma", "Gland", "Lymphocytes", "Fat", "Tumor", "Fold", "Pen")
"""Tissue classes; those that lie over others last."""


Rows = dict[str, list[tuple[float, ...]]]
"""Clusters in use and the measures of each fold and seed, by the way to cluster."""


def main() -> None:
    """Measure every fold of every set and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", type=Path, nargs=3, action="append", required=True)
    parser.add_argument("--classes", default=",".join(TISSUES))
    parser.add_argument("--positive", default="Tumor")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    names = options.classes.split(",")
    positive = names.index(options.positive)
    sets = []
    for run, features, regions in options.set:
        rows, counts = _measure_set(run, features, regions, names, positive, options.seeds)
        told = ", ".join(f"{n} {c}" for n, c in zip(names, counts, strict=True))
        print(f"{run}: test patches: {told}")
        sets.append({name: np.mean(values, axis=0) for name, values in rows.items()})
    binary = f"{options.positive} or not"
    columns = ["in use", "NMI", "AMI", f"NMI, {binary}", f"share told, {binary}"]
    print(f"\n| clusters of patches | {' | '.join(columns)} |\n|{'---|' * 6}")
    for name in sets[0]:
        used, *shares = np.array([found[name] for found in sets]).T
        print(f"| {name} | {_told(used, 1)} | {' | '.join(_told(v, 3) for v in shares)} |")
    if len(sets) > 1:
        _compare(sets, columns[1:])


def _measure_set(
    run: Path, features: Path, regions: Path, names: list[str], positive: int, seeds: int
) -> tuple[Rows, np.ndarray]:
    bags = read_bags(features)
    folds = {fold.name: fold for fold in read_splits(run / "splits")}
    rows: Rows = {}
    counts = np.zeros(len(names), dtype=np.int64)
    for folder in sorted(run.glob("fold-*")):
        fold = folds[folder.name.removeprefix("fold-")]
        model = model_with_prototypes(load_model(folder)[0])
        train, test = bags.subset(fold.train), bags.subset(fold.test)
        classes = _classes(test, regions, names)
        counts += np.bincount(classes[classes >= 0], minlength=len(counts))
        _measure_fold(rows, model, train, test, classes, positive, seeds)
    return rows, counts


def _compare(sets: list[dict[str, np.ndarray]], columns: list[str]) -> None:
    """Test the differences of prototypes and their groups to k-means of the embeddings."""
    pairs = {"prototypes, kernel": "k-means of embeddings, M"}
    pairs["groups of prototypes"] = "k-means of embeddings, as many as groups"
    for ours, theirs in pairs.items():
        differences = np.array([found[ours][1:] - found[theirs][1:] for found in sets]).T
        for column, values in zip(columns, differences, strict=True):
            p = ttest_1samp(values, 0).pvalue
            each = ", ".join(f"{value:+.3f}" for value in values)
            print(f"{ours} less {theirs}, {column}: {each} (p {p:.3f})")


def _measure_fold(
    rows: Rows,
    model: SGPMIL,
    train: BagDataset,
    test: BagDataset,
    classes: np.ndarray,
    positive: int,
    seeds: int,
) -> None:
    def add(name: str, clusters: np.ndarray) -> None:
        known = classes >= 0
        tissues, found = classes[known], clusters[known]
        rows.setdefault(name, []).append(
            (
                len(np.unique(clusters)),
                normalized_mutual_info_score(tissues, found),
                adjusted_mutual_info_score(tissues, found),
                normalized_mutual_info_score(tissues == positive, found),
                homogeneity_score(tissues == positive, found),
            )
        )

    centre = mean_inputs(model, train)
    for measure in MEASURES:
        found = explain_prototypes(model, test, measure=measure, centre=centre)
        clusters = np.concatenate([slide.assigned for slide in found.slides.values()])
        add(f"prototypes, {measure}", clusters)
        if measure == "kernel":
            group_of = {p.index: p.group for p in found.used}
            add("groups of prototypes", np.array([group_of[m] for m in clusters.tolist()]))
            sizes = {"M": len(found.prototypes), "as many as groups": len(found.groups)}
    scaler = StandardScaler().fit(_features(train))
    spaces = {
        "embeddings": [scaler.transform(_features(part)) for part in (train, test)],
        "GP inputs": [_inputs(model, part) for part in (train, test)],
    }
    for space, (known, new) in spaces.items():
        for name, number in sizes.items():
            for seed in range(seeds):
                means = MiniBatchKMeans(number, random_state=seed, n_init=3, batch_size=4096)
                add(f"k-means of {space}, {name}", means.fit(known).predict(new))


def _classes(bags: BagDataset, regions: Path, names: list[str]) -> np.ndarray:
    found = []
    for bag in bags:
        drawn = read_geojson(regions / f"{bag.slide_id}.geojson")
        found.append(_tissue_classes(bag.coords.numpy(), bag.patch_size, drawn, names))
    return np.concatenate(found)


def _tissue_classes(
    coords: np.ndarray, patch_size: int, drawn: Sequence[Region], names: list[str]
) -> np.ndarray:
    """Give each patch the class that covers most of it; -1 where none covers any.

    Of classes that cover the same share, the last is taken.
    """
    best = np.zeros(len(coords))
    classes = np.full(len(coords), -1, dtype=np.int64)
    for number, name in enumerate(names):
        own = tuple(region for region in drawn if region.name == name)
        coverage = patch_coverage(coords, patch_size, Annotations(own))
        # Areas are exact only up to rounding.
        better = (coverage > 0) & (coverage >= best - 1e-9)
        classes[better] = number
        best = np.maximum(best, coverage)
    return classes


def _features(bags: BagDataset) -> np.ndarray:
    return torch.cat([bag.features for bag in bags]).numpy()


def _inputs(model: SGPMIL, bags: BagDataset) -> np.ndarray:
    pieces = [piece for bag in bags for piece in input_chunks(model, bag)]
    return torch.cat(pieces).float().numpy()


def _told(values: np.ndarray, digits: int) -> str:
    spread = values.std(ddof=1) if len(values) > 1 else float("nan")
    return f"{values.mean():.{digits}f} ± {spread:.{digits}f}"


if __name__ == "__main__":
    main()
