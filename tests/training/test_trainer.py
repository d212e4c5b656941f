import signal

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sgpmil.errors import (
    MissingPartError,
    SettingsError,
)
from sgpmil.evaluation.metrics import slide_metrics
from sgpmil.evaluation.predictor import predict
from sgpmil.training.fit import fit

from .conftest import (
    TINY,
    epochs_of,
    quick,
    same_weights,
    stop_after,
    toy_bags,
    train,
    weights_of,
)


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
@pytest.mark.parametrize("precision", ["bf16", "64"])
def test_other_precisions_learn_too(tmp_path, model, precision):
    fitted = train(
        tmp_path,
        model=model,
        bags=toy_bags(10),
        val=toy_bags(6, seed=1),
        epochs=10,
        learning_rate=0.02,
        precision=precision,
        select="best",
    )
    dtype = torch.float64 if precision == "64" else torch.float32
    assert {p.dtype for p in fitted.parameters()} == {dtype}
    assert slide_metrics(predict(fitted, toy_bags(12, seed=9))).auc == 1.0


def test_accumulated_passes_are_one_step_with_the_mean_gradient():
    """The loss is a mean over bags, so two passes of one bag are one pass of two."""
    settings = {**TINY["abmil"], "dropout": 0.0}  # whose draws would not be the same

    def fitted(**values):
        training = quick(epochs=2, precision="64", optimiser="sgd", **values)
        return weights_of(
            fit(toy_bags(8), model="abmil", model_settings=settings, training=training)
        )

    packed = fitted(bags_per_step=2)
    accumulated = fitted(bags_per_step=1, accumulate_steps=2)
    for name, value in packed.items():
        torch.testing.assert_close(accumulated[name], value, rtol=1e-10, atol=1e-12)
    single = fitted(bags_per_step=1)
    assert not torch.allclose(single["value.weight"], packed["value.weight"], rtol=1e-6)


@pytest.mark.parametrize(("passes", "steps"), [(1, 4), (2, 2), (3, 2), (9, 1)])
def test_an_epoch_ends_with_a_step(passes, steps):
    seen = []
    hook = register_optimizer_step_post_hook(lambda *parts: seen.append(parts))
    try:
        train(bags=toy_bags(4), epochs=1, bags_per_step=1, accumulate_steps=passes)
    finally:
        hook.remove()
    assert len(seen) == steps


def test_bf16_is_not_32():
    assert not same_weights(weights_of(train(precision="bf16")), weights_of(train()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(SettingsError, match=r"Expected a GPU .* found none"):
        train(device="gpu")


def test_tensorboard_writes_beside_the_metrics(tmp_path):
    pytest.importorskip("tensorboard")
    train(tmp_path, epochs=2, logger="tensorboard")
    assert list((tmp_path / "tensorboard").glob("events.*"))
    assert epochs_of(tmp_path) == [0, 1]


@pytest.mark.parametrize("logger", ["tensorboard", "mlflow", "wandb"])
def test_a_logger_that_is_not_installed_is_named(tmp_path, monkeypatch, logger):
    from lightning.pytorch import loggers

    names = {"tensorboard": "TensorBoard", "mlflow": "MLFlow", "wandb": "Wandb"}

    def missing(*args, **kwargs):
        raise ModuleNotFoundError(logger)

    monkeypatch.setattr(loggers, f"{names[logger]}Logger", missing)
    with pytest.raises(MissingPartError, match=f"'{logger}' .*pip install {logger}"):
        train(tmp_path, logger=logger)


def test_torch_is_left_as_it_was():
    before = torch.are_deterministic_algorithms_enabled()
    handler = signal.getsignal(signal.SIGINT)
    train(epochs=1)
    with pytest.raises(KeyboardInterrupt):
        train(epochs=1, on_epoch=stop_after(0, KeyboardInterrupt))
    assert torch.are_deterministic_algorithms_enabled() == before
    assert signal.getsignal(signal.SIGINT) is handler
