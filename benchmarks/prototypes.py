"""Do inducing points separate tissue types, and better than k-means does?

    python benchmarks/prototypes.py --run RUN --features FEATURES --regions REGIONS

Of each fold of a run of sgpmil or agp: the normalised mutual information (and the adjusted one,
which corrects for chance) between the prototype of each test patch and the tissue class that covers
most of it, and between the prototype and whether that is the tumour. Beside it k-means, fitted to
the fold's training patches: on the embeddings (standardised), and on the inputs of the Gaussian
process, with as many clusters as there are inducing points and with as many as are in use. REGIONS
is a folder of GeoJSON with every tissue class, such as a phantom's ``regions``.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
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


def main() -> None:
    """Measure every fold and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--regions", type=Path, required=True)
    parser.add_argument("--classes", default=",".join(TISSUES))
    parser.add_argument("--positive", default="Tumor")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    bags = read_bags(options.features)
    folds = {fold.name: fold for fold in read_splits(options.run / "splits")}
    names = options.classes.split(",")
    rows: dict[str, list[tuple[float, ...]]] = {}
    counts = np.zeros(len(names), dtype=np.int64)
    for folder in sorted(options.run.glob("fold-*")):
        fold = folds[folder.name.removeprefix("fold-")]
        model = model_with_prototypes(load_model(folder)[0])
        train, test = bags.subset(fold.train), bags.subset(fold.test)
        classes = _classes(test, options.regions, names)
        counts += np.bincount(classes[classes >= 0], minlength=len(counts))
        positive = names.index(options.positive)
        _measure_fold(rows, model, train, test, classes, positive, options.seeds)
    print(f"Test patches: {', '.join(f'{n} {c}' for n, c in zip(names, counts, strict=True))}\n")
    print(f"| clusters of patches | in use | NMI | AMI | NMI, {options.positive} or not |")
    print("|---|---|---|---|---|")
    for name, values in rows.items():
        used, *shares = np.array(values).T
        print(f"| {name} | {_told(used, 1)} | {' | '.join(_told(v, 3) for v in shares)} |")


def _measure_fold(
    rows: dict[str, list[tuple[float, ...]]],
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
            )
        )

    centre = mean_inputs(model, train)
    in_use = {}
    for measure in MEASURES:
        found = explain_prototypes(model, test, measure=measure, centre=centre)
        clusters = np.concatenate([slide.assigned for slide in found.slides.values()])
        in_use[measure] = len(found.used)
        add(f"prototypes, {measure}", clusters)
    spaces = {
        "embeddings": StandardScaler().fit(_features(train)),
        "GP inputs": None,
    }
    for space, scaler in spaces.items():
        if scaler is None:
            known, new = _inputs(model, train), _inputs(model, test)
        else:
            known, new = scaler.transform(_features(train)), scaler.transform(_features(test))
        for name, number in (("M", model.settings.num_inducing), ("in use", in_use["kernel"])):
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
