"""Training on a GPU: interrupted and resumed, and of bags that do not stay there."""

import numpy as np
import pytest
import torch

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.packing import pack_bags
from sgpmil.evaluation.predictor import predict
from sgpmil.training import fit as fit_module
from sgpmil.training.fit import fit

from .conftest import StopHere, epochs_of, same_weights, stop_after, weights_of

pytestmark = pytest.mark.gpu

SMALL = {"hidden_dims": (16, 8), "gp_dim": 6, "num_inducing": 5, "num_samples": 3}
TRAINING = {"epochs": 5, "learning_rate": 3e-3, "bags_per_step": 2, "warmup_epochs": 2}


@pytest.fixture
def bags():
    rng = np.random.default_rng(0)
    features = [rng.normal(i % 2, 1, (40 * (1 + i), 12)) for i in range(12)]
    features = [values.astype(np.float16) for values in features]
    return BagDataset.from_arrays(features, [i % 2 for i in range(12)])


def train(bags, folder=None, *, device="gpu", resume=False, on_epoch=None, **values):
    return fit(
        bags,
        model_settings=SMALL,
        training=TRAINING | {"device": device} | values,
        folder=folder,
        resume=resume,
        on_epoch=on_epoch,
    )


@pytest.mark.parametrize("precision", ["32", "bf16"])
@pytest.mark.parametrize("stop", [0, 2])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, bags, precision, stop):
    expected = weights_of(train(bags, tmp_path / "whole", precision=precision))
    with pytest.raises(StopHere):
        train(bags, tmp_path / "cut", on_epoch=stop_after(stop), precision=precision)
    torch.manual_seed(99)
    found = weights_of(train(bags, tmp_path / "cut", resume=True, precision=precision))
    assert same_weights(found, expected)
    assert epochs_of(tmp_path / "cut") == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("devices", [("gpu", "cpu"), ("cpu", "gpu")])
def test_a_run_may_go_on_elsewhere(tmp_path, bags, devices):
    begun, ended = devices
    with pytest.raises(StopHere):
        train(bags, tmp_path / "run", device=begun, on_epoch=stop_after(2), precision="32")
    losses = []
    model = train(
        bags,
        tmp_path / "run",
        device=ended,
        resume=True,
        on_epoch=lambda metrics: losses.append(metrics["train_loss"]),
        precision="32",
    )
    assert epochs_of(tmp_path / "run") == [0, 1, 2, 3, 4]
    # The draws are others there; what is learnt is not.
    alone = []
    whole = train(
        bags, precision="32", on_epoch=lambda metrics: alone.append(metrics["train_loss"])
    )
    np.testing.assert_allclose(losses, alone[3:], rtol=0.25, atol=0.05)
    found, expected = (predict(m, bags, device="cpu").probs for m in (model, whole))
    np.testing.assert_allclose(found, expected, atol=0.15)


def test_bags_that_are_read_for_every_step_train_the_same(tmp_path, bags, monkeypatch):
    monkeypatch.setattr("sgpmil.training.loop.recorded_steps", lambda *_: None)
    expected = weights_of(train(bags, precision="32", bags_per_step=1))
    store = pack_bags(bags, tmp_path / "store", dtype="float16").dataset()
    monkeypatch.setattr(fit_module, "where_it_fits", lambda dataset, _: dataset)
    found = weights_of(train(store, precision="32", bags_per_step=1))
    for name, value in expected.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-5), name
    # They learn: the test would not notice weights that stay where they are otherwise.
    other = weights_of(train(bags, precision="32", bags_per_step=1, epochs=1))
    assert any(not torch.allclose(other[n], v, rtol=1e-3, atol=1e-4) for n, v in expected.items())
