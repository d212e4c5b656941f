import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.target import OrdinalTarget
from sgpmil.errors import BagError, LabelError, PredictionError, SettingsError
from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.predictor import predict
from sgpmil.training.classifier import SGPMILClassifier
from sgpmil.training.fit import fit

from .conftest import TINY, quick, same_weights, weights_of


def arrays(count=10, *, classes=2, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2 + i % 4, dim)) + 4 * (i % classes) for i in range(count)]


def classifier(**values):
    start = {
        "epochs": 10,
        "learning_rate": 0.02,
        "bags_per_step": 2,
        "device": "cpu",
        "model_settings": TINY["sgpmil"],
        "training": quick(),
    }
    return SGPMILClassifier(**(start | values))


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(arrays(), ["low", "high"] * 5)


def test_clone_and_parameters():
    settings = {"num_samples": 7, "hidden_dims": (3,)}
    original = classifier(model="agp", random_state=5, model_settings=settings)
    copy = clone(original)
    assert copy is not original
    assert copy.get_params() == original.get_params()
    assert copy.get_params()["model_settings"] == settings
    assert copy.set_params(epochs=3).epochs == 3
    assert original.epochs == 10
    assert not hasattr(clone(classifier().set_params(epochs=3)), "classes_")
    assert is_classifier(original)


def test_the_settings_given_are_those_trained_with(monkeypatch):
    seen = []

    def spy(data, **options):
        seen.append(options)
        return fit(data, **options)

    monkeypatch.setattr("sgpmil.training.classifier.fit", spy)
    base = quick(weight_decay=0.25, epochs=1, learning_rate=0.5, bags_per_step=5)
    classifier(epochs=2, learning_rate=0.03, bags_per_step=3, random_state=8, training=base).fit(
        arrays(4), [0, 1, 0, 1]
    )
    used = seen[0]["training"]
    assert (used.epochs, used.learning_rate, used.bags_per_step) == (2, 0.03, 3)
    assert (used.seed, used.device, used.weight_decay) == (8, "cpu", 0.25)
    classifier(epochs=None, learning_rate=None, bags_per_step=None, training=base).fit(
        arrays(4), [0, 1, 0, 1]
    )
    used = seen[1]["training"]
    assert (used.epochs, used.learning_rate, used.bags_per_step) == (1, 0.5, 5)


def test_without_settings_the_models_own_are_trained_with(monkeypatch, own_training):
    own = own_training("abmil", epochs=2, optimiser="sgd", patience=1, validation="optional")
    seen = []

    def spy(data, **options):
        seen.append(options["training"])
        return fit(data, **options)

    monkeypatch.setattr("sgpmil.training.classifier.fit", spy)
    settings = TINY["abmil"]
    SGPMILClassifier(model="abmil", model_settings=settings).fit(arrays(4), [0, 1, 0, 1])
    SGPMILClassifier(model="abmil", model_settings=settings, epochs=1, random_state=3).fit(
        arrays(4), [0, 1, 0, 1]
    )
    assert seen == [own, replace(own, epochs=1, seed=3)]


def test_more_bags_a_step_scale_the_models_own_rate_and_no_other(monkeypatch):
    seen = []

    def spy(data, **options):
        seen.append(options["training"].learning_rate)
        return fit(data, **options)

    monkeypatch.setattr("sgpmil.training.classifier.fit", spy)
    for rate, training in [
        (None, None),
        (None, {"learning_rate": 0.02}),
        (0.03, {"learning_rate": 0.02}),
        (None, quick(learning_rate=0.04)),
    ]:
        classifier(epochs=1, learning_rate=rate, bags_per_step=8, training=training).fit(
            arrays(4), [0, 1, 0, 1]
        )
    assert seen == pytest.approx([6e-4 * 2**0.5, 0.02, 0.03, 0.04])


def test_an_impossible_value_is_not_taken_for_one_not_given():
    with pytest.raises(SettingsError, match="epochs"):
        classifier(epochs=0).fit(arrays(4), [0, 1, 0, 1])
    with pytest.raises(SettingsError, match="bags_per_step"):
        classifier(bags_per_step=0).fit(arrays(4), [0, 1, 0, 1])


def test_is_the_models_own_training_and_prediction(fitted):
    # Classes in the order of numpy: "high" is 0.
    data = BagDataset.from_arrays(arrays(), [1, 0] * 5, class_names=["high", "low"])
    training = quick(epochs=10, learning_rate=0.02)
    model = fit(data, model_settings=TINY["sgpmil"], training=training)
    assert same_weights(weights_of(model), weights_of(fitted.model_))
    new = arrays(6, seed=4)
    table = predict(model, BagDataset.from_arrays(new))
    np.testing.assert_array_equal(fitted.predict_proba(new), table.probs)
    probs, std = fitted.predict_with_uncertainty(new)
    np.testing.assert_array_equal(probs, table.probs)
    np.testing.assert_array_equal(std, table.std)
    assert (std > 0).all()
    assert fitted.predictions(new).class_names == ("high", "low")


@pytest.mark.parametrize(
    "names",
    [("low", "high"), (3, 1), (False, True), ("a", "b", "c"), (7, 9, 2)],
    ids=["text", "number", "bool", "three-text", "three-number"],
)
def test_labels_of_any_kind_come_back(names):
    k = len(names)
    labels = [names[i % k] for i in range(12)]
    model = classifier(epochs=15, learning_rate=0.05).fit(arrays(12, classes=k), labels)
    assert model.classes_.tolist() == sorted(names)
    new = arrays(9, classes=k, seed=7)
    expected = [names[i % k] for i in range(9)]
    found = model.predict(new)
    assert found.tolist() == expected
    assert found.dtype == np.asarray(labels).dtype
    probs = model.predict_proba(new)
    assert probs.shape == (9, k)
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert model.classes_[probs.argmax(1)].tolist() == expected
    assert model.score(new, expected) == 1.0
    assert model.score(new, [*expected[1:], expected[0]]) < 0.5


def test_instance_scores_of_two_classes_are_for_the_second(fitted):
    new = arrays(3, seed=4)
    table = fitted.predictions(new)
    attention = fitted.instance_scores(new)
    evidence = fitted.instance_scores(new, score="evidence")
    for bag, a, e, p in zip(new, attention, evidence, table.predictions, strict=True):
        assert len(a) == len(e) == len(bag)
        np.testing.assert_array_equal(a, p.instances.attention_mean)
        np.testing.assert_allclose(e, p.instances.evidence_mean @ [-1, 1], atol=1e-6)
    single = fitted.instance_scores(new, score="single")
    for bag, scores in zip(new, single, strict=True):
        # By the mean weights of the classifier, so that its draws do not matter.
        features = torch.from_numpy(np.asarray(bag, dtype=np.float32))
        logits = fitted.model_.classifier(fitted.model_.embed(features)).detach().numpy()
        np.testing.assert_allclose(scores, logits @ [-1, 1], atol=1e-4)
    # Instances of the first bag speak for "low", the second class; those of the next against it.
    assert evidence[0].sum() > evidence[1].sum()


def test_instance_scores_of_three_classes_are_for_the_predicted_one():
    model = classifier(epochs=15, learning_rate=0.05).fit(arrays(12, classes=3), [0, 1, 2] * 4)
    new = arrays(3, classes=3, seed=2)
    for e, p in zip(
        model.instance_scores(new, score="evidence"),
        model.predictions(new).predictions,
        strict=True,
    ):
        weights = np.full(3, -0.5)
        weights[p.predicted_class] = 1
        np.testing.assert_allclose(e, p.instances.evidence_mean @ weights, atol=1e-6)


def test_not_fitted():
    for call in ("predict", "predict_proba", "predict_with_uncertainty", "instance_scores"):
        with pytest.raises(NotFittedError, match=r"Call fit\(bags, labels\) first"):
            getattr(classifier(), call)(arrays(2))


def test_another_number_of_features(fitted):
    with pytest.raises(PredictionError, match=r"bags of 4 features.*'bag-0' has 3"):
        fitted.predict(arrays(2, dim=3))
    with pytest.raises(BagError, match="one number of features"):
        classifier().fit([np.ones((2, 3)), np.ones((2, 4))], [0, 1])


def test_labels_that_cannot_be_trained_on():
    with pytest.raises(LabelError, match="at least two classes"):
        classifier().fit(arrays(3), ["a", "a", "a"])
    with pytest.raises(BagError, match=r"Expected 3 labels, .*but got 2"):
        classifier().fit(arrays(3), ["a", "b"])


def test_pickle_round_trip(fitted):
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301 - our own
    new = arrays(3, seed=4)
    np.testing.assert_array_equal(again.predict_proba(new), fitted.predict_proba(new))
    assert again.predict(new).tolist() == fitted.predict(new).tolist()


def test_random_state():
    new = arrays(3, seed=4)

    def probs(seed):
        model = classifier(epochs=1, random_state=seed).fit(arrays(6), [0, 1] * 3)
        return model.predict_proba(new)

    first = probs(1)
    np.testing.assert_array_equal(probs(1), first)
    assert not np.array_equal(probs(2), first)


def test_scikit_learns_own_cross_validation():
    labels = np.array([0, 1] * 6)
    scores = cross_val_score(classifier(learning_rate=0.05), arrays(12), labels, cv=2)
    assert scores.tolist() == [1.0, 1.0]


def test_probabilities_are_for_the_training_shares_or_the_prevalence_given():
    bags, labels = arrays(12), ["low", "high"] * 4 + ["low"] * 4
    models = {
        prevalence: classifier(prevalence=prevalence).fit(bags, labels)
        for prevalence in (None, "balanced", 0.1)
    }
    balanced = models["balanced"].predictions(bags)
    weights = {k: weights_of(model.model_) for k, model in models.items()}
    assert same_weights(weights[None], weights["balanced"])  # no part of the training loss
    assert same_weights(weights[None], weights[0.1])
    # Of classes in alphabetical order the second is "low": two thirds of the training bags.
    assert models[None].model_.shares.expected == pytest.approx((1 / 3, 2 / 3))
    assert models[0.1].model_.shares.expected == pytest.approx((0.9, 0.1))
    assert (models[None].predict_proba(bags)[:, 1] > balanced.probs[:, 1]).all()
    assert (models[0.1].predict_proba(bags)[:, 1] < balanced.probs[:, 1]).all()
    changed = models[None].set_params(prevalence={"high": 0.9, "low": 0.1})
    np.testing.assert_allclose(changed.predict_proba(bags), models[0.1].predict_proba(bags))
    with pytest.raises(SettingsError, match="but got shares for a, b"):
        classifier(prevalence="a=0.5,b=0.5").fit(bags, labels)


def rare_bags(count, *, seed):
    """Bags of which a tenth are positive."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 10 == 0).astype(int)
    bags = [rng.normal(0.45 * label, 1.0, size=(6, 3)) for label in labels]
    return bags, labels


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sgpmil", "abmil"])
def test_rare_positives_are_as_frequent_as_the_probabilities_say(model):
    settings = {"hidden_dims": (8,)} | ({"num_inducing": 8} if model == "sgpmil" else {})
    bags, labels = rare_bags(800, seed=0)
    fitted = classifier(
        model=model, epochs=12, learning_rate=2e-3, bags_per_step=8, model_settings=settings,
        random_state=0,
    ).fit(bags, labels)  # fmt: skip
    test, truth = rare_bags(3000, seed=1)

    def ace():
        return adaptive_calibration_error(fitted.predict_proba(test), truth)

    corrected = ace()
    fitted.set_params(prevalence="balanced")
    assert ace() > 0.15
    assert corrected < 0.03


def test_ordered_classes_keep_their_order():
    # In the order of the alphabet, NC would come last.
    labels = ["NC", "G1", "G2"] * 4
    made = classifier(ordinal=True, epochs=1).fit(arrays(12, classes=3), labels)
    assert made.classes_.tolist() == ["NC", "G1", "G2"]
    assert made.model_.target == OrdinalTarget(("NC", "G1", "G2"))
    assert made.predictions(arrays(3)).target == made.model_.target
    probs = made.predict_proba(arrays(12, classes=3))
    assert made.predict(arrays(12, classes=3)).tolist() == [
        made.classes_[c] for c in probs.argmax(axis=1)
    ]
    given = classifier(ordinal=True, classes=["low", "high"], epochs=1)
    assert given.fit(arrays(), ["low", "high"] * 5).classes_.tolist() == ["low", "high"]
    with pytest.raises(LabelError, match="order"):
        classifier(ordinal=True).fit(arrays(), ["LUAD", "LUSC"] * 5)


@pytest.mark.parametrize(
    "labels",
    [
        [0.5 + i for i in range(10)],
        [float("nan"), *[0.0, 1.0] * 4, 1.0],
        [[0, 1], [1, 0]] * 5,
    ],
)
def test_labels_that_are_no_classes_are_refused(labels):
    with pytest.raises(LabelError, match="Expected one class a bag"):
        classifier(epochs=1).fit(arrays(), labels)


def test_fractions_are_classes_where_the_user_says_so():
    labels = [0.5, 1.5] * 5
    found = classifier(epochs=1, classes=[0.5, 1.5]).fit(arrays(), labels)
    assert found.classes_.tolist() == [0.5, 1.5]


def test_bags_are_seen_again_by_their_content_not_by_their_numbers(fitted):
    trained, others = arrays(), arrays(seed=1)
    assert {p.seen for p in fitted.predictions(trained).predictions} == {"train"}
    assert {p.seen for p in fitted.predictions(others).predictions} == {""}
