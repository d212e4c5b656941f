"""Predictions as ONNX graphs, run by ONNX Runtime and compared with PyTorch's."""

import numpy as np
import onnxruntime
import pytest
import torch

from sgpmil.bags import Bag
from sgpmil.errors import CheckpointError, MissingPartError
from sgpmil.evaluation import onnx_graph
from sgpmil.evaluation.onnx_graph import PERIOD, PredictionGraph, write_graph
from sgpmil.evaluation.predictor import predict
from sgpmil.models import build_model, list_models
from sgpmil.models.prevalence import ClassShares

SETTINGS = {
    "sgpmil": {"hidden_dims": (8,), "gp_dim": 3, "num_inducing": 6, "prediction_samples": 60},
    "agp": {"hidden_dims": (8,), "gp_dim": 3, "num_inducing": 6, "sampling": "inducing"},
    "bayesmil": {"hidden_dim": 8, "attention_dim": 4, "spatial": False, "num_samples": 5},
    "mixmil": {"projection_dim": 4},
    "dsmil": {"query_dim": 8},
    "abmil": {"hidden_dim": 8, "attention_dim": 4},
    "kernel-attention": {"hidden_dim": 4, "query_dim": 2, "attention_dim": 4},
    "bag-size": {},
    "transmil": {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 16},
    "dgrmil": {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 16},
}
QUICK = ("abmil",)
MODELS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in list_models()
]
NUMS_ROWS = (1, 2, 4, 5, 9, 10, 15, 16, 17, 100, 101, 1000)
"""Numbers of instances, on both sides of squares and of the number of landmarks."""


def built(name, seed=0, **others):
    torch.manual_seed(seed)
    settings = SETTINGS.get(name, {"hidden_dim": 8}) | others
    model = build_model(name, in_dim=6, num_classes=3, **settings).eval()
    model.shares = ClassShares((0.2, 0.3, 0.5), (1 / 3,) * 3, (0.2, 0.3, 0.5))
    return model


def bag_of(num_rows):
    generator = torch.Generator().manual_seed(num_rows)
    return Bag(torch.randn(num_rows, 6, generator=generator), slide_id="a")


def run(path, bag):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"features": bag.features.numpy()}), strict=True))


def assert_same(found, expected):
    """Compare outputs of a graph with a prediction."""
    values = {
        "probabilities": expected.probs,
        "probabilities_std": expected.std,
        "attention": expected.instances.attention_mean,
        "attention_std": expected.instances.attention_std,
    }
    for name, value in found.items():
        # Attention is a small number where patches are many.
        close = {"atol": 1e-4} if name.startswith("prob") else {"atol": 1e-6, "rtol": 1e-3}
        np.testing.assert_allclose(value, values[name], err_msg=name, **close)


@pytest.mark.parametrize("name", MODELS)
def test_the_graph_gives_what_predict_gives(name, tmp_path, capfd):
    model = built(name)
    names = write_graph(tmp_path / "m.onnx", [model])
    assert capfd.readouterr() == ("", "")  # torch says nothing of a first attempt that failed
    assert ("probabilities_std" in names) == model.is_probabilistic
    assert model.is_exact  # the model itself is as it was
    model.is_exact = False  # without samples beyond the first ones
    for num_rows in NUMS_ROWS:
        bag = bag_of(num_rows)
        assert_same(run(tmp_path / "m.onnx", bag), predict(model, [bag]).predictions[0])
    # Of larger bags, noise of single instances repeats itself. Self-attention takes all pairs.
    bag = bag_of(3_000 if name == "kernel-attention" else 50_000)
    found = run(tmp_path / "m.onnx", bag)
    with torch.no_grad():
        expected = PredictionGraph([model])(bag.features)
    for output, value in zip(names, expected, strict=True):
        close = {"atol": 1e-4} if output.startswith("prob") else {"atol": 1e-7, "rtol": 1e-3}
        np.testing.assert_allclose(found[output], value, err_msg=output, **close)
    assert_same_mean(found, predict(model, [bag]).predictions[0])


def assert_same_mean(found, expected):
    """Compare the probabilities where draws differ."""
    np.testing.assert_allclose(found["probabilities"], expected.probs, atol=0.01)


@pytest.mark.slow
def test_transmil_as_released_pads_with_zeros_and_follows_exact_attention(tmp_path, capfd):
    model = built("transmil", zero_padding=True, rollout="exact")
    write_graph(tmp_path / "m.onnx", [model])
    assert capfd.readouterr() == ("", "")
    for num_rows in NUMS_ROWS:
        bag = bag_of(num_rows)
        expected = predict(model, [bag]).predictions[0]
        found = run(tmp_path / "m.onnx", bag)
        assert_same(found, expected)
        attention = expected.instances.attention_mean
        np.testing.assert_allclose(found["attention"], attention, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["abmil", "mixmil"])
def test_several_folds_are_one_graph(name, tmp_path):
    models = [built(name, seed) for seed in range(2)]
    write_graph(tmp_path / "m.onnx", models)
    for model in models:
        model.is_exact = False
    bag = bag_of(40)
    assert_same(run(tmp_path / "m.onnx", bag), predict(models, [bag]).predictions[0])


def test_noise_repeats_itself_after_a_period():
    graph = PredictionGraph([built("sgpmil")])
    noise = graph.store.get_buffer("noise_0_0_instance_15")
    assert noise.shape == (PERIOD, 15)
    assert len(torch.unique(noise[:, 0])) > 0.99 * PERIOD


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("agp", {}, "Cholesky"),
        ("bayesmil", {}, "neighbouring patches"),
    ],
)
def test_models_that_onnx_cannot_hold_are_refused_with_a_reason(name, settings, reason, tmp_path):
    with pytest.raises(CheckpointError, match=reason):
        write_graph(tmp_path / "m.onnx", [build_model(name, in_dim=6, num_classes=2, **settings)])
    assert not (tmp_path / "m.onnx").exists()


def test_a_wrong_graph_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "TOLERANCE", -1.0)
    with pytest.raises(CheckpointError, match="of 1 instances its probabilities differ by"):
        write_graph(tmp_path / "m.onnx", [built("bag-size")])


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_graph, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match=r"Install it with: .*\[export\]"):
        write_graph(tmp_path / "m.onnx", [built("abmil")])
