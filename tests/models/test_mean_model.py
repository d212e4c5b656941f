import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from sgpmil.models.mean_model import fit_mean_model


def bag_means(count, num_classes, seed=0, strength=1.0):
    generator = torch.Generator().manual_seed(seed)
    labels = [i % num_classes for i in range(count)]
    means = 7 + torch.randn(count, 4, generator=generator).double()
    means[:, 2] *= 10
    for i, label in enumerate(labels):
        means[i, label] += strength
    return means, labels


def logits_of(means, effects, intercepts):
    """What MixMIL computes with uniform attention: b (r - mean) / sd(r) + intercept."""
    scale = effects.square().mean(1).sqrt()
    r = means @ (effects / scale[:, None]).T
    return scale * (r - r.mean(0)) / r.std(0) + intercepts


@pytest.mark.parametrize("num_classes", [2, 3])
def test_few_bags_give_the_logits_of_the_regression(num_classes):
    means, labels = bag_means(4 * num_classes, num_classes)
    effects, intercepts = fit_mean_model(means, labels, 1 if num_classes == 2 else num_classes)
    centred = means - means.mean(0)
    inputs = (centred / centred.var(0).sum().sqrt()).numpy()
    sklearn = LogisticRegression(C=1.0, max_iter=1000).fit(inputs, labels)
    expected = torch.from_numpy(sklearn.decision_function(inputs)).view(len(labels), -1)
    assert torch.allclose(logits_of(means, effects, intercepts), expected, atol=1e-6)


def test_two_classes_with_an_output_each():
    means, labels = bag_means(8, 2)
    one = logits_of(means, *fit_mean_model(means, labels, 1))
    two = logits_of(means, *fit_mean_model(means, labels, 2))
    assert torch.allclose(two.softmax(1)[:, 1:], one.sigmoid())


def test_the_penalty_is_cross_validated_where_there_are_bags_enough():
    chosen = set()
    for strength in (0.0, 12.0):
        means, labels = bag_means(60, 2, strength=strength)
        centred = means - means.mean(0)
        inputs = (centred / centred.var(0).sum().sqrt()).numpy()
        search = GridSearchCV(
            LogisticRegression(max_iter=1000),
            {"C": [0.1, 1.0, 10.0, 100.0]},
            scoring="neg_log_loss",
            cv=5,
        ).fit(inputs, labels)
        expected = torch.from_numpy(search.decision_function(inputs)).view(60, 1)
        found = logits_of(means, *fit_mean_model(means, labels, 1))
        assert torch.allclose(found, expected, atol=1e-6)
        chosen.add(search.best_params_["C"])
    assert len(chosen) == 2


def test_intercept_is_of_the_base_rate():
    means, _ = bag_means(100, 2, strength=0.0)
    labels = [int(i % 10 == 0) for i in range(100)]
    logits = logits_of(means, *fit_mean_model(means, labels, 1))
    assert logits.sigmoid().mean().item() == pytest.approx(0.1, abs=0.01)


def test_shift_and_scale_of_the_features_do_not_matter():
    means, labels = bag_means(20, 2)
    plain = logits_of(means, *fit_mean_model(means, labels, 1))
    moved = 50 * means - 300
    assert torch.allclose(logits_of(moved, *fit_mean_model(moved, labels, 1)), plain, atol=1e-4)


def test_bags_that_do_not_differ_have_no_model():
    assert fit_mean_model(torch.ones(6, 3), [0, 1] * 3, 1) is None


def test_result_is_of_the_features_dtype():
    means, labels = bag_means(12, 2)
    effects, intercepts = fit_mean_model(means.float(), labels, 1)
    assert effects.dtype == intercepts.dtype == torch.float32
