import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.errors import CheckpointError
from sgpmil.gp.noise import ZeroNoise
from sgpmil.models.released import import_released, read_released_checkpoint

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "sgpmil_reference.npz"


@pytest.fixture(scope="module")
def golden():
    if not GOLDEN.exists():
        pytest.skip(f"the released code's reference values are not at {GOLDEN}")
    with np.load(GOLDEN, allow_pickle=False) as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def state(golden):
    """The released code's state, from the golden file."""
    return {
        name.removeprefix("sd/"): torch.from_numpy(value)
        for name, value in golden.items()
        if name.startswith("sd/")
    }


@pytest.fixture(scope="module")
def jitter(golden):
    return json.loads(str(golden["meta"]))["jitter"]


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("bag", ["bag0", "bag1", "bag2"])
def test_golden_embeddings_and_posterior(golden, state, jitter, bag, prefix):
    model = import_released({prefix + k: v for k, v in state.items()}, jitter=jitter)
    x = torch.from_numpy(golden[f"{bag}/x"])
    with torch.no_grad():
        mean, variance = model.attention_posterior(x)
        assert np.abs(model.embed(x).numpy() - golden[f"{bag}/h"]).max() < 1e-8
    assert np.abs(mean.numpy() - golden[f"{bag}/f_mean"]).max() < 1e-8
    assert np.abs(variance.numpy() - golden[f"{bag}/f_var"]).max() < 1e-8


def test_golden_divergence(golden, state, jitter):
    model = import_released(state, jitter=jitter)
    assert model.kl().item() == pytest.approx(float(golden["kl"]), abs=1e-8)


def test_jitter_matters(golden, state, jitter):
    x = torch.from_numpy(golden["bag1/x"])
    _, variance = import_released(state, jitter=10 * jitter).attention_posterior(x)
    assert np.abs(variance.detach().numpy() - golden["bag1/f_var"]).max() > 1e-5


def test_prediction_of_the_posteriors_mean(golden, state, jitter):
    """What the released code computes behind the posterior, by hand from its tensors."""
    model = import_released(state, jitter=jitter)
    x, h = torch.from_numpy(golden["bag2/x"]), torch.from_numpy(golden["bag2/h"])
    attention = torch.from_numpy(golden["bag2/f_mean"]).sigmoid()
    expected = (attention @ h) @ state["cl.weight"].T + state["cl.bias"]
    output = model(BagBatch.pack([Bag(x, "a")]), noise=ZeroNoise())
    assert torch.allclose(output.logits[0, 0], expected, atol=1e-8)
    assert torch.allclose(output.score, attention, atol=1e-8)


def test_model_is_ready_to_predict(state):
    model = import_released(state)
    assert not model.training
    assert (model.settings.sampling, model.settings.likelihood) == ("shared", "mean_logits")
    assert model.settings.hidden_dims == (24, 16, 12)
    assert (model.in_dim, model.num_classes, model.settings.jitter) == (32, 2, 1e-4)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    single = import_released({k: v.float() for k, v in state.items()})
    assert {p.dtype for p in single.parameters()} == {torch.float32}


def test_layers_may_have_others_between_them(golden, state, jitter):
    moved = {k.replace("mlp.4", "mlp.6").replace("mlp.2", "mlp.3"): v for k, v in state.items()}
    x = torch.from_numpy(golden["bag1/x"])
    embeddings = import_released(moved, jitter=jitter).embed(x).detach().numpy()
    assert np.abs(embeddings - golden["bag1/h"]).max() < 1e-8


@pytest.mark.parametrize(
    "name",
    ["cl.bias", "f_gp.0.weight", "f_gp.2.variational_strategy.inducing_points", "mlp.2.bias"],
)
def test_a_missing_tensor_is_named(state, name):
    with pytest.raises(CheckpointError, match=f"lacks {name}"):
        import_released({k: v for k, v in state.items() if k != name})


def test_another_models_state():
    with pytest.raises(CheckpointError, match=r"it lacks f_gp.0.weight, .* and \d+ more"):
        import_released({"fc.weight": torch.ones(2, 2)})
    with pytest.raises(CheckpointError, match="lacks"):
        import_released({})


@pytest.mark.parametrize("name", ["f_gp.0.weight", "f_gp.0.bias", "mlp.2.weight", "cl.weight"])
def test_a_wrong_shape_is_named(state, name):
    """Transposed, a tensor has as many entries as it should."""
    value = state[name]
    wrong = value.T.contiguous() if value.ndim == 2 else value[:-1]
    with pytest.raises(CheckpointError, match=r"to have shape \(.*but got \("):
        import_released({**state, name: wrong})


@pytest.mark.parametrize("wrap", ["lightning", "plain"])
def test_reading_a_file(golden, state, tmp_path, wrap):
    path = tmp_path / "last.ckpt"
    if wrap == "lightning":
        prefixed = {f"model.{k}": v for k, v in state.items()}
        content = {"epoch": 3, "global_step": 90, "state_dict": prefixed, "loops": {"a": [1]}}
    else:
        content = state
    torch.save(content, path)
    mean, _ = read_released_checkpoint(path).attention_posterior(torch.from_numpy(golden["bag1/x"]))
    assert np.abs(mean.detach().numpy() - golden["bag1/f_mean"]).max() < 1e-8
    assert read_released_checkpoint(path, jitter=1e-2).settings.jitter == 1e-2


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_file_is_refused_and_not_run(tmp_path, how):
    path, mark = tmp_path / "evil.ckpt", tmp_path / "ran"
    content = {"state_dict": {"cl.bias": torch.ones(2)}, "callbacks": Bomb(mark)}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps({"callbacks": Bomb(mark)}, protocol=2))
    with pytest.raises(CheckpointError, match="without running code from it"):
        read_released_checkpoint(path)
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))  # noqa: S301 (the bomb does work)
    assert mark.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"not a checkpoint", b"PK\x03\x04 cut", b"\x80\x02e.", b"\x80\x02h\x2b."],
    ids=["empty", "text", "zip", "stack", "memo"],
)
def test_a_damaged_file(tmp_path, content):
    path = tmp_path / "a.ckpt"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"a\.ckpt, but could not read it"):
        read_released_checkpoint(path)


def test_a_truncated_file(tmp_path, state):
    path = tmp_path / "a.ckpt"
    torch.save({"state_dict": state}, path)
    path.write_bytes(path.read_bytes()[:-4000])
    with pytest.raises(CheckpointError, match="could not read it"):
        read_released_checkpoint(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.ckpt"):
        read_released_checkpoint(tmp_path / "none.ckpt")


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": [1]}, torch.ones(2)])
def test_a_file_with_something_else(tmp_path, content):
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match="lacks"):
        read_released_checkpoint(tmp_path / "a.pt")
