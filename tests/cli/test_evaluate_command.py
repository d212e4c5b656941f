import csv

import numpy as np
from sklearn.metrics import roc_auc_score

from sgpmil.evaluation import read_metrics


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
    code, out, _ = sgpmil("evaluate", path, "--out", tmp_path / "metrics.parquet")
    assert code == 0
    expected = roc_auc_score(labels, p.round(6))
    assert f"{expected:.3f}" in out
    (fold,) = read_metrics(tmp_path / "metrics.parquet")
    assert abs(fold.slide.auc - expected) < 1e-9


def test_undefined_is_said(sgpmil, tmp_path):
    path = tmp_path / "one_class.csv"
    path.write_text("slide_id,label,p_0,p_1\na,1,0.2,0.8\nb,1,0.3,0.7\n")
    code, out, _ = sgpmil("evaluate", path)
    assert code == 0
    assert "AUC is undefined in 1 of 1" in out
