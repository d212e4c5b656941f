import numpy as np
import pytest
import torch

from sgpmil.bags.bag import Bag, BagBatch
from sgpmil.bags.dataset import BagDataset
from sgpmil.errors import PredictionError
from sgpmil.evaluation import predictor
from sgpmil.evaluation.predictor import predict
from sgpmil.models.prevalence import ClassShares
from sgpmil.models.registry import build_model

TINY = {
    "sgpmil": {"hidden_dims": (8,), "gp_dim": 4, "num_inducing": 5, "num_samples": 4},
    "abmil": {"hidden_dim": 8, "attention_dim": 4},
}


def model_of(name="sgpmil", num_classes=2, **settings):
    torch.manual_seed(0)
    model = build_model(name, in_dim=3, num_classes=num_classes, **(TINY[name] | settings))
    with torch.no_grad():
        # Biases that matter, so that leaving one out shows.
        model.classifier.bias.copy_(torch.linspace(-1, 1, num_classes))
    return model


def bags_of(count=6, dim=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        Bag(torch.randn(1 + i % 4, dim, generator=generator), f"s{i}", f"p{i // 2}", i % 2)
        for i in range(count)
    ]


def alone(model, bag):
    """What the model gives for one bag, in double precision."""
    with torch.no_grad():
        output = model.eval()(BagBatch.pack([bag]))
    return output.logits[0].double().numpy(), output


def test_arrays_are_no_bags(unchecked_shapes):
    with pytest.raises(PredictionError, match=r"bags to predict, but got ndarray. Make them with"):
        predict(model_of("abmil"), [np.ones((4, 3))])


@pytest.mark.parametrize("name", ["sgpmil", "abmil"])
def test_is_mean_and_standard_deviation_over_the_samples(name):
    model = model_of(name, num_classes=3, **({"preset": "points"} if name == "sgpmil" else {}))
    for bag, found in zip(bags_of(), predict(model, bags_of()).predictions, strict=True):
        logits, _ = alone(model, bag)
        odds = np.exp(logits)
        samples = odds / odds.sum(1, keepdims=True)
        np.testing.assert_allclose(found.probs, samples.mean(0), atol=1e-6)
        S = len(samples)
        assert (4 if name == "sgpmil" else 1) == S
        spread = ((samples - samples.mean(0)) ** 2).sum(0) / max(1, S - 1)
        np.testing.assert_allclose(found.std, np.sqrt(spread), atol=1e-6)
        # The attention of a single instance is 1 in every sample.
        assert (found.std > 0).all() == (name == "sgpmil" and bag.num_instances > 1)
        entropy = -(samples * np.log(samples)).sum(1).mean()
        assert found.expected_entropy == pytest.approx(entropy, abs=1e-6)
        assert (found.slide_id, found.case_id, found.label) == (
            bag.slide_id,
            bag.case_id,
            bag.label,
        )


@pytest.mark.parametrize("pooling", ["sum", "mean", "normalised"])
@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_evidence_sums_to_the_logit_less_its_bias(pooling, activation):
    model = model_of(num_classes=3, preset="points", pooling=pooling, activation=activation)
    bias = model.classifier.bias.detach().numpy()
    for bag, found in zip(bags_of(), predict(model, bags_of()).predictions, strict=True):
        logits, _ = alone(model, bag)
        total = found.instances.evidence_mean.sum(0)
        np.testing.assert_allclose(total, logits.mean(0) - bias, atol=1e-5)


def test_instance_scores_are_the_moments_of_the_samples():
    model = model_of(preset="points", pooling="mean", activation="sigmoid")
    for bag, found in zip(bags_of(), predict(model, bags_of()).predictions, strict=True):
        _, output = alone(model, bag)
        attention = output.attention.numpy()
        scores = found.instances
        np.testing.assert_allclose(scores.attention_mean, attention.mean(0), atol=1e-6)
        np.testing.assert_allclose(scores.attention_std, attention.std(0, ddof=1), atol=1e-6)
        # Each sample's evidence, from its own weights.
        embeddings = model.embed(bag.features).detach().numpy()
        values = embeddings @ model.classifier.weight.detach().numpy().T
        samples = attention[:, :, None] / len(attention[0]) * values
        np.testing.assert_allclose(scores.evidence_mean, samples.mean(0), atol=1e-6)
        np.testing.assert_allclose(scores.evidence_std, samples.std(0, ddof=1), atol=1e-6)


@pytest.mark.parametrize("sampling", ["inducing", "independent", "shared", "full"])
@pytest.mark.parametrize("most", [1, 4, 1000])
def test_a_prediction_depends_neither_on_batch_nor_on_order(monkeypatch, sampling, most):
    model = model_of(sampling=sampling)
    bags = bags_of(8)
    expected = {p.slide_id: p for bag in bags for p in predict(model, [bag]).predictions}
    monkeypatch.setattr(predictor, "MAX_INSTANCES", {"cpu": most})
    torch.manual_seed(7)
    for order in (bags, bags[::-1], bags[3:6]):
        found = predict(model, order)
        assert found.slide_ids == tuple(bag.slide_id for bag in order)
        for p in found.predictions:
            one = expected[p.slide_id]
            np.testing.assert_allclose(p.probs, one.probs, atol=1e-6)
            np.testing.assert_allclose(p.std, one.std, atol=1e-6)
            np.testing.assert_allclose(
                p.instances.attention_mean, one.instances.attention_mean, atol=1e-6
            )
            np.testing.assert_allclose(
                p.instances.evidence_std, one.instances.evidence_std, atol=1e-6
            )


def test_batches_hold_no_more_instances_than_allowed():
    # Sizes 1 2 3 4 1 2, then one larger than the limit.
    bags = [*bags_of(6), Bag(torch.zeros(9, 3), "large"), Bag(torch.zeros(1, 3), "last")]
    groups = [[bag.num_instances for bag in group] for group in predictor._groups(bags, 5)]
    assert groups == [[1, 2], [3], [4, 1], [2], [9], [1]]


def test_unlabelled_bags_and_data_sets_without_labels():
    model = model_of()
    bags = [Bag(bag.features, bag.slide_id) for bag in bags_of(3)]
    table = predict(model, bags, class_names=("no", "yes"))
    assert [p.label for p in table.predictions] == [None] * 3
    assert table.class_names == ("no", "yes")
    np.testing.assert_array_equal(table.probs, predict(model, bags_of(3)).probs)
    data = BagDataset.from_arrays([bag.features for bag in bags])
    np.testing.assert_array_equal(predict(model, data).probs, table.probs)
    assert predict(model, bags).class_names == ("0", "1")


def test_coordinates_and_instance_labels_are_handed_on():
    coords = torch.tensor([[0, 0], [256, 0]])
    bag = Bag(
        torch.ones(2, 3), "a", coords=coords, patch_size=256, instance_labels=torch.tensor([0, 1])
    )
    (found,) = predict(model_of(), [bag]).predictions
    assert found.instances.coords.tolist() == [[0, 0], [256, 0]]
    assert found.instances.patch_size == 256
    assert found.instances.instance_labels.tolist() == [0, 1]


def test_without_instances():
    table = predict(model_of(), bags_of(), with_instances=False)
    assert [p.instances for p in table.predictions] == [None] * 6
    np.testing.assert_array_equal(table.probs, predict(model_of(), bags_of()).probs)


def test_another_number_of_features_is_refused_with_the_slides_name():
    bags = [*bags_of(2), Bag(torch.ones(2, 5), "odd")]
    with pytest.raises(PredictionError, match=r"bags of 3 features.*'odd' has 5"):
        predict(model_of(), bags)


def test_a_wrong_number_of_class_names_is_refused():
    with pytest.raises(PredictionError, match="Expected 3 probabilities"):
        predict(model_of(), bags_of(2), class_names=("a", "b", "c"))


def test_the_model_is_left_in_evaluation_mode_and_without_gradients():
    model = model_of("abmil", dropout=0.9).train()
    first = predict(model, bags_of())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    np.testing.assert_array_equal(predict(model, bags_of()).probs, first.probs)


def test_a_double_precision_model_takes_single_precision_bags():
    # Without draws, which are others in another dtype.
    single, double = model_of("abmil"), model_of("abmil").double()
    found, expected = predict(double, bags_of()).probs, predict(single, bags_of()).probs
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert not np.array_equal(found, expected)


def test_each_slide_is_reported_when_it_is_done():
    seen = []
    predict(model_of(), iter(bags_of(4)), on_bag=seen.append)
    assert seen == ["s0", "s1", "s2", "s3"]


def test_no_bags_give_an_empty_table():
    assert len(predict(model_of(), [])) == 0


def test_predictions_before_a_bag_that_cannot_be_predicted_are_not_lost(monkeypatch):
    monkeypatch.setattr(predictor, "MAX_INSTANCES", {"cpu": 1})
    model = build_model("abmil", in_dim=3, num_classes=2)
    bags = [*bags_of(4), Bag(torch.zeros(1, 5), "other")]
    seen = []
    with pytest.raises(PredictionError, match="'other' has 5"):
        predict(model, bags, on_bag=seen.append)
    assert seen == [bag.slide_id for bag in bags[:4]]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sgpmil", {"preset": "points"}),
        ("abmil", {}),
        ("sgpmil", {"preset": "points", "activation": "sigmoid", "pooling": "sum"}),
    ],
)
def test_single_is_the_prediction_of_each_instance_as_a_bag(name, settings):
    model = model_of(name, num_classes=3, **settings)
    for bag, found in zip(bags_of(), predict(model, bags_of()).predictions, strict=True):
        for i, features in enumerate(bag.features):
            logits, _ = alone(model, Bag(features[None], "one"))
            odds = np.exp(logits)
            probs = odds / odds.sum(1, keepdims=True)
            log_odds = np.log(probs) - np.log(1 - probs)
            spread = log_odds.std(0, ddof=1) if len(log_odds) > 1 else np.zeros(3)
            for c in range(3):
                score, std = (
                    f("single", c)[i] for f in (found.instances.score, found.instances.score_std)
                )
                assert score == pytest.approx(log_odds[:, c].mean(), abs=1e-5)
                assert std == pytest.approx(spread[c], abs=1e-5)
                probability = found.instances.single_probability(c)[i]
                assert probability == pytest.approx(probs[:, c].mean(), abs=1e-6)
        # Sigmoid attention is uncertain of a single instance, softmax attention is not.
        assert (found.instances.single_std > 0).all() == ("activation" in settings)


def test_without_instances_no_bag_of_one_is_predicted(monkeypatch):
    monkeypatch.delattr("sgpmil.models.contract.MILModel.single_logits")
    assert predict(model_of(), bags_of(), with_instances=False).predictions[0].instances is None


@pytest.mark.parametrize("name", ["sgpmil", "abmil"])
def test_each_sample_is_shifted_to_the_prevalence(name):
    model = model_of(name)
    model.shares = ClassShares.of_training([0] * 4 + [1], model.target, "training", balanced=True)
    for prevalence, odds_of_second in ((None, 0.25), (0.1, 1 / 9), ("balanced", 1.0)):
        table = predict(model, bags_of(), class_names=("no", "yes"), prevalence=prevalence)
        for bag, found in zip(bags_of(), table.predictions, strict=True):
            logits, output = alone(model, bag)
            odds = np.exp(logits[:, 1] - logits[:, 0]) * odds_of_second
            samples = odds / (1 + odds)
            assert found.probs[1] == pytest.approx(samples.mean(), abs=1e-6)
            if len(samples) > 1:
                assert found.std[1] == pytest.approx(samples.std(ddof=1), abs=1e-6)
            evidence = output.evidence.numpy()
            np.testing.assert_allclose(found.instances.evidence_mean, evidence, atol=1e-6)
    named = predict(model, bags_of(), class_names=("no", "yes"), prevalence="yes=0.1,no=0.9")
    numbered = predict(model, bags_of(), prevalence=0.1)
    np.testing.assert_array_equal(named.probs, numbered.probs)
