import signal
import sys

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import (
    BagError,
    LabelError,
    RunFolderError,
    SettingsError,
    TrainingError,
)
from sgpmil.evaluation.metrics import slide_metrics
from sgpmil.evaluation.predictor import predict
from sgpmil.models.checkpoint import load_model
from sgpmil.models.dgrmil import DGRMIL
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.training.fit import fit

from .conftest import (
    TINY,
    file_weights,
    quick,
    same_weights,
    stop_after,
    toy_bags,
    train,
    weights_of,
)

fit_module = sys.modules[fit.__module__]  # its name is the function's in the package

# What is learnt


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
def test_learns_what_is_separable(model):
    fitted = train(model=model, bags=toy_bags(12), epochs=12, learning_rate=0.02)
    metrics = slide_metrics(predict(fitted, toy_bags(20, seed=9)))
    assert metrics.auc == 1.0
    assert metrics.balanced_accuracy == 1.0
    assert metrics.nll < 0.3


def test_the_model_comes_back_ready_to_predict(tmp_path):
    torch.manual_seed(3)
    fitted = train(tmp_path, epochs=1)
    assert not fitted.training
    assert {p.device.type for p in fitted.parameters()} == {"cpu"}
    assert same_weights(file_weights(tmp_path / "checkpoint.safetensors"), weights_of(fitted))


@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
def test_the_seed_decides_everything(model):
    torch.manual_seed(1)
    one = weights_of(train(model=model, seed=4))
    torch.manual_seed(2)
    assert same_weights(weights_of(train(model=model, seed=4)), one)
    assert not same_weights(weights_of(train(model=model, seed=5)), one)


def test_writing_to_a_folder_does_not_change_the_model(tmp_path):
    assert same_weights(weights_of(train(tmp_path)), weights_of(train()))


def test_nothing_is_written_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(val=toy_bags(4, seed=1), select="best")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("least", "divided_by"), [(1, 10), (200, 200)])
def test_the_kl_weighs_one_over_the_number_of_training_bags(least, divided_by, monkeypatch):
    original, seen = SGPMIL.loss, []

    def spy(self, output, labels, num_bags):
        loss = original(self, output, labels, num_bags)
        seen.append((self.training, loss.terms["kl"].item(), self.kl().item()))
        return loss

    monkeypatch.setattr(SGPMIL, "loss", spy)
    settings = {"kl_bags": least}
    values = {"epochs": 2, "learning_rate": 0.1, "model_settings": settings}
    train(bags=toy_bags(10), val=toy_bags(4, seed=1), **values)
    assert {training for training, _, _ in seen} == {True, False}
    # Once the posterior has left the prior; also in validation, on the scale of training.
    later = [(term, kl) for _, term, kl in seen if kl > 1e-3]
    assert len(later) > 5
    expected = [kl / divided_by for _, kl in later]
    assert [term for term, _ in later] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("clip", "clipped"), [(0.01, True), (0.0, False)])
def test_gradients_are_clipped(clip, clipped):
    norms = []

    def measure(optimiser, args, kwargs):
        gradients = [p.grad for g in optimiser.param_groups for p in g["params"]]
        norms.append(float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))))

    hook = register_optimizer_step_post_hook(measure)
    try:
        train(epochs=1, gradient_clip=clip)
    finally:
        hook.remove()
    assert len(norms) == 4
    if clipped:
        assert norms == pytest.approx([0.01] * 4, rel=1e-3)
    else:
        assert max(norms) > 0.05


def test_each_epoch_is_trained_at_its_learning_rate():
    rates = []

    def note(optimiser, args, kwargs):
        rates.append(optimiser.param_groups[0]["lr"])

    hook = register_optimizer_step_post_hook(note)
    try:
        train(epochs=3, warmup_epochs=0, min_learning_rate=0.0)
    finally:
        hook.remove()
    assert rates == pytest.approx([1e-2] * 4 + [7.5e-3] * 4 + [2.5e-3] * 4)


# The model's own training


def by_default(val=None, model="sgpmil", **options):
    return fit(toy_bags(6), val=val, model=model, model_settings=TINY[model], **options)


def test_without_settings_a_model_is_trained_with_its_own(own_training):
    for model, values in (("sgpmil", {"epochs": 2}), ("abmil", {"epochs": 3, "optimiser": "sgd"})):
        settings = own_training(model, **values)
        seen = []
        found = by_default(model=model, on_epoch=seen.append)
        assert len(seen) == settings.epochs
        given = by_default(model=model, training=settings)
        assert same_weights(weights_of(found), weights_of(given))


def test_its_own_stopping_needs_validation_slides_only_where_there_are_any(own_training, judge):
    judge([1.0, 2.0, 3.0, 4.0, 5.0])
    own_training(epochs=5, patience=2, select="best", validation="optional")
    seen = []
    by_default(val=toy_bags(4, seed=1), on_epoch=seen.append)
    assert len(seen) == 3
    seen.clear()
    found = by_default(on_epoch=seen.append)
    assert len(seen) == 5
    assert same_weights(weights_of(found), weights_of(by_default(training=quick(epochs=5))))


# What is taken from the training bags at the end


@pytest.fixture
def conclusions(monkeypatch, tmp_path):
    """Let a model note what it concludes from, and keep something of it in its weights."""
    seen = []

    def conclude(self, batches):
        batches = list(batches)
        before = weights_of(self)
        total = torch.cat([batch.features for batch in batches]).sum()
        with torch.no_grad():
            self.standardise.mean.fill_(float(total))
        seen.append(
            {
                "bags": [slide for batch in batches for slide in batch.slide_ids],
                "labels": [label for batch in batches for label in batch.labels.tolist()],
                "sizes": [batch.num_bags for batch in batches],
                "dtype": {self.prepare(batch.features).dtype for batch in batches},
                "training": self.training,
                "gradients": torch.is_grad_enabled(),
                "files": sorted(path.name for path in tmp_path.glob("*.safetensors")),
                "weights": before,
                "total": float(total),
            }
        )

    monkeypatch.setattr(SGPMIL, "conclude", conclude)
    return seen


def file_mean(path):
    return set(file_weights(path)["standardise.mean"].tolist())


@pytest.mark.parametrize("precision", ["32", "64", "bf16"])
def test_a_model_concludes_from_every_training_bag_before_it_is_saved(
    tmp_path, conclusions, precision
):
    bags = toy_bags(7)
    fitted = train(tmp_path, bags=bags, epochs=2, precision=precision)
    (seen,) = conclusions
    assert seen["bags"] == list(bags.slide_ids)
    assert seen["labels"] == list(bags.labels)
    assert seen["dtype"] == {torch.float64 if precision == "64" else torch.float32}
    assert not seen["training"]
    assert not seen["gradients"]
    assert seen["files"] == []
    expected = torch.cat([bag.features for bag in bags]).sum().item()
    assert seen["total"] == pytest.approx(expected, rel=1e-5)
    assert set(fitted.standardise.mean.tolist()) == {seen["total"]}
    assert file_mean(tmp_path / "checkpoint.safetensors") == {seen["total"]}
    assert file_mean(tmp_path / "last.safetensors") == {seen["total"]}


@pytest.mark.parametrize("select", ["last", "best"])
def test_the_last_and_the_best_model_conclude_each_for_itself(tmp_path, conclusions, judge, select):
    judge([3.0, 1.0, 2.0])
    fitted = train(tmp_path, val=toy_bags(4, seed=1), epochs=3, select=select)
    last, best = conclusions
    assert not same_weights(last["weights"], best["weights"])
    for name, seen in (("last", last), ("best", best)):
        saved = file_weights(tmp_path / f"{name}.safetensors")
        assert set(saved.pop("standardise.mean").tolist()) == {seen["total"]}
        seen["weights"].pop("standardise.mean")
        assert same_weights(saved, seen["weights"])
    kept = file_weights(tmp_path / f"{select}.safetensors")
    assert same_weights(file_weights(tmp_path / "checkpoint.safetensors"), kept)
    assert same_weights(weights_of(fitted), kept)
    assert load_model(tmp_path / "best.safetensors")[1].details == {"seed": 0, "epoch": 1}


def test_without_a_folder_only_the_model_that_is_kept_concludes(conclusions, judge):
    judge([3.0, 1.0, 2.0])
    values = {"val": toy_bags(4, seed=1), "schedule": "constant"}
    train(epochs=3, select="best", **values)
    train(epochs=2, select="last", **values)
    best, last = conclusions
    assert same_weights(best["weights"], last["weights"])


def test_a_resumed_run_concludes_the_same(tmp_path, conclusions):
    expected = weights_of(train(tmp_path, epochs=2))
    assert same_weights(weights_of(train(tmp_path, epochs=2, resume=True)), expected)
    assert conclusions[0]["total"] == conclusions[1]["total"]


# What is refused


def test_an_unknown_model_setting_is_refused():
    with pytest.raises(SettingsError, match="num_inducing"):
        fit(toy_bags(4), model_settings={"num_inducin": 3}, training=quick())


@pytest.mark.parametrize("given", ["features", [np.ones((2, 4))]])
def test_what_is_no_data_set_is_refused(unchecked_shapes, given):
    with pytest.raises(BagError, match=f"BagDataset, but got {type(given).__name__}. Make one"):
        fit(given, training=quick())
    with pytest.raises(BagError, match=f"BagDataset, but got {type(given).__name__}. Make one"):
        fit(toy_bags(4), val=given, training=quick())


def unlabelled_bags():
    arrays = [np.ones((2, 4))] * 3
    return BagDataset.from_arrays(arrays, [0, None, 1], class_names=["a", "b"])


def test_unlabelled_bags_are_refused():
    with pytest.raises(LabelError, match=r"every training slide, but 1 of 3 .*'bag-1'"):
        train(bags=unlabelled_bags())
    with pytest.raises(LabelError, match=r"every validation slide, but 1 of 3 .*'bag-1'"):
        train(val=unlabelled_bags())


def test_a_single_class_is_refused():
    bags = toy_bags(8).subset(["s1", "s3", "s5"])
    with pytest.raises(LabelError, match="two classes, but all 3 are 'class1'"):
        train(bags=bags)


@pytest.mark.parametrize("values", [{"patience": 2}, {"select": "best"}])
def test_what_needs_validation_says_so(values):
    with pytest.raises(TrainingError, match=r"Expected validation slides.*select 'last'"):
        train(**values)


def test_the_auc_of_one_class_cannot_choose_an_epoch():
    one_class = toy_bags(6, seed=1).subset(["s0", "s2"])
    with pytest.raises(TrainingError, match="all 2 classes to monitor the AUC"):
        train(val=one_class, select="best", monitor="auc")
    # Other metrics are defined.
    train(val=one_class, select="best", monitor="loss", epochs=1)


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match=r"to write to .*file/run"):
        train(tmp_path / "file" / "run")


def test_an_error_of_the_callers_own_function_is_not_ours():
    with pytest.raises(OSError, match="mine") as found:
        train(on_epoch=lambda metrics: (_ for _ in ()).throw(OSError("mine")))
    assert type(found.value) is OSError


def test_the_model_knows_its_epoch(monkeypatch):
    """Losses that wait for a warm-up would otherwise never count."""
    seen = []
    own = DGRMIL.loss

    def loss(self, output, labels, num_bags):
        found = own(self, output, labels, num_bags)
        if self.training:
            seen.append((self.epoch, "diversity" in found.terms))
        return found

    monkeypatch.setattr(DGRMIL, "loss", loss)
    settings = {"hidden_dim": 8, "num_heads": 2, "num_landmarks": 4, "warmup_epochs": 1}
    fit(
        toy_bags(4),
        model="dgrmil",
        model_settings=settings,
        training=quick(epochs=3, bags_per_step=4),
    )
    assert seen == [(0, False), (1, True), (2, True)]


@pytest.mark.parametrize("on_disk", [True, False])
def test_the_model_tells_which_epoch_it_is_of(tmp_path, judge, on_disk):
    place = tmp_path if on_disk else None
    judge([3.0, 1.0, 2.0])
    best = train(place, val=toy_bags(4, seed=1), epochs=3, select="best")
    assert best.epoch == 1
    if on_disk:
        assert load_model(tmp_path)[1].details == {"seed": 0, "epoch": 1}
        assert load_model(tmp_path / "last.safetensors")[1].details["epoch"] == 2


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


@pytest.mark.parametrize("num_bags", [8, 7])
def test_accumulated_passes_are_one_step_with_the_mean_gradient(num_bags):
    """The loss is a mean over bags, so two passes of one bag are one pass of two.

    Of seven bags the last step has one.
    """
    settings = {**TINY["abmil"], "dropout": 0.0}  # whose draws would not be the same

    def fitted(**values):
        training = quick(epochs=2, precision="64", optimiser="sgd", **values)
        return weights_of(
            fit(toy_bags(num_bags), model="abmil", model_settings=settings, training=training)
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


def test_torch_is_left_as_it_was():
    before = torch.are_deterministic_algorithms_enabled()
    handler = signal.getsignal(signal.SIGINT)
    train(epochs=1)
    with pytest.raises(KeyboardInterrupt):
        train(epochs=1, on_epoch=stop_after(0, KeyboardInterrupt))
    assert torch.are_deterministic_algorithms_enabled() == before
    assert signal.getsignal(signal.SIGINT) is handler
