import csv

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from sgpmil.evaluation import InstanceScores, Prediction
from sgpmil.runs.prediction_folder import write_prediction_folder

pytestmark = pytest.mark.slow


def test_predictions_of_another_system(sgpmil, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 30)
    p = np.clip(0.3 * labels + rng.uniform(0, 0.7, 30), 0, 1)
    path = tmp_path / "other.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "label", "p_0", "p_1"])
        writer.writerows(
            [f"{i:04d}", y, f"{1 - q:.6f}", f"{q:.6f}"]
            for i, (y, q) in enumerate(zip(labels, p, strict=True))
        )
    code, out, _ = sgpmil("evaluate", path, "--out", tmp_path / "out")
    assert code == 0
    expected = roc_auc_score(labels, p.round(6))
    assert f"{expected:.3f}" in out
    (auc,) = pd.read_parquet(tmp_path / "out" / "metrics.parquet")["auc"]
    assert abs(auc - expected) < 1e-9


def test_undefined_is_said(sgpmil, tmp_path):
    path = tmp_path / "one_class.csv"
    path.write_text("slide_id,label,p_0,p_1\na,1,0.2,0.8\nb,1,0.3,0.7\n")
    code, out, _ = sgpmil("evaluate", path)
    assert code == 0
    assert "AUC is undefined in 1 of 1" in out


def write_table(path, num=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num)
    p = np.clip(0.3 * labels + rng.uniform(0, 0.7, num), 0.01, 0.99)
    rows = enumerate(zip(labels, p, strict=True))
    lines = [f"{path.stem}{i},{y},{1 - q:.6f},{q:.6f}" for i, (y, q) in rows]
    path.write_text("\n".join(["slide_id,label,p_0,p_1", *lines]) + "\n")
    return path


def test_all_that_is_measured_is_printed_and_written(sgpmil, tmp_path):
    test, val = write_table(tmp_path / "test.csv"), write_table(tmp_path / "val.csv", seed=1)
    out = tmp_path / "out"
    code, said, _ = sgpmil("evaluate", test, "--validation", val, "--out", out)
    assert code == 0
    for heading in ("95% intervals", "Confusion", "Brier score", "AUROC", "temperature"):
        assert heading in said
    figures = {path.name for path in (out / "figures").iterdir()}
    assert figures >= {"roc.png", "reliability.png", "risk-coverage.png", "temperature.png"}
    code, _, err = sgpmil("evaluate", test, "--out", out)
    assert code == 2
    assert "holds an evaluation already" in err
    assert sgpmil("evaluate", test, "--out", out, "--overwrite", "--bootstrap", "0")[0] == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,1,0.5,0.9", "probabilities that sum to 1"),
        ("a,1,0.1,0.9\na,0,0.8,0.2", "'a' twice"),
        ("a,1,nan,0.9", "a number for every probability"),
        ("a,1,-3.2,4.2", "probabilities between 0 and 1"),
        ("a,,0.1,0.9", "slide with a label"),
    ],
)
def test_tables_that_cannot_be_judged_get_a_sentence(sgpmil, tmp_path, rows, said):
    path = tmp_path / "bad.csv"
    path.write_text(f"slide_id,label,p_0,p_1\n{rows}\n")
    code, _, err = sgpmil("evaluate", path)
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err


def test_regions_need_annotations_and_a_run_no_validation(sgpmil, tmp_path):
    path = write_table(tmp_path / "test.csv")
    code, _, err = sgpmil("evaluate", path, "--regions", "Tumor")
    assert (code, "Add a folder" in err) == (2, True)
    code, _, err = sgpmil("evaluate", path, "--pixels")
    assert (code, "Add a folder" in err) == (2, True)
    code, _, err = sgpmil("evaluate", path, "--annotations", tmp_path / "none")
    assert (code, "folder of annotations" in err) == (2, True)
    code, _, err = sgpmil("evaluate", tmp_path / "nothing")
    assert (code, "there is nothing" in err) == (2, True)


def annotated(tmp_path):
    """A positive slide of sixteen patches, half of them in a tumour with a hole, and a negative."""
    rng = np.random.default_rng(0)
    coords = np.array([[x, y] for x in range(0, 400, 100) for y in range(0, 400, 100)])
    predictions = [
        Prediction.from_samples(
            name,
            name,
            label,
            np.array([[0.8 - 0.6 * label, 0.2 + 0.6 * label]]),
            InstanceScores(
                rng.random(16),
                np.zeros(16),
                coords=coords,
                patch_size=100,
                # Not those of the annotations, which are to be believed.
                instance_labels=np.arange(16) % 2,
            ),
        )
        for name, label in (("pos", 1), ("neg", 0))
    ]
    write_prediction_folder(tmp_path / "predictions", predictions, ("normal", "tumour"))
    folder = tmp_path / "xml"
    folder.mkdir()

    def region(group, left, top, right, bottom):
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        points = "".join(
            f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>' for i, (x, y) in enumerate(corners)
        )
        return (
            f'<Annotation Name="a" Type="Polygon" PartOfGroup="{group}">'
            f"<Coordinates>{points}</Coordinates></Annotation>"
        )

    drawn = region("Tumor", 0, 0, 200, 400) + region("Exclusion", 0, 0, 100, 100)
    (folder / "pos.xml").write_text(
        f"<ASAP_Annotations><Annotations>{drawn}</Annotations></ASAP_Annotations>"
    )
    truth = (coords[:, 0] < 200) & ~((coords[:, 0] == 0) & (coords[:, 1] == 0))
    return predictions[0].instances.attention_mean, truth


@pytest.mark.parametrize("regions", [(), ("--regions", "Tumor"), ("--regions", "camelyon")])
def test_annotations_label_the_patches_with_their_holes(sgpmil, tmp_path, regions):
    pytest.importorskip("shapely")
    scores, truth = annotated(tmp_path)
    where = ("--annotations", tmp_path / "xml", *regions)
    code, said, _ = sgpmil("evaluate", tmp_path / "predictions", *where, "--out", tmp_path / "out")
    assert code == 0
    (auc,) = pd.read_parquet(tmp_path / "out" / "metrics.parquet")["attention_auc"]
    expected = roc_auc_score(truth, scores)
    assert auc == pytest.approx(expected)
    assert said.count(f"{expected:.3f}") >= 2  # the same above and in the table of instances


def test_regions_that_no_annotation_has_are_refused(sgpmil, tmp_path):
    pytest.importorskip("shapely")
    annotated(tmp_path)
    where = ("--annotations", tmp_path / "xml", "--regions", "Tumour")
    code, _, err = sgpmil("evaluate", tmp_path / "predictions", *where)
    assert code == 2
    assert "--regions" in err
