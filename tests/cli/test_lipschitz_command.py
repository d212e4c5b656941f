import numpy as np
import pytest
import torch

from sgpmil.bags.splits import Fold
from sgpmil.evaluation.lipschitz import lipschitz_paths
from sgpmil.models import build_model, save_model
from sgpmil.runs.run import Run

FOLDS = tuple(Fold(str(k), ("a",), (), ("b",)) for k in range(3))


def make_run(path, name="sgpmil", trained=(0, 1, 2)):
    run = Run.create(path, FOLDS, {"model": name})
    models = []
    for k in trained:
        torch.manual_seed(k)
        small = {"hidden_dims": (6, 5), "gp_dim": 3, "num_inducing": 4} if name == "sgpmil" else {}
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
    assert "Expected a checkpoint" in err
