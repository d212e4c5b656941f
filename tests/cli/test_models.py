import csv
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sgpmil.bags import Bag, BagBatch, read_bags
from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import Prediction
from sgpmil.evaluation.lipschitz import lipschitz_paths
from sgpmil.evaluation.uncertainty.conformal import fit_conformal
from sgpmil.evaluation.uncertainty.decisions import fit_deferral
from sgpmil.models import build_model, load_model, save_model
from sgpmil.models.prevalence import ClassShares
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.prediction_folder import read_slide_scores, write_prediction_folder
from sgpmil.runs.run import Run


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
    said = [
        sgpmil("evaluate", tmp_path / name, "--full")[1].replace(name, "NAME")
        for name in ("predictions.csv", "predictions.parquet")
    ]
    # But for the names of the classes, and the provenance, which a CSV does not have.
    of_csv, of_table = (one.partition("95% intervals")[2].split("Confusion")[0] for one in said)
    assert "balanced accuracy" in of_csv
    assert of_csv == of_table


def test_a_gpu_that_is_not_there(sgpmil, slides, checkpoint, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, _, err = sgpmil("predict", checkpoint, slides[0], "--device", "gpu", "--out", tmp_path)
    assert code == 2
    assert "found none" in err


def test_a_run_that_is_not_done_names_its_folds(sgpmil, slides, tmp_path):
    run = tmp_path / "run"
    make_run(run, trained=())
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


CLASSES = ("normal", "tumor")


@pytest.fixture
def fold(tmp_path):
    """The folder of a fold with forty validation slides, between certain and uncertain."""
    folder = tmp_path / "run" / "fold-0"
    torch.manual_seed(1)
    model = build_model("abmil", in_dim=4, num_classes=2, hidden_dim=3, attention_dim=2)
    with torch.no_grad():
        model.classifier.weight.mul_(6)  # so that the slides differ
        model.classifier.bias.zero_()
    save_model(model, folder / "checkpoint.safetensors", class_names=CLASSES)
    rng = np.random.default_rng(0)
    predictions = []
    for number in range(40):
        p = rng.uniform(0.3, 0.7)
        label = int(rng.uniform() < p)
        name = f"val-{number}"
        predictions.append(Prediction.from_samples(name, name, label, np.array([[1 - p, p]])))
    write_prediction_folder(folder / "validation", predictions, ClassTarget(CLASSES))
    return folder


def rows_of(out):
    with (out / "predictions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_sets_and_marks_are_those_of_the_validation_slides(sgpmil, slides, fold, tmp_path, method):
    out = tmp_path / "p"
    code, text, err = sgpmil(
        "predict", fold, slides[0], "--out", out, "--coverage", 0.8, "--conformal", method,
        "--defer", 0.25, "--labels", slides[1],
    )  # fmt: skip
    assert (code, err.strip()) == (0, "")
    validation = read_predictions(fold / "validation" / "predictions.parquet")
    table = read_predictions(out / "predictions.parquet")
    conformal = fit_conformal(validation, 0.8, method)
    sets = ["|".join(names) for names in conformal.sets(table).names()]
    deferral = fit_deferral(validation, 0.25)
    marks = ["yes" if defers else "no" for defers in deferral.defers(table)]
    assert [row["prediction_set"] for row in rows_of(out)] == sets
    assert [row["defer"] for row in rows_of(out)] == marks
    content = pq.read_table(out / "predictions.parquet").to_pydict()
    assert (content["prediction_set"], content["defer"]) == (sets, marks)
    assert len(set(sets)) > 1
    assert set(marks) == {"yes", "no"}
    assert f"Sets: {method.upper()}, coverage 0.8, from 40 calibration slides" in text
    assert f"To a human: {marks.count('yes')} of 20 slides, with entropy above" in text
    assert "expected 26.8% of slides like the 40 calibration slides" in text
    # The files are evaluated as before.
    assert sgpmil("evaluate", out)[0] == 0
    assert sgpmil("evaluate", out / "predictions.csv")[0] == 0


def test_the_printed_rows_tell_set_and_mark(sgpmil, slides, fold, tmp_path):
    out = tmp_path / "p"
    text = sgpmil("predict", fold, slides[0], "--out", out, "--coverage", 0.8, "--defer", 0.25)[1]
    table = read_predictions(out / "predictions.parquet")
    rows = {row["slide_id"]: row for row in rows_of(out)}
    shown = sorted(table.predictions, key=lambda p: -p.entropy)[:10]
    lines = [line for line in text.splitlines() if ".slide" in line]
    assert len(lines) == 10
    for prediction, line in zip(shown, lines, strict=True):
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        row = rows[prediction.slide_id]
        assert cells[0] == prediction.slide_id
        assert cells[2:] == [row["prediction_set"], row["defer"]]


def test_only_what_is_asked_for_is_added(sgpmil, slides, fold, tmp_path):
    plain, sets, marks = (tmp_path / name for name in ("plain", "sets", "marks"))
    text = sgpmil("predict", fold, slides[0], "--out", plain)[1]
    assert "Sets:" not in text
    assert "To a human" not in text
    assert sgpmil("predict", fold, slides[0], "--out", sets, "--coverage", 0.9)[0] == 0
    assert sgpmil("predict", fold, slides[0], "--out", marks, "--defer", 0.1)[0] == 0
    before = list(rows_of(plain)[0])
    assert list(rows_of(sets)[0]) == [*before, "prediction_set"]
    assert list(rows_of(marks)[0]) == [*before, "defer"]


def test_a_checkpoint_of_the_fold_and_other_calibration_slides(sgpmil, slides, fold, tmp_path):
    options = ("--coverage", 0.9, "--defer", 0.1)
    features = slides[0]
    of_fold, of_file, of_folder, of_csv = (tmp_path / name for name in "abcd")
    weights = fold / "checkpoint.safetensors"
    assert sgpmil("predict", fold, features, "--out", of_fold, *options)[0] == 0
    assert sgpmil("predict", weights, features, "--out", of_file, *options)[0] == 0
    moved = tmp_path / "elsewhere"
    shutil.move(fold / "validation", moved)
    told = ("--calibration", moved)
    assert sgpmil("predict", fold, features, "--out", of_folder, *options, *told)[0] == 0
    table = read_predictions(moved / "predictions.parquet")
    path = tmp_path / "other.csv"
    lines = ["slide_id,label,p_0,p_1"]
    lines += [
        f"{p.slide_id},{p.label},{float(p.probs[0])},{float(p.probs[1])}" for p in table.predictions
    ]
    path.write_text("\n".join(lines))
    told = ("--calibration", path)
    assert sgpmil("predict", fold, features, "--out", of_csv, *options, *told)[0] == 0
    expected = [(row["prediction_set"], row["defer"]) for row in rows_of(of_fold)]
    for out in (of_file, of_folder, of_csv):
        assert [(row["prediction_set"], row["defer"]) for row in rows_of(out)] == expected


def test_another_epoch_of_the_fold_was_not_validated(sgpmil, slides, fold, tmp_path):
    for suffix in (".safetensors", ".json"):
        shutil.copy(fold / f"checkpoint{suffix}", fold / f"last{suffix}")
    code, _, err = sgpmil(
        "predict", fold / "last.safetensors", slides[0], "--out", tmp_path / "p", "--defer", 0.1
    )
    assert code == 2
    assert "--calibration" in err


def test_no_validation_slides_is_one_sentence(sgpmil, slides, fold, tmp_path):
    shutil.rmtree(fold / "validation")
    code, _, err = sgpmil("predict", fold, slides[0], "--out", tmp_path / "p", "--coverage", 0.9)
    assert code == 2
    assert f"Expected predictions of validation slides in {fold / 'validation'}" in err
    assert "--calibration" in err
    assert not (tmp_path / "p").exists()


def test_too_few_calibration_slides_are_said(sgpmil, slides, fold, tmp_path):
    table = read_predictions(fold / "validation" / "predictions.parquet")
    write_prediction_folder(fold / "validation", table.predictions[:4], ClassTarget(CLASSES))
    out = tmp_path / "p"
    code, text, _ = sgpmil("predict", fold, slides[0], "--out", out, "--coverage", 0.9)
    assert code == 0
    assert "needs at least 9 calibration slides, but there are 4" in text
    assert {row["prediction_set"] for row in rows_of(out)} == {"normal|tumor"}


def test_calibrating_on_the_slides_themselves_is_said(sgpmil, slides, fold, tmp_path):
    features, labels = slides
    first = tmp_path / "first"
    assert sgpmil("predict", fold, features, "--out", first, "--labels", labels)[0] == 0
    text = sgpmil(
        "predict", fold, features, "--out", tmp_path / "p", "--defer", 0.1, "--calibration", first
    )[1]
    assert "20 of the 20 slides, or other slides of their patients, are calibration" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--conformal", "lac"), "Add --coverage 0.9"),
        (("--defer-by", "entropy"), "Add --defer 0.1"),
        (("--calibration", "x"), "--calibration is for --coverage and --defer"),
        (("--coverage", 90), "coverage between 0 and 1, but got 90.0"),
        (("--coverage", 0.9, "--conformal", "raps"), "'lac' or 'aps', but got 'raps'"),
        (("--defer", 1), "share of slides to defer between 0 and 1, but got 1.0"),
        (("--defer", 0.1, "--defer-by", "variance"), "got 'variance'"),
        (("--defer", 0.1, "--defer-by", "std"), "40 of 40 lack it. Defer by entropy."),
        (("--defer", 0.1, "--calibration", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_impossible_options_are_one_sentence(sgpmil, slides, fold, tmp_path, options, words):
    out = tmp_path / "p"
    code, _, err = sgpmil("predict", fold, slides[0], "--out", out, *options)
    assert code == 2
    assert words in " ".join(err.split())
    assert "Traceback" not in err
    assert not out.exists()


def test_calibration_slides_of_other_classes(sgpmil, slides, fold, tmp_path):
    table = read_predictions(fold / "validation" / "predictions.parquet")
    write_prediction_folder(fold / "validation", table.predictions, ClassTarget(CLASSES[::-1]))
    code, _, err = sgpmil("predict", fold, slides[0], "--out", tmp_path / "p", "--coverage", 0.9)
    assert code == 2
    assert "the classes normal, tumor" in err
    assert "tumor, normal" in err


FOLDS = tuple(Fold(str(k), ("a",), (), ("b",)) for k in range(3))


def make_run(path, name="sgpmil", trained=(0, 1, 2)):
    run = Run.create(path, FOLDS, {"model": name})
    models = []
    for k in trained:
        torch.manual_seed(k)
        small = {"hidden_dims": (6, 5), "gp_dim": 3, "num_inducing": 4}
        small = {**small, "preset": "points"} if name == "sgpmil" else {}
        model = build_model(name, in_dim=7, num_classes=2, **small)
        model.standardise.scale.fill_(0.5)
        run.folds[str(k)].path.mkdir()
        save_model(
            model, run.folds[str(k)].path / "checkpoint.safetensors", class_names=("no", "yes")
        )
        models.append(model)
    return models


def bound_of(models, path, **options):
    return [
        next(p.bound for p in lipschitz_paths(model, **options) if p.name == path)
        for model in models
    ]


@pytest.mark.parametrize("raw", [False, True])
def test_a_run_has_its_bounds_per_fold_and_over_folds(sgpmil, tmp_path, raw):
    models = make_run(tmp_path / "run")
    code, out, _ = sgpmil("lipschitz", tmp_path / "run", *(["--raw-features"] if raw else []))
    assert code == 0
    assert ("raw" if raw else "standardised") + " features" in out
    for path in ("classifier", "attention", "attention mean", "all layers"):
        bounds = bound_of(models, path, raw_features=raw)
        for bound in bounds:
            assert f"{bound:.4g}" in out
        assert f"{np.mean(bounds):.4g} ± {np.std(bounds, ddof=1):.2g}" in out
    assert "attention projection × sigmoid × linear mean × softmax × classifier" in out


def test_one_fold_and_one_file(sgpmil, tmp_path):
    models = make_run(tmp_path / "run")
    expected = f"{bound_of(models[1:2], 'classifier')[0]:.4g}"
    fold = tmp_path / "run" / "fold-1"
    for place in (fold, fold / "checkpoint.safetensors"):
        code, out, _ = sgpmil("lipschitz", place)
        assert code == 0
        assert expected in out
        assert "±" not in out


def test_untrained_folds_are_said(sgpmil, tmp_path):
    make_run(tmp_path / "run", trained=(0, 2))
    code, out, _ = sgpmil("lipschitz", tmp_path / "run")
    assert code == 0
    assert "1 of 3 folds are not trained." in out
    assert "fold 2" in out
    make_run(tmp_path / "empty", trained=())
    code, _, err = sgpmil("lipschitz", tmp_path / "empty")
    assert code == 2
    assert "Expected a trained fold" in err


def test_other_models_are_refused_in_a_sentence(sgpmil, tmp_path):
    make_run(tmp_path / "run", "mean-pool")
    code, _, err = sgpmil("lipschitz", tmp_path / "run")
    assert code == 2
    assert "'mean-pool', for which no bound is defined" in err
    code, _, err = sgpmil("lipschitz", tmp_path / "nowhere")
    assert code == 2
    assert "Expected a run, a fold, a checkpoint or an exported folder" in err


def test_prevalence_shifts_the_odds_and_is_stated(sgpmil, slides, checkpoint, tmp_path):
    model, _ = load_model(checkpoint)
    model.shares = ClassShares.of_training([0, 0, 0, 1], model.target, "training", balanced=True)
    known = save_model(model, tmp_path / "known.safetensors")
    odds, texts = {}, {}
    for name, path, options in (
        ("trained", known, []),
        ("rare", known, ["--prevalence", "tumor=0.1,normal=0.9"]),
        ("even", known, ["--prevalence", "balanced"]),
        ("old", checkpoint, []),
        ("old rare", checkpoint, ["--prevalence", "0.1"]),
    ):
        out = tmp_path / name
        code, texts[name], err = sgpmil("predict", path, slides[0], "--out", out, *options)
        assert (code, err.strip()) == (0, "")
        probs = read_predictions(out / "predictions.parquet").probs
        odds[name] = probs[:, 1] / probs[:, 0]
    np.testing.assert_allclose(odds["trained"], odds["old"] / 3, rtol=1e-5)
    np.testing.assert_allclose(odds["rare"], odds["old"] / 9, rtol=1e-5)
    np.testing.assert_allclose(odds["old rare"], odds["old"] / 9, rtol=1e-5)
    np.testing.assert_array_equal(odds["even"], odds["old"])
    assert "prevalence of normal 75 %, tumor 25 %" in texts["trained"]
    assert "prevalence of normal 90 %, tumor 10 %" in texts["rare"]
    assert "for a prevalence of" not in texts["old"]
    assert "equal ones are assumed" in " ".join(texts["old rare"].split())


def test_prevalence_that_does_not_fit_is_refused(sgpmil, slides, checkpoint, fold, tmp_path):
    for path, options, message in (
        (checkpoint, ["--prevalence", "a=0.5,b=0.5"], "but got shares for a, b"),
        (checkpoint, ["--prevalence", "2"], "between 0 and 1, but got 2"),
        (fold, ["--prevalence", "0.1", "--coverage", 0.8], "name them with --calibration"),
    ):
        code, _, err = sgpmil("predict", path, slides[0], "--out", tmp_path / "p", *options)
        assert code == 2
        assert message in " ".join(err.split())
        assert not (tmp_path / "p").exists()


def test_slides_unlike_the_training_slides_are_named(sgpmil, slides, tmp_path):
    folder, _ = slides
    model = build_model("abmil", in_dim=4, num_classes=2, hidden_dim=3, attention_dim=2)
    rng = np.random.default_rng(0)
    training = [
        Bag(torch.from_numpy(rng.normal(size=(20, 4)) - 50).float(), f"t{i}") for i in range(120)
    ]
    model.novelty.fit(BagBatch.pack(training))
    path = save_model(model, tmp_path / "m.safetensors", class_names=("normal", "tumor"))
    code, out, _ = sgpmil("predict", path, folder, "--out", tmp_path / "p")
    table = read_predictions(tmp_path / "p" / "predictions.csv")
    count = len(table)
    assert code == 0
    said = " ".join(out.split())
    assert f"{count} of {count} slides are unlike the training slides (p <= 0.01;" in said
    assert [p.novelty_p for p in table.predictions] == [pytest.approx(1 / 121, abs=1e-6)] * count
    assert [p.novel_share for p in table.predictions] == [1.0] * count
    scores = read_slide_scores(tmp_path / "p", table.slide_ids[0])
    assert scores.novelty.min() > 1
    code, out, _ = sgpmil("predict", path, folder, "--out", tmp_path / "q", "--no-novelty")
    assert code == 0
    assert "Warning" not in out
    assert "novelty_p" not in (tmp_path / "q" / "predictions.csv").read_text()


def test_slides_like_the_training_slides_are_not_named(sgpmil, slides, tmp_path):
    folder, _ = slides
    bags = read_bags(folder)
    model = build_model("abmil", in_dim=4, num_classes=2, hidden_dim=3, attention_dim=2)
    model.novelty.fit(BagBatch.pack(list(bags)))
    path = save_model(model, tmp_path / "m.safetensors", class_names=("normal", "tumor"))
    code, out, _ = sgpmil("predict", path, folder, "--out", tmp_path / "p")
    assert code == 0
    assert "Warning" not in out


def test_export_writes_a_folder_that_predict_takes(sgpmil, slides, checkpoint, tmp_path):
    code, out, _ = sgpmil("export", checkpoint, "--to", tmp_path / "model")
    assert code == 0
    assert "1 model, 4 features, classes normal, tumor" in out
    assert "do not state their encoder" in out
    code, _, err = sgpmil("export", checkpoint, "--to", tmp_path / "model")
    assert code == 2
    assert "(--overwrite)" in err
    for source, name in ((checkpoint, "a"), (tmp_path / "model", "b")):
        assert sgpmil("predict", source, slides[0], "--out", tmp_path / name)[0] == 0
    one, other = (tmp_path / name / "predictions.csv" for name in "ab")
    assert one.read_text() == other.read_text()
    code, out, _ = sgpmil("lipschitz", tmp_path / "model")
    assert code == 0
    assert "┃ model" in out


def test_bounds_are_checked_and_drawn(sgpmil, tmp_path):
    make_run(tmp_path / "run")
    figure = tmp_path / "bounds.png"
    code, out, _ = sgpmil("lipschitz", tmp_path / "run", "--gradients", "--figure", figure)
    assert code == 0
    assert "Largest gradient norms found" in out
    assert figure.read_bytes().startswith(b"\x89PNG")
    code, _, err = sgpmil("lipschitz", tmp_path / "run", "--gradients", "--raw-features")
    assert code == 2
    assert "Expected --gradients or --raw-features" in err
