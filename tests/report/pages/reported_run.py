"""A small run on disk with all that a report shows, and pages read back."""

from html.parser import HTMLParser

import h5py
import numpy as np
import torch
from PIL import Image

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.models import build_model, save_model
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.run import Run
from tests.explanation.prototypes.explained import FREE_POINTS

CLASSES = ("normal", "tumour")
SIDE = 64
COORDS = np.array([(x, y) for y in range(0, 256, SIDE) for x in range(0, 256, SIDE)])
SIZES = {
    **FREE_POINTS,
    "hidden_dims": (8,),
    "gp_dim": 4,
    "num_inducing": 5,
    "num_samples": 8,
    "prediction_samples": 16,
    "prediction_error": 0.0,
}
NASTY = "<img src=x onerror=alert(1)>&\"'$x_1$"
"""A name that must not become part of a page, nor a formula."""


def prediction(slide_id, label, centre, rng, *, posterior=True, evidence=True, case_id=None):
    """What a model says of a slide of 16 patches, whose probability of the last class is known."""
    spread = 0.05 * rng.normal(size=12) if posterior else np.zeros(1)
    high = np.clip(centre + spread - spread.mean(), 1e-3, 1 - 1e-3)
    weight = rng.dirichlet(np.ones(len(COORDS)))
    std = 0.3 * weight * rng.uniform(0.5, 1, len(weight)) if posterior else np.zeros(len(weight))
    logit = rng.normal(size=(len(COORDS), 2))
    scores = InstanceScores(
        weight,
        std,
        weight[:, None] * logit if evidence else None,
        std[:, None] * np.abs(logit) if evidence else None,
        coords=COORDS,
        patch_size=SIDE,
    )
    samples = np.stack([1 - high, high], axis=1)
    return Prediction.from_samples(slide_id, case_id or f"case {slide_id}", label, samples, scores)


def table(names, seed, *, flip=(), **options):
    """Slides of alternating labels that are told apart well; those named in `flip` are not."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, name in enumerate(names):
        label = number % 2
        surely = rng.uniform(0.55, 0.97)
        right = surely if label else 1 - surely
        wrong = 0.06 if label else 0.94
        rows.append(prediction(name, label, wrong if name in flip else right, rng, **options))
    return PredictionTable(tuple(rows), ClassTarget(CLASSES))


def material(num_folds=2, num_slides=12, num_validation=30, *, names=None, path, **options):
    """A run that lies only in memory."""
    folds = []
    for fold in range(num_folds):
        own = names[fold] if names else [f"f{fold} s{i:02d}" for i in range(num_slides)]
        validation = [f"v{fold} {i:02d}" for i in range(num_validation)]
        folds.append(
            TestedFold(
                str(fold),
                table(own, fold, flip=own[2:3], **options),
                table(validation, 50 + fold, flip=validation[4:5], **options)
                if num_validation
                else None,
            )
        )
    names = [fold.name for fold in folds]
    run = Run(path, {"folds": names, "settings": {"model": "sgpmil"}})
    return RunMaterial(path, tuple(folds), run)


def write_run(path, features, slides):
    """Write a run of two folds with models, embeddings and pictures of the slides."""
    torch.manual_seed(0)
    names = [[f"f{fold} s{i:02d}" for i in range(12)] for fold in range(2)]
    held = [[f"v{fold} {i:02d}" for i in range(30)] for fold in range(2)]
    folds = tuple(
        Fold(str(k), tuple(names[1 - k]), tuple(held[k]), tuple(names[k])) for k in range(2)
    )
    settings = {
        "model": "sgpmil",
        "model_settings": {"hidden_dims": [8], "gp_dim": 4, "num_inducing": 5},
        "training": {"epochs": 3},
    }
    run = Run.create(path, folds, settings, data={"folder": features, "labels": None})
    features.mkdir()
    slides.mkdir()
    for fold in range(2):
        network = build_model("sgpmil", in_dim=4, num_classes=2, **SIZES).eval()
        run.folds[str(fold)].path.mkdir(parents=True)
        save_model(
            network, run.folds[str(fold)].path / "checkpoint.safetensors", class_names=CLASSES
        )
        test = table(names[fold], fold, flip=names[fold][2:3])
        run.folds[str(fold)].write(test, table(held[fold], 50 + fold, flip=held[fold][4:5]))
        for number, name in enumerate(names[fold]):
            rng = np.random.default_rng(100 * fold + number)
            with h5py.File(features / f"{name}.h5", "w") as file:
                file["features"] = rng.normal(size=(len(COORDS), 4)).astype(np.float32)
                file["coords"] = COORDS
                file["coords"].attrs["patch_size_level0"] = SIDE
            pixels = rng.integers(120, 255, size=(256, 256, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(slides / f"{name}.png")
    return run.path


class ReadPage(HTMLParser):
    """A page as it is read: tables by caption, headings, words, pictures, and whether it nests."""

    _VOID = ("meta", "link", "img", "br", "hr", "input")

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tables, self.headings, self.images, self.ids = {}, [], [], []
        self.tags, self.problems, self.text = [], [], ""
        self._rows, self._caption, self._cell, self._heading = [], None, None, None
        self.feed(text)
        self.close()
        self.problems += self.tags

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "img":
            self.images.append(found)
        if tag == "table":
            self._rows, self._caption = [], ""
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th"):
            self._cell = ""
        if tag in ("h1", "h2", "h3", "h4"):
            self._heading = ""
        if tag not in self._VOID:
            self.tags.append(tag)

    def handle_endtag(self, tag):
        if not self.tags or self.tags.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()}")
        if tag in ("td", "th"):
            self._rows[-1].append(self._cell)
            self._cell = None
        if tag == "table":
            self.tables[self._caption] = self._rows
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append((tag, self._heading))
            self._heading = None

    def handle_data(self, data):
        if self.tags and self.tags[-1] in ("style", "script"):
            return
        self.text += data
        if self._cell is not None:
            self._cell += data
        if self.tags and self.tags[-1] == "caption":
            self._caption += data
        if self._heading is not None:
            self._heading += data
