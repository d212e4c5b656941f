import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

pytest.importorskip("shapely", reason="shapely is not installed: pip install '.[slides]'")

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import PredictionError
from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.localisation.pixel_protocol import PIXEL_THRESHOLDS, paint, pixel_protocol
from sgpmil.evaluation.localisation.scored_slides import InstanceLabeller
from sgpmil.evaluation.prediction import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.slides.annotations import open_annotations
from tests.evaluation.drawn_slides import COORDS, drawn_folder, drawn_table, is_tumour, prediction
from tests.slides.annotations.drawings import rectangle, write_asap, write_tiff


def scores_at(coords, patch_size, attention=None):
    num = len(coords)
    mean = np.ones(num) if attention is None else attention
    return InstanceScores(
        mean, np.zeros(num), coords=np.asarray(coords, dtype=np.int64), patch_size=patch_size
    )


def test_paint():
    scores = scores_at([[0, 0], [256, 128], [300, 130], [0, 384], [512, 0]], 256)
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    canvas, tissue = paint(scores, values, 128, (4, 4))
    expected = np.zeros((4, 4))
    for (x, y), value in zip(scores.coords, values, strict=True):
        for row in range(y // 128, y // 128 + 2):
            for column in range(x // 128, x // 128 + 2):
                if row < 4 and column < 4:
                    expected[row, column] = value
    np.testing.assert_array_equal(canvas, expected)
    np.testing.assert_array_equal(tissue, expected > 0)
    # A patch smaller than a pixel still has one.
    canvas, _ = paint(scores_at([[200, 5]], 64), np.array([0.7]), 128, (2, 2))
    np.testing.assert_array_equal(canvas, [[0, 0.7], [0, 0]])
    for part in ({"coords": None}, {"patch_size": None}):
        with pytest.raises(PredictionError, match="coordinates and a patch size to paint"):
            paint(replace(scores, **part), values, 128, (4, 4))


@pytest.mark.parametrize("quantise", [True, False])
def test_against_loops(tmp_path, quantise):
    folder = open_annotations(drawn_folder(tmp_path))
    table = InstanceLabeller(folder).label(drawn_table()).table
    sizes = dict.fromkeys(table.slide_ids, (173, 121))
    rows = pixel_protocol(
        table, folder, downsample=5, quantise=quantise, slide_sizes=sizes, fold="f"
    )
    assert [row.score for row in rows] == ["attention", "uniform", "random"]
    slides = []
    for p in table.predictions:
        if p.label == 0:
            continue
        canvas, truth = np.zeros((24, 34)), np.zeros((24, 34), dtype=bool)
        values = p.instances.attention_mean
        values = (values - values.min()) / (values.max() - values.min())
        for (x, y), value in zip(COORDS, values, strict=True):
            canvas[y // 5 : y // 5 + 2, x // 5 : x // 5 + 2] = value
        for row in range(24):
            for column in range(34):
                truth[row, column] = is_tumour(p.slide_id, 5 * column + 2.5, 5 * row + 2.5)
        if quantise:
            canvas = (canvas * 255).astype(np.uint8) / 255
        slides.append((canvas.ravel(), truth.ravel()))
    row = rows[0]
    assert row.auc == pytest.approx(np.mean([roc_auc_score(y, s) for s, y in slides]))
    balanced = [
        np.mean([balanced_accuracy_score(y, s > t) for s, y in slides]) for t in PIXEL_THRESHOLDS
    ]
    assert row.balanced_accuracy == pytest.approx(max(balanced))
    assert row.threshold == PIXEL_THRESHOLDS[int(np.argmax(balanced))]
    assert row.f1 == pytest.approx(np.mean([f1_score(y, s > row.threshold) for s, y in slides]))
    expected = [
        adaptive_calibration_error(np.stack([1 - s, s], 1), y.astype(int)) for s, y in slides
    ]
    assert row.ace == pytest.approx(np.mean(expected))
    assert row.tissue_share == pytest.approx(24 * 16 / (24 * 34))
    assert row.num_slides == 3
    assert (row.fold, row.note) == ("f", "")


@pytest.mark.parametrize(("tissue", "published"), [(0.10, 0.95), (0.15, 0.925), (0.20, 0.90)])
def test_the_published_artefact(tmp_path, tissue, published):
    # A slide of 100 × 100 patches, the tissue in its middle, a small tumour in the tissue.
    side = round(100 * tissue**0.5)
    start = 50 - side // 2
    columns, rows = np.meshgrid(np.arange(side), np.arange(side))
    coords = (np.stack([columns, rows], axis=-1).reshape(-1, 2) + start) * 256
    corner = (start + 5) * 256
    write_asap(
        tmp_path / "t.xml", [("Tumor", rectangle(corner, corner, corner + 2560, corner + 1280))]
    )
    folder = open_annotations(tmp_path)
    one = Prediction.from_samples(
        "t", "t", 1, np.array([[0.5, 0.5]]), scores_at(coords, 256, np.linspace(0, 1, len(coords)))
    )
    table = PredictionTable((one,), ClassTarget(("normal", "tumour")))
    labelled = InstanceLabeller(folder).label(table).table
    found = [
        pixel_protocol(labelled, folder, slide_sizes={"t": (25600, 25600)}, seed=seed)
        for seed in range(8)
    ]
    random = [rows[2] for rows in found]
    assert np.mean([row.auc for row in random]) == pytest.approx(published, abs=0.02)
    assert np.mean([row.tissue_auc for row in random]) == pytest.approx(0.5, abs=0.05)
    uniform = found[0][1]
    assert uniform.tissue_auc == 0.5
    assert uniform.auc == pytest.approx(published, abs=0.02)
    assert uniform.tissue_share == pytest.approx(tissue, rel=0.1)


def test_quantisation_ties_faint_patches_with_the_background(tmp_path):
    write_asap(tmp_path / "t.xml", [("Tumor", rectangle(0, 0, 1280, 128))])
    folder = open_annotations(tmp_path)
    coords = np.stack([np.arange(20) * 128, np.zeros(20, dtype=np.int64)], axis=1)
    # One patch outshines all: the tumour's attention is below one step of 255.
    attention = np.where(np.arange(20) < 10, 0.002, 0.001)
    attention[19] = 1.0
    one = Prediction.from_samples(
        "t", "t", 1, np.array([[0.5, 0.5]]), scores_at(coords, 128, attention)
    )
    table = PredictionTable((one,), ClassTarget(("normal", "tumour")))
    fine = pixel_protocol(table, folder, quantise=False)[0]
    coarse = pixel_protocol(table, folder, quantise=True)[0]
    assert fine.auc == pytest.approx(0.9)
    assert coarse.auc == pytest.approx(0.45)
    assert math.isnan(fine.tissue_auc)


def test_pixels_at_a_threshold_are_not_called(tmp_path):
    write_asap(tmp_path / "t.xml", [("Tumor", rectangle(0, 0, 128, 128))])
    coords = np.array([[0, 0], [128, 0], [256, 0]])
    one = Prediction.from_samples(
        "t", "t", 1, np.array([[0.5, 0.5]]), scores_at(coords, 128, np.array([1.0, 0.5, 0.0]))
    )
    table = PredictionTable((one,), ClassTarget(("normal", "tumour")))
    row = pixel_protocol(table, open_annotations(tmp_path), quantise=False)[0]
    assert (row.threshold, row.balanced_accuracy, row.f1) == (0.5, 1, 1)


def test_size_of_the_canvas(tmp_path):
    folder = open_annotations(drawn_folder(tmp_path))
    table = drawn_table(("t0", "t1"))
    known = pixel_protocol(
        table, folder, downsample=5, slide_sizes={"t0": (240, 160), "t1": (240, 160)}
    )
    guessed = pixel_protocol(table, folder, downsample=5)
    assert guessed[0].note == (
        "The size of 2 slides is not known: the canvas ends with the last patch there."
    )
    assert guessed[0].tissue_share == 1.0
    assert known[0].tissue_share == 0.25
    # With more background the same scores look better.
    assert known[2].auc > guessed[2].auc + 0.1
    mask = np.zeros((32, 48), dtype=np.uint8)
    mask[2:8, 4:12] = 1
    (tmp_path / "masks").mkdir()
    write_tiff(tmp_path / "masks" / "t0_mask.tif", mask)
    masks = open_annotations(tmp_path / "masks", mask_downsample=5.0)
    row = pixel_protocol(table, masks, downsample=5)[0]
    assert (row.tissue_share, row.note, row.num_slides) == (0.25, "", 1)


def test_nothing_to_paint(tmp_path):
    folder = open_annotations(drawn_folder(tmp_path))
    table = drawn_table(("n0", "t9"))
    bare = PredictionTable(
        (*table.predictions, replace(prediction("t0", 1), instances=None)), table.target
    )
    for row in pixel_protocol(bare, folder):
        assert row.num_slides == 0
        assert row.note == "No positive slide has annotations."
        numbers = (row.auc, row.balanced_accuracy, row.f1, row.ace, row.threshold, row.tissue_auc)
        assert all(math.isnan(number) for number in numbers)
