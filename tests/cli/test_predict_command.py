import pytest
import torch

from sgpmil.models import build_model, load_model, save_model
from sgpmil.runs.prediction_files import read_predictions


@pytest.fixture
def checkpoint(tmp_path):
    model = build_model("abmil", in_dim=4, num_classes=2, hidden_dim=3, attention_dim=2)
    return save_model(model, tmp_path / "m.safetensors", class_names=("normal", "tumor"))


def test_features_of_another_encoder_are_refused(sgpmil, slides, tmp_path):
    model = build_model("abmil", in_dim=5, num_classes=2, hidden_dim=3, attention_dim=2)
    path = save_model(model, tmp_path / "m.safetensors", class_names=("a", "b"))
    code, _, err = sgpmil("predict", path, slides[0], "--out", tmp_path / "p")
    assert code == 2
    assert "5 features" in err
    assert not (tmp_path / "p").exists()


def test_unknown_class_in_the_labels_is_refused(sgpmil, slides, checkpoint, tmp_path):
    folder, labels = slides
    labels.write_text(labels.read_text().replace("tumor", "benign"))
    code, _, err = sgpmil(
        "predict", checkpoint, folder, "--labels", labels, "--out", tmp_path / "p"
    )
    assert code == 2
    assert "benign" in err


def test_labels_of_a_store_are_translated_by_name(sgpmil, slides, checkpoint, tmp_path):
    folder, labels = slides
    store = tmp_path / "store"
    sgpmil("pack", folder, store, "--labels", labels, "--classes", "tumor,normal")
    for source, out in ((folder, "a"), (store, "b")):
        options = ["--labels", labels] if source == folder else []
        assert sgpmil("predict", checkpoint, source, "--out", tmp_path / out, *options)[0] == 0
    one, other = (read_predictions(tmp_path / out / "predictions.parquet") for out in "ab")
    assert [p.label for p in one.predictions] == [p.label for p in other.predictions]
    assert one.predictions[1].label == 1  # the second slide is a tumor, the model's class 1


def test_new_predictions_replace_the_old_ones_whole(sgpmil, slides, checkpoint, tmp_path):
    folder, labels = slides
    out = tmp_path / "p"
    assert sgpmil("predict", checkpoint, folder, "--out", out, "--labels", labels)[0] == 0
    (folder / "004.slide.h5").unlink()
    assert sgpmil("predict", checkpoint, folder, "--out", out, "--overwrite")[0] == 0
    assert not (out / "attention" / "004.slide.h5").exists()
    assert len(list((out / "attention").iterdir())) == 19


def test_the_csv_can_be_evaluated(sgpmil, slides, checkpoint, tmp_path):
    folder, labels = slides
    assert sgpmil("predict", checkpoint, folder, "--out", tmp_path, "--labels", labels)[0] == 0
    of_csv = sgpmil("evaluate", tmp_path / "predictions.csv")[1]
    of_table = sgpmil("evaluate", tmp_path / "predictions.parquet")[1]
    # But for the names of the classes, which a CSV does not have.
    assert of_csv.split("│")[1:-1] != []
    for part in ("Uncertainty", "95% intervals"):
        assert (
            of_csv.partition(part)[2].split("Confusion")[0]
            == (of_table.partition(part)[2].split("Confusion")[0])
        )


def test_a_gpu_that_is_not_there(sgpmil, slides, checkpoint, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, _, err = sgpmil("predict", checkpoint, slides[0], "--device", "gpu", "--out", tmp_path)
    assert code == 2
    assert "found none" in err


def test_a_run_of_several_folds_needs_a_fold(sgpmil, slides, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "run.json").write_text("{}")
    code, _, err = sgpmil("predict", run, slides[0])
    assert code == 2
    assert "fold-0" in err


def test_import_released_round_trip(sgpmil, tmp_path):
    shapes = {
        "mlp.0.weight": (6, 4),
        "mlp.0.bias": (6,),
        "f_gp.0.weight": (3, 6),
        "f_gp.0.bias": (3,),
        "f_gp.2.variational_strategy.inducing_points": (5, 3),
        "f_gp.2.variational_strategy._variational_distribution.variational_mean": (5,),
        "f_gp.2.variational_strategy._variational_distribution.chol_variational_covar": (5, 5),
        "f_gp.2.mean_module.weights": (3, 1),
        "f_gp.2.mean_module.bias": (1,),
        "f_gp.2.cov_module.kernels.0.raw_outputscale": (),
        "f_gp.2.cov_module.kernels.0.base_kernel.raw_lengthscale": (1, 1),
        "f_gp.2.cov_module.kernels.1.raw_constant": (1,),
        "cl.weight": (2, 6),
        "cl.bias": (2,),
    }
    state = {f"model.{name}": torch.randn(shape) for name, shape in shapes.items()}
    torch.save({"state_dict": state}, tmp_path / "last.ckpt")
    out = tmp_path / "ours.safetensors"
    assert sgpmil("import-released", tmp_path / "last.ckpt", out, "--classes", "n,t")[0] == 0
    model, info = load_model(out)
    assert info.class_names == ("n", "t")
    torch.testing.assert_close(model.classifier.weight.data, state["model.cl.weight"])
    code, _, err = sgpmil(
        "import-released", tmp_path / "last.ckpt", tmp_path / "o.safetensors", "--classes", "n"
    )
    assert code == 2
    assert "2 class names" in err
