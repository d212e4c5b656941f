import os

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from sgpmil.errors import BagError, SettingsError
from sgpmil.runs import prediction_parts
from sgpmil.runs.predict import PredictOptions, predict_folder
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.trained_model import TrainedModel
from tests.ray_machines import by_value, contents, first, losing_a_machine, wait_on_lost

COUNT = 40


def write_bag(folder, number, shift=0.0):
    rng = np.random.default_rng(number)
    with h5py.File(folder / f"s{number:02d}.h5", "w") as file:
        file["features"] = rng.normal(size=(3500, 4)).astype(np.float32) + number % 2 + shift
        file["coords"] = 256 * np.stack([np.arange(3500), np.zeros(3500, int)], 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Slides of five parts, and a run of two folds on eight of them."""
    import sgpmil
    from sgpmil.bags.splits import make_kfold

    place = tmp_path_factory.mktemp("made")
    (place / "features").mkdir()
    for number in range(COUNT):
        write_bag(place / "features", number)
    arrays = {f"s{n:02d}": np.random.default_rng(n).normal(size=(9, 4)) + n % 2 for n in range(8)}
    bags = sgpmil.BagDataset.from_arrays(arrays, [n % 2 for n in range(8)])
    sgpmil.cross_validate(
        bags,
        make_kfold(bags.label_table(), num_folds=2, val_fraction=0.25),
        model="abmil",
        model_settings={"hidden_dim": 4, "attention_dim": 3},
        training={"epochs": 1, "device": "cpu"},
        run=place / "run",
        progress=False,
    )
    expected = place / "expected"
    predict_folder(PredictOptions(model=place / "run", features=place / "features", out=expected))
    return place


def options_of(made, out, **values):
    start = {"model": made / "run", "features": made / "features", "out": out}
    return PredictOptions(**(start | values))


def same_predictions(found, expected):
    tables = [pq.read_table(folder / "predictions.parquet") for folder in (found, expected)]
    assert tables[0].equals(tables[1])
    origins = [read_predictions(folder).provenance.to_json() for folder in (found, expected)]
    assert [origin.pop("created") for origin in origins]
    assert origins[0] == origins[1]
    files = [contents(folder) for folder in (found, expected)]
    for dated in ("predictions.parquet", "provenance.json"):
        assert [own.pop(dated) for own in files]
    assert files[0] == files[1]
    assert len(files[0]) == COUNT + 1  # the scores of every slide, and the CSV


def test_a_stopped_prediction_goes_on_where_it_stopped(made, tmp_path, monkeypatch):
    out, predicted = tmp_path / "p", []
    write = prediction_parts.write_instance_scores

    def noted(path, scores):
        if path.stem == "s25" and not predicted[30:]:
            raise KeyboardInterrupt
        predicted.append(path.stem)
        write(path, scores)

    monkeypatch.setattr(prediction_parts, "write_instance_scores", noted)
    with pytest.raises(KeyboardInterrupt):
        predict_folder(options_of(made, out))
    assert not (out / "predictions.parquet").exists()
    assert len(predicted) == 25
    assert len(list((out / "parts").iterdir())) == 2  # of nine slides each
    predicted[:] = ["before"] * 31
    predict_folder(options_of(made, out))
    assert predicted[31:] == [f"s{number:02d}" for number in range(18, COUNT)]
    same_predictions(out, made / "expected")


def test_parts_of_other_slides_options_or_models_are_predicted_again(made, tmp_path, monkeypatch):
    features = tmp_path / "features"
    features.mkdir()
    for path in (made / "features").iterdir():
        os.link(path, features / path.name)
    (features / "s30.h5").unlink()
    (features / "s30.h5").write_bytes(b"damaged")
    given = {"features": features, "out": tmp_path / "p", "skip_bad": False}
    with pytest.raises(BagError, match="s30"):
        predict_folder(options_of(made, **given))
    (features / "s30.h5").unlink()
    write_bag(features, 30)
    monkeypatch.setattr(TrainedModel, "iter_predictions", stop_after(20))
    with pytest.raises(KeyboardInterrupt):
        predict_folder(options_of(made, **given))
    parts = set((tmp_path / "p/parts").iterdir())
    assert len(parts) == 2
    with pytest.raises(KeyboardInterrupt):  # other predictions: nothing of before is kept
        predict_folder(options_of(made, **given, prevalence="0.3"))
    assert len(set((tmp_path / "p/parts").iterdir())) == 2
    assert not parts & set((tmp_path / "p/parts").iterdir())
    (features / "s03.h5").unlink()
    write_bag(features, 3, shift=1.0)  # as many instances, but others
    monkeypatch.undo()
    predict_folder(options_of(made, **given, prevalence="0.3"))
    fresh = {**given, "out": tmp_path / "fresh"}
    predict_folder(options_of(made, **fresh, prevalence="0.3"))
    same_predictions(tmp_path / "p", tmp_path / "fresh")


def stop_after(count):
    iterate = TrainedModel.iter_predictions

    def stopped(self, bags, **options):
        for number, prediction in enumerate(iterate(self, bags, **options)):
            if number == count:
                raise KeyboardInterrupt
            yield prediction

    return stopped


def test_bags_without_a_common_folder_are_refused(made, tmp_path):
    pytest.importorskip("ray")
    with pytest.raises(SettingsError, match="same path"):
        predict_folder(options_of(made, tmp_path / "p", on="ray", shared_folder=False))


class Fragile(prediction_parts.PredictionWork):
    """Dies in the middle of a part, leaving half of it, on the machine that is to be lost."""

    def __call__(self):
        markers, lost = self.out.parent, (self.out.parent / "machine").read_text()

        def predict(part):
            import ray

            if ray.get_runtime_context().get_node_id() == lost and first(markers / "begun"):
                folder = self.out / "attention"
                folder.mkdir(exist_ok=True)
                (folder / f".{part.slides[0]}.h5.0ddba1-7.deadbeef.tmp").write_bytes(b"half")
            if part.slides[0] != "s00":
                wait_on_lost(markers, lost)
            self.predict([part])

        return predict


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_machine_that_is_lost_half_way_changes_nothing(cluster, made, tmp_path, monkeypatch):
    by_value(__name__)
    monkeypatch.setattr("sgpmil.runs.predict.PredictionWork", Fragile)
    with losing_a_machine(cluster, tmp_path) as lost:
        (tmp_path / "machine").write_text(lost)
        predict_folder(options_of(made, tmp_path / "p", on="ray"))
    assert (tmp_path / "begun").exists()
    same_predictions(tmp_path / "p", made / "expected")
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        *("attention", "predictions.csv", "predictions.parquet", "provenance.json")
    ]
