import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import (
    LabelError,
    RunFolderError,
    SettingsError,
    TrainingError,
)
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.slide_metrics import slide_metrics
from sgpmil.models.sgpmil import SGPMIL
from sgpmil.training.fit import fit

from .conftest import (
    file_weights,
    quick,
    same_weights,
    toy_bags,
    train,
    weights_of,
)

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


def test_the_kl_weighs_one_over_the_number_of_training_bags(monkeypatch):
    original, seen = SGPMIL.loss, []

    def spy(self, output, labels, num_bags):
        loss = original(self, output, labels, num_bags)
        seen.append((self.training, loss.terms["kl"].item(), self.kl().item()))
        return loss

    monkeypatch.setattr(SGPMIL, "loss", spy)
    train(bags=toy_bags(10), val=toy_bags(4, seed=1), epochs=2, learning_rate=0.1)
    assert {training for training, _, _ in seen} == {True, False}
    # Once the posterior has left the prior; also in validation, on the scale of training.
    later = [(term, kl) for _, term, kl in seen if kl > 1e-3]
    assert len(later) > 5
    assert [term for term, _ in later] == pytest.approx([kl / 10 for _, kl in later], rel=1e-5)


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
        train(epochs=3, warmup_epochs=2, warmup_learning_rate=1e-3, min_learning_rate=0.0)
    finally:
        hook.remove()
    assert rates == pytest.approx([1e-3] * 4 + [1e-2] * 8)


# What is refused


def test_an_unknown_model_setting_is_refused():
    with pytest.raises(SettingsError, match="num_inducing"):
        fit(toy_bags(4), model_settings={"num_inducin": 3}, training=quick())


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
    with pytest.raises(RunFolderError, match=r"Could not write to .*file/run"):
        train(tmp_path / "file" / "run")


def test_an_error_of_the_callers_own_function_is_not_ours():
    with pytest.raises(OSError, match="mine") as found:
        train(on_epoch=lambda metrics: (_ for _ in ()).throw(OSError("mine")))
    assert type(found.value) is OSError
