"""A small run with everything that can be explained: slides, annotations, embeddings, models."""

import json
from dataclasses import replace

import h5py
import numpy as np
import torch

from sgpmil.bags import read_bags
from sgpmil.bags.bag import BagBatch
from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import PredictionTable
from sgpmil.evaluation.predictor import predict
from sgpmil.models import build_model, save_model
from sgpmil.runs.run import Run
from tests.explanation.prototypes.explained import PATCHES
from tests.slides.extraction.drawn_files import TISSUE, write_slide

CLASSES = ("normal", "tumour")
SLIDES = ("s 0", "s.1", "s2", "s3")
SIDE = 256
RING = [[256, 256], [768, 256], [768, 768], [256, 768], [256, 256]]
"""The tumour of slides 1 and 3: exactly four of their 24 patches."""


def write_features(folder, slide_ids=SLIDES):
    folder.mkdir(parents=True, exist_ok=True)
    left, top, right, bottom = TISSUE
    coords = [(x, y) for y in range(top, bottom, SIDE) for x in range(left, right, SIDE)]
    for number, name in enumerate(slide_ids):
        rng = np.random.default_rng(number)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["features"] = rng.normal(size=(len(coords), 4)).astype(np.float32)
            file["coords"] = np.array(coords)
            file["coords"].attrs["patch_size_level0"] = SIDE
    return folder


def write_run(path, features, model="sgpmil", seed=0):
    """Write a run of two folds, each with two test slides.

    The models are not trained, but those with inducing patches have chosen them.
    """
    sizes = {
        "sgpmil": {
            **PATCHES,
            "hidden_dims": (8,),
            "gp_dim": 4,
            "num_inducing": 5,
            "num_samples": 8,
            "prediction_samples": 16,
            "prediction_error": 0.0,
        },
        "abmil": {},
    }[model]
    torch.manual_seed(seed)
    bags = read_bags(features)
    folds = (
        Fold("0", SLIDES[2:], (), SLIDES[:2]),
        Fold("1", SLIDES[:2], (), SLIDES[2:]),
    )
    run = Run.create(path, folds, {"model": model}, data={"folder": features, "labels": None})
    for fold in folds:
        network = build_model(model, in_dim=4, num_classes=2, **sizes).eval()
        batch = BagBatch.pack(list(bags.subset(fold.train)))
        network.initialise(batch, seed=seed)
        network.start_epoch(0, epochs=1, batches=[batch], num_bags=2, seed=seed)
        run.folds[fold.name].path.mkdir(parents=True)
        save_model(
            network, run.folds[fold.name].path / "checkpoint.safetensors", class_names=CLASSES
        )
        found = predict(network, bags.subset(fold.test), class_names=CLASSES)
        labelled = tuple(replace(p, label=SLIDES.index(p.slide_id) % 2) for p in found.predictions)
        run.folds[fold.name].write(PredictionTable(labelled, ClassTarget(CLASSES)))
    return run.path


def write_slides(folder, slide_ids=SLIDES):
    folder.mkdir()
    for number, name in enumerate(slide_ids):
        write_slide(folder / f"{name}.tiff", number)
    return folder


def write_annotations(folder):
    folder.mkdir()
    feature = {
        "type": "Feature",
        "properties": {"classification": {"name": "Tumor"}},
        "geometry": {"type": "Polygon", "coordinates": [RING]},
    }
    for name in (SLIDES[1], SLIDES[3]):
        content = {"type": "FeatureCollection", "features": [feature]}
        (folder / f"{name}.geojson").write_text(json.dumps(content))
    return folder
