import numpy as np
import pytest
import torch

from sgpmil.errors import SettingsError
from sgpmil.evaluation.predictor import predict
from sgpmil.experiments.uncertainty_designs import (
    DESIGNS,
    Design,
    Trained,
    dropout_predictions,
    find_design,
    parse_design,
    read_designs,
    train_design,
)
from sgpmil.experiments.uncertainty_sets import PlantedDesign, planted_set
from sgpmil.training.classifier import SGPMILClassifier

ONE_EPOCH = {"epochs": 1, "warmup_epochs": 0}


@pytest.fixture(scope="module")
def data():
    return planted_set("p", 5, PlantedDesign(0.1, dim=8, sizes=(4, 9), counts=(12, 4, 10, 4)))


@pytest.fixture(scope="module")
def ensemble(data):
    design = Design("e", "abmil", {"hidden_dim": 8, "dropout": 0.5}, ONE_EPOCH, members=3)
    return train_design(design, data)


def entropy(p):
    return -(p * np.log(p)).sum(-1)


def test_an_ensemble_averages_probabilities_and_scores(ensemble, data):
    bags = data.test.bags
    members = [predict(model, bags) for model in ensemble.models]
    found = ensemble.predict(bags)
    stacked = np.stack([table.probs for table in members])
    assert len({tuple(p.ravel().round(9)) for p in stacked}) == 3  # members differ
    np.testing.assert_allclose(found.probs, stacked.mean(0), atol=1e-12)
    information = entropy(stacked.mean(0)) - entropy(stacked).mean(0)
    got = [p.mutual_information for p in found.predictions]
    np.testing.assert_allclose(got, information, atol=1e-9)
    np.testing.assert_allclose(found.std, stacked.std(0, ddof=1), atol=1e-12)
    for row, prediction in enumerate(found.predictions):
        attention = [t.predictions[row].instances.attention_mean for t in members]
        np.testing.assert_allclose(prediction.instances.attention_mean, np.mean(attention, 0))
        evidence = [t.predictions[row].instances.evidence_mean for t in members]
        np.testing.assert_allclose(prediction.instances.evidence_mean, np.mean(evidence, 0))
        single = [t.predictions[row].instances.single_mean for t in members]
        np.testing.assert_allclose(prediction.instances.single_mean, np.mean(single, 0))
        spread = np.std(single, 0, ddof=1)  # ABMIL has none within a member
        np.testing.assert_allclose(prediction.instances.single_std, spread, atol=1e-6)
        assert prediction.instances.instance_labels is not None
        assert prediction.novelty_p == members[0].predictions[row].novelty_p


def test_the_first_member_is_the_model_trained_alone(ensemble, data):
    alone = train_design(Design("a", "abmil", {"hidden_dim": 8, "dropout": 0.5}, ONE_EPOCH), data)
    for a, b in zip(alone.model.parameters(), ensemble.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_dropout_acts_in_prediction_and_leaves_the_model_alone(ensemble, data):
    model, bags = ensemble.model, data.test.bags
    before = predict(model, bags).probs
    samples = np.stack(dropout_predictions(model, bags, 400))
    assert (samples.std(0) > 1e-4).all()
    # Dropout is before a linear layer, so that its logits are right in the mean.
    odds = np.log(samples[..., 1] / samples[..., 0])
    error = odds.std(0) / 20
    expected = np.log(before[:, 1] / before[:, 0])
    assert (np.abs(odds.mean(0) - expected) < 5 * error).all()
    np.testing.assert_array_equal(predict(model, bags).probs, before)
    found = Trained((model,), dropout_samples=400).predict(bags)
    np.testing.assert_allclose(found.probs, samples.mean(0), atol=1e-9)
    mixmil = train_design(Design("m", "mixmil", {}, ONE_EPOCH), data).model
    with pytest.raises(SettingsError, match="mixmil has none"):
        dropout_predictions(mixmil, bags, 2)


def test_the_default_is_what_the_classifier_gives(data, monkeypatch):
    given = []
    own = SGPMILClassifier.__init__

    def watched(self, **settings):
        given.append(settings)
        own(self, **settings)

    monkeypatch.setattr(SGPMILClassifier, "__init__", watched)
    found = train_design(DESIGNS["default"], data)
    assert given == [{"random_state": 5}]
    monkeypatch.undo()
    bags = [bag.features.numpy() for bag in data.train]
    classifier = SGPMILClassifier(random_state=5).fit(bags, list(data.train.labels))
    features = [bag.features.numpy() for bag in data.test.bags]
    np.testing.assert_array_equal(
        classifier.predict_proba(features), found.predict(data.test.bags).probs
    )


def test_designs_as_text():
    design = parse_design(
        "mine:model=abmil,hidden_dims=[32, 16],dropout=0,training.learning-rate=3e-4,members=2"
    )
    assert design == Design(
        "mine",
        "abmil",
        {"hidden_dims": [32, 16], "dropout": 0},
        {"learning_rate": 3e-4},
        members=2,
    )
    resolved = design.resolved()
    assert resolved["model_settings"]["hidden_dims"] == (32, 16)
    assert resolved["training"]["learning_rate"] == 3e-4
    assert "seed" not in resolved["training"]
    assert parse_design("plain").resolved()["model_settings"]["num_inducing"] == 80


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mine:num_inducing", "NAME:key=value"),
        (":num_inducing=3", "NAME:key=value"),
        ("mine:num_inducng=3", "num_inducing"),
        ("mine:training.epoch=3", "epochs"),
        ("mine:model=abmill", "abmil"),
        ("mine:other.epochs=3", "but got 'other.epochs'"),
        ("mine:members=0", "members >= 1"),
    ],
)
def test_bad_designs_are_refused(text, problem):
    with pytest.raises(SettingsError, match=problem):
        parse_design(text)


def test_designs_of_a_file(tmp_path):
    path = tmp_path / "designs.yaml"
    path.write_text(
        "wide:\n  settings: {num_inducing: 160}\n  training: {learning_rate: 3e-4}\n"
        "five:\n  model: abmil\n  members: 5\n"
    )
    assert read_designs(path) == [
        Design("wide", "sgpmil", {"num_inducing": 160}, {"learning_rate": 3e-4}),
        Design("five", "abmil", members=5),
    ]
    path.write_text("wide: {setting: {}}")
    with pytest.raises(SettingsError, match="Did you mean 'settings'"):
        read_designs(path)
    path.write_text("- wide")
    with pytest.raises(SettingsError, match="a section for each design"):
        read_designs(path)


def test_every_design_resolves_and_models_are_designs_too():
    for design in DESIGNS.values():
        assert design.resolved()["model"] == design.model
    assert find_design("clam-sb") == Design("clam-sb", "clam-sb")
    with pytest.raises(SettingsError, match="Did you mean 'abmil-deep'"):
        find_design("abmil-depe")


def test_the_row_of_the_earlier_default_does_not_follow_the_defaults():
    design = DESIGNS["sgpmil-1"]
    resolved = design.resolved()
    settings = resolved["model_settings"]
    expected = {
        "hidden_dims": (768, 384, 256),
        "feature_dropout": 0.0,
        "gp_dim": 64,
        "num_inducing": 80,
        "num_samples": 30,
        "kernel": "rbf",
        "mean": "linear",
        "mean_scale": 0.1,
        "mean_bias": 0.0,
        "linear_scale": None,
        "activation": "softmax",
        "pooling": "sum",
        "sampling": "inducing",
        "likelihood": "mean_log_prob",
        "inducing": "points",
        "inducing_start": "uniform",
        "inputs": "sigmoid",
        "lengthscale_start": "cube",
        "outputscale": None,
        "variational_rate": 1.0,
        "classifier_scale": None,
        "jitter": 1e-4,
        "kl_factor": 1.0,
        "kl_bags": 1,
        "prediction_samples": 0,
        "prediction_error": 0.0,
        "scores": "samples",
        "noise_seed": 0,
        "standardise": True,
    }
    assert {name: settings[name] for name in expected} == expected
    # What is left has no effect without inducing patches or an uncertain classifier.
    rest = {"encoder", "renewals", "preserved_dim", "preserved_weight", "classifier_kl"}
    assert settings.keys() - expected.keys() == rest
    for name, value in design.training.items():
        assert resolved["training"][name] == value
