"""Models that predict, loaded from anywhere."""

import shutil

import numpy as np
import pytest

import sgpmil
from sgpmil.bags.feature_origin import FeatureOrigin
from sgpmil.bags.splits import make_kfold
from sgpmil.errors import CheckpointError, PredictionError
from sgpmil.evaluation.ensemble import mixture
from sgpmil.models import build_model, load_model, save_model
from sgpmil.models.prevalence import ClassShares
from sgpmil.runs.trained_model import TrainedModel
from sgpmil.training.cross_validation import cross_validate
from tests.runs.test_predict import SMALL, write_bags


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of two folds of ABMIL on eight slides."""
    place = tmp_path_factory.mktemp("loaded")
    labels = write_bags(place / "features", 8)
    bags = sgpmil.read_bags(place / "features", labels=labels)
    folds = make_kfold(bags.label_table(), num_folds=2, seed=0)
    cross_validate(
        bags,
        folds,
        model="abmil",
        model_settings=SMALL,
        training={"epochs": 1, "device": "cpu"},
        run=place / "run",
    )
    return place


def test_the_folds_of_a_run_and_one_fold_are_used_alike(place):
    bags = sgpmil.read_bags(place / "features")
    both, first = sgpmil.load(place / "run"), sgpmil.load(place / "run" / "fold-0")
    assert (len(both), len(first)) == (2, 1)
    assert both.names == ("0", "1")
    assert both.class_names == first.class_names == ("no", "yes")
    alone = [load_model(place / "run" / f"fold-{k}")[0] for k in range(2)]
    tables = [sgpmil.predict(model, bags) for model in alone]
    for row, prediction in enumerate(both.predict(bags).predictions):
        expected = mixture([table.predictions[row] for table in tables])
        np.testing.assert_allclose(prediction.probs, expected.probs, atol=1e-7)
        np.testing.assert_allclose(prediction.std, expected.std, atol=1e-7)
        assert prediction.seen in ("train", "validation")
    np.testing.assert_allclose(first.predict(bags).probs, tables[0].probs, atol=1e-7)
    # As any sequence of models.
    np.testing.assert_allclose(sgpmil.predict(both, bags).probs, both.predict(bags).probs)


def test_the_encoder_of_the_training_features_is_known(place, tmp_path):
    assert sgpmil.load(place / "run").encoders == ()  # the files say none
    folder = tmp_path / "run"
    shutil.copytree(place / "run", folder)
    for fold, name in (("fold-0", "uni_v1"), ("fold-1", "virchow")):
        model, info = load_model(folder / fold)
        model.origin = FeatureOrigin((name,))
        save_model(model, folder / fold / "checkpoint.safetensors", details=info.details)
    assert sgpmil.load(folder).encoders == ("uni_v1", "virchow")
    assert sgpmil.load(folder / "fold-1").encoders == ("virchow",)


def test_bags_without_a_data_set_are_predicted_too(place):
    bags = sgpmil.read_bags(place / "features")
    model = sgpmil.load(place / "run")
    table = model.predict(list(bags), with_instances=False)
    np.testing.assert_allclose(table.probs, model.predict(bags).probs)
    assert table.predictions[0].instances is None


def test_labels_are_translated_by_name(place):
    turned = sgpmil.read_bags(
        place / "features", labels=place / "features.csv", classes=("yes", "no")
    )
    table = sgpmil.load(place / "run").predict(turned)
    assert table.target.names == ("no", "yes")
    assert [table.target.decode(p.label) for p in table.predictions[:2]] == ["yes", "no"]


def test_features_of_another_encoder_are_refused(place, tmp_path):
    (tmp_path / "other").mkdir()
    np.save(tmp_path / "other" / "a.npy", np.zeros((3, 7), dtype=np.float32))
    with pytest.raises(PredictionError, match=r"of 4 features.*these have 7.*same encoder"):
        sgpmil.load(place / "run").predict(sgpmil.read_bags(tmp_path / "other"))


def test_an_unfinished_run_is_refused(place, tmp_path):
    shutil.copytree(place / "run", tmp_path / "run")
    (tmp_path / "run" / "fold-1" / "predictions.parquet").unlink()
    with pytest.raises(CheckpointError, match="but 1 is not"):
        sgpmil.load(tmp_path / "run")
    assert len(sgpmil.load(tmp_path / "run" / "fold-0")) == 1


def test_the_class_shares_of_folds_are_their_mean():
    models = tuple(build_model("mean-pool", in_dim=2, num_classes=2) for _ in range(2))
    for model, share in zip(models, (0.5, 0.3), strict=True):
        model.shares = ClassShares((share, 1 - share), (0.5, 0.5), (share, 1 - share))
    together = TrainedModel(models, (), ("0", "1"), "runs/a").shares
    assert together.expected == pytest.approx((0.4, 0.6))
    assert together.drawn == (0.5, 0.5)
    models[1].shares = None
    assert TrainedModel(models, (), ("0", "1"), "runs/a").shares is None
