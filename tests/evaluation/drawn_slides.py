"""Slides on a grid of patches, with drawn tumours, for the tests of this folder."""

import numpy as np

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from tests.slides.annotations.drawings import rectangle, write_asap

SIDE = 10
COORDS = np.stack(np.meshgrid(np.arange(12), np.arange(8)), axis=-1).reshape(-1, 2) * SIDE
TUMOURS = {
    # Columns and rows of patches: two lesions, one with a hole, and a lesion of one patch.
    "t0": [("Tumor", rectangle(20, 10, 60, 40)), ("_2", rectangle(30, 20, 40, 30))],
    "t1": [("_0", rectangle(0, 0, 30, 30)), ("_1", rectangle(80, 40, 120, 80))],
    "t2": [("Tumor", rectangle(100, 70, 110, 80))],
}


def is_tumour(slide_id, x, y):
    """Whether a point lies in what was drawn, by the numbers above."""
    inside = {
        "t0": (20 < x < 60 and 10 < y < 40) and not (30 < x < 40 and 20 < y < 30),
        "t1": (x < 30 and y < 30) or (80 < x < 120 and 40 < y < 80),
        "t2": 100 < x < 110 and 70 < y < 80,
    }
    return inside.get(slide_id, False)


def truth(slide_id):
    return np.array([is_tumour(slide_id, x + 5, y + 5) for x, y in COORDS])


def drawn_folder(folder):
    for slide_id, drawn in TUMOURS.items():
        write_asap(folder / f"{slide_id}.xml", drawn)
    return folder


def prediction(slide_id, label, seed=0, **changes):
    rng = np.random.default_rng([seed, *slide_id.encode()])
    attention = rng.random(len(COORDS)) + 0.6 * truth(slide_id)
    scores = {
        "attention_mean": attention,
        "attention_std": 0.1 * rng.random(len(COORDS)),
        "coords": COORDS,
        "patch_size": SIDE,
    }
    return Prediction.from_samples(
        slide_id,
        slide_id,
        label,
        rng.dirichlet([2, 2], size=4),
        InstanceScores(**(scores | changes)),
    )


def drawn_table(slide_ids=("t0", "n0", "t1", "n1", "t2"), **changes):
    rows = tuple(prediction(name, int(name.startswith("t")), **changes) for name in slide_ids)
    return PredictionTable(rows, ClassTarget(("normal", "tumour")))
