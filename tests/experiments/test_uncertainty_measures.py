import copy
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score

from sgpmil.bags.dataset import BagDataset
from sgpmil.evaluation.calibration import adaptive_calibration_error
from sgpmil.evaluation.predictor import predict
from sgpmil.evaluation.uncertainty.temperature import TEMPERATURE_SPREAD
from sgpmil.experiments.uncertainty_designs import Design, train_design
from sgpmil.experiments.uncertainty_measures import (
    kmeans_of_features,
    measure,
    process_columns,
    unseen_auroc,
)
from sgpmil.experiments.uncertainty_sets import PlantedDesign, planted_set

SMALL = {
    "hidden_dims": (16, 8),
    "gp_dim": 6,
    "num_inducing": 7,
    "num_samples": 5,
    "prediction_samples": 20,
    "prediction_error": 0.0,
    "classifier_scale": None,  # so that a bag of one patch has one probability
}


@pytest.fixture(scope="module")
def data():
    design = PlantedDesign(0.1, dim=12, sizes=(15, 30), counts=(30, 24, 60, 40))
    return planted_set("planted-0.5", 0, design)


@pytest.fixture(scope="module")
def trained(data):
    design = Design("small", "sgpmil", SMALL, {"epochs": 6, "warmup_epochs": 1})
    found = train_design(design, data)
    with torch.no_grad():  # a process that acts, so that its columns say something
        gp = found.model.gp
        generator = torch.Generator().manual_seed(0)
        gp.variational.variational_mean.copy_(torch.randn(7, generator=generator))
        gp.variational.chol_variational_covar.mul_(0.5)
    return found


@pytest.fixture(scope="module")
def columns(trained, data):
    return measure(trained, data)


def test_slides_against_scikit_learn(columns, trained, data):
    table = predict(trained.model, data.test.bags)
    p, y = table.probs, np.array(data.test.bags.labels)
    assert columns["auc"] == pytest.approx(roc_auc_score(y, p[:, 1]))
    assert columns["nll"] == pytest.approx(log_loss(y, p), rel=1e-5)
    assert columns["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))
    assert columns["ace"] == pytest.approx(adaptive_calibration_error(p, y))
    part = data.shifted["unseen"].bags
    shifted = predict(trained.model, part).probs
    assert columns["auc@unseen"] == pytest.approx(roc_auc_score(part.labels, shifted[:, 1]))
    assert columns["nll@unseen"] == pytest.approx(log_loss(part.labels, shifted), rel=1e-5)


def test_temperature_is_fitted_on_validation_bags(columns, trained, data):
    def scaled(bags, log_t):
        logs = np.log(predict(trained.model, bags).probs) / math.exp(log_t)
        e = np.exp(logs - logs.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    def objective(log_t):
        loss = log_loss(data.val.labels, scaled(data.val, log_t), normalize=False)
        return loss + log_t**2 / (2 * TEMPERATURE_SPREAD**2)

    best = minimize_scalar(
        objective,
        bounds=(-2.9, 2.9),
        method="bounded",
        options={"xatol": 1e-8},
    ).x
    assert columns["temperature"] == pytest.approx(math.exp(best), rel=1e-3)
    test, shifted = data.test.bags, data.shifted["unseen"].bags
    after = scaled(test, best)
    assert columns["nll_t"] == pytest.approx(log_loss(test.labels, after), rel=1e-3)
    expected = log_loss(shifted.labels, scaled(shifted, best))
    assert columns["nll_t@unseen"] == pytest.approx(expected, rel=1e-3)
    ace = adaptive_calibration_error(after, np.array(test.labels))
    assert columns["ace_t"] == pytest.approx(ace, abs=1e-3)


def test_errors_found_by_each_uncertainty(columns, trained, data):
    table = predict(trained.model, data.test.bags)
    wrong = table.probs.argmax(1) != np.array(data.test.bags.labels)
    assert 0 < wrong.sum() < len(wrong)
    rows = np.arange(len(wrong))
    uncertainties = {
        "max": 1 - table.probs.max(1),
        "std": table.std[rows, table.probs.argmax(1)],
        "mi": np.array([p.mutual_information for p in table.predictions]),
    }
    for name, values in uncertainties.items():
        assert columns[f"errors_{name}"] == pytest.approx(roc_auc_score(wrong, values))
        assert len(np.unique(values)) == len(values)  # without ties the order is plain
        order = np.argsort(values)
        risks = [wrong[order[:k]].mean() for k in range(1, len(order) + 1)]
        assert columns[f"aurc_{name}"] == pytest.approx(np.mean(risks))


def test_instance_scores_against_bags_of_one(columns, trained, data):
    areas = {"attention": [], "evidence": [], "single": []}
    table = predict(trained.model, data.test.bags)
    for bag, prediction in zip(data.test.bags, table.predictions, strict=True):
        if not bag.label:
            continue
        y = bag.instance_labels.numpy()
        ones = BagDataset.from_arrays([row[None] for row in bag.features])
        alone = predict(trained.model, ones).probs
        evidence = prediction.instances.evidence_mean
        areas["attention"].append(roc_auc_score(y, prediction.instances.attention_mean))
        areas["evidence"].append(roc_auc_score(y, evidence[:, 1] - evidence[:, 0]))
        areas["single"].append(roc_auc_score(y, np.log(alone[:, 1] / alone[:, 0])))
    for kind, values in areas.items():
        assert columns[kind] == pytest.approx(np.mean(values), abs=1e-6)
    assert columns["best"] == max(columns[kind] for kind in areas)


def dense_process(model, features):
    """Return the process by dense matrices in float64: its part of the mean, and the variances."""
    model = model.double()
    with torch.no_grad():
        g = model.gp_inputs(features.double())
        z = model.whitening().points
        model.requires_grad_(False)
        kernel = model.gp.kernel
        Kzz = kernel(z, z).to_dense() + 1e-4 * torch.eye(len(z))
        Kzx, Kxx = kernel(z, g).to_dense(), kernel(g, g).to_dense().diagonal() + 1e-4
        B = torch.linalg.solve(torch.linalg.cholesky(Kzz), Kzx)
        m = model.gp.variational.variational_mean
        L = model.gp.variational.chol_variational_covar.tril()
        S = L @ L.T
        residual = Kxx - (B * B).sum(0)
        variance = residual + torch.einsum("mt,mn,nt->t", B, S, B)
        nearest = torch.cdist(g, z).argmin(1)
        return m @ B, model.gp.mean(g), variance / Kxx, residual, nearest


def test_the_process_against_dense_matrices(columns, trained, data):
    model = copy.deepcopy(trained.model)
    x = torch.cat([bag.features for bag in data.test.bags])
    part, mean, ratio, residual, nearest = (v.numpy() for v in dense_process(model, x))
    share = part.std(ddof=1) / (part + mean).std(ddof=1)
    assert columns["process_share"] == pytest.approx(share, rel=1e-3)
    assert columns["variance_ratio"] == pytest.approx(ratio.mean(), rel=1e-3)
    assert columns["prototypes"] == len(set(nearest.tolist()))
    assert columns["inducing"] == 7
    classes = np.concatenate(data.test.classes)
    assert columns["nmi"] == pytest.approx(nmi(classes, nearest), abs=1e-6)
    clusters = kmeans_of_features(data, 7)
    assert columns["nmi_kmeans"] == pytest.approx(nmi(classes, clusters), abs=1e-6)
    shifted = data.shifted["unseen"]
    other = torch.cat([bag.features for bag in shifted.bags])
    new = dense_process(model, other)[3].numpy()[np.concatenate(shifted.unseen)]
    y = np.repeat([0, 1], [len(residual), len(new)])
    expected = roc_auc_score(y, np.concatenate([residual, new]))
    assert columns["residual_patch@unseen"] == pytest.approx(expected, abs=0.01)


def nmi(a, b):
    """Compute mutual information over the mean of the two entropies, from the joint table."""
    joint = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(joint, (a, b), 1 / len(a))
    p, q = joint.sum(1), joint.sum(0)
    information = sum(
        joint[i, j] * math.log(joint[i, j] / (p[i] * q[j])) for i, j in np.argwhere(joint)
    )
    entropies = [-sum(v * math.log(v) for v in side if v) for side in (p, q)]
    return information / np.mean(entropies)


def test_novelty_of_patches_and_slides(columns, trained, data):
    part = data.shifted["unseen"]
    test, shifted = predict(trained.model, data.test.bags), predict(trained.model, part.bags)
    new = np.concatenate(
        [
            p.instances.novelty[mask]
            for p, mask in zip(shifted.predictions, part.unseen, strict=True)
        ]
    )
    usual = np.concatenate([p.instances.novelty for p in test.predictions])
    y = np.repeat([0, 1], [len(usual), len(new)])
    expected = roc_auc_score(y, np.concatenate([usual, new]))
    assert columns["novelty_patch@unseen"] == pytest.approx(expected)
    assert expected > 0.6  # new clusters lie elsewhere
    p_test, p_new = ([p.novelty_p for p in t.predictions] for t in (test, shifted))
    y = np.repeat([0, 1], [len(p_test), len(p_new)])
    expected = roc_auc_score(y, [1 - p for p in (*p_test, *p_new)])
    assert columns["novelty_slide@unseen"] == pytest.approx(expected)
    allowed = [t for t in sorted(set(p_test + p_new)) if np.mean(np.array(p_test) <= t) <= 0.05]
    found = max((np.mean(np.array(p_new) <= t) for t in allowed), default=0.0)
    assert columns["found@unseen"] == pytest.approx(found)
    assert columns["flag@unseen"] == sum(p <= 0.05 for p in p_new) / len(p_new)
    assert columns["false_alarms"] == sum(p <= 0.05 for p in p_test) / len(p_test)


def test_kmeans_finds_clusters_that_lie_apart():
    found = planted_set("p", 0, PlantedDesign(0.01, dim=400, sizes=(40, 60), counts=(60, 2, 20, 2)))
    clusters = kmeans_of_features(found, 40)
    assert nmi(np.concatenate(found.test.classes), clusters) > 0.85


def test_unseen_patches_stand_against_all_test_patches():
    rng = np.random.default_rng(0)
    shifted, test = [rng.normal(size=5), rng.normal(size=4)], [rng.normal(size=7)]
    unseen = [np.array([1, 0, 0, 1, 0], bool), np.array([0, 1, 1, 0], bool)]
    new = [shifted[0][0], shifted[0][3], shifted[1][1], shifted[1][2]]
    wins = [float(a > b) for a in new for b in test[0]]
    assert unseen_auroc(shifted, unseen, test) == pytest.approx(np.mean(wins))


def test_models_without_a_process_or_posterior_leave_columns_empty(data):
    design = Design("abmil", "abmil", {"hidden_dim": 8}, {"epochs": 1, "warmup_epochs": 0})
    found = train_design(design, data)
    columns = measure(found, data)
    assert columns["errors_std"] is None
    assert columns["aurc_mi"] is None
    assert columns["errors_max"] is not None
    assert process_columns(found.model, data) == {}
    assert "process_share" not in columns
