"""The default on real nuclei: it learns the bags, and finds the instances it was not told of."""

from pathlib import Path

import pytest

from sgpmil import TrainingSettings, cross_validate, read_bags

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "colon"


@pytest.mark.slow
@pytest.mark.skipif(not DATA.exists(), reason=f"the colon nuclei are not at {DATA}")
@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
def test_colon_nuclei(model, tmp_path):
    bags = read_bags(DATA / "features", DATA / "labels.csv")
    assert bags.class_names == ("no_epithelium", "epithelium")
    result = cross_validate(
        bags,
        DATA / "splits",
        model=model,
        training=TrainingSettings(epochs=8, warmup_epochs=2),
        run=tmp_path / "run",
        only_folds=["0"],
        progress=False,
    )
    (fold,) = result.metrics
    assert fold.slide.auc > 0.9
    assert fold.instance.evidence_auc > 0.7
