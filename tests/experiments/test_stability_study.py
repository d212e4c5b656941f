from collections import Counter

import numpy as np
import pytest
import torch

import sgpmil.experiments.stability_study as study
from sgpmil.errors import SettingsError, TrainingError
from sgpmil.experiments.stability_study import (
    LEVELS,
    STABILITY_DESIGNS,
    Condition,
    StabilityOptions,
    conditions,
    equalise,
    hostile_bags,
    judge,
    measure_stability,
    plan_stability,
    read_stability,
)
from sgpmil.experiments.stability_table import failures, write_stability_tables
from sgpmil.models import build_model


def test_levels_are_equally_frequent_and_mixed():
    found = conditions(200)
    for factor, levels in LEVELS.items():
        counts = Counter(getattr(one, factor) for one in found)
        assert set(counts) == set(levels)
        assert max(counts.values()) - min(counts.values()) <= 1
    assert len({(one.content, one.points, one.precision) for one in found}) == 4 * 3 * 2
    assert [one.seed for one in found] == list(range(200))


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_contents_are_as_hostile_as_they_say(scale):
    distinct, repeated, columns, constant = (
        np.concatenate([bag.features.numpy() for bag in hostile_bags(condition)])
        for condition in (
            Condition(1, content=content, scale=scale)
            for content in ("distinct", "repeated", "constant columns", "constant")
        )
    )
    assert len(np.unique(distinct, axis=0)) == len(distinct)
    assert len(np.unique(repeated, axis=0)) <= 12
    assert 0 < (columns.std(0) == 0).sum() < columns.shape[1]
    assert len(np.unique(constant, axis=0)) == 1
    assert distinct.std() == pytest.approx(scale, rel=0.5)
    assert min(len(bag.features) for bag in hostile_bags(Condition(1))) == 1


@pytest.mark.parametrize("preset", [{}, {"preset": "points"}])
def test_inducing_points_become_equal(preset):
    model = build_model(
        "sgpmil", in_dim=6, num_classes=2, num_inducing=8, hidden_dims=(5,), gp_dim=3, **preset
    )
    rows = model.gp.points if model.patches is None else model.patches.features
    with torch.no_grad():
        rows.copy_(torch.randn(rows.shape))
    equalise(model, "half equal")
    assert len(torch.unique(rows, dim=0)) == 4
    equalise(model, "all equal")
    assert len(torch.unique(rows, dim=0)) == 1


HOSTILE = Condition(
    3, lengthscale=100.0, points="all equal", content="constant", scale=1e3, precision="bf16"
)


@pytest.mark.parametrize("design", STABILITY_DESIGNS)
def test_the_worst_conditions_at_once_do_not_fail(design, monkeypatch):
    monkeypatch.setattr(study, "EPOCHS", 1)
    found = judge(design, HOSTILE)
    assert (found.failure, found.reason) == ("", "")
    assert np.isfinite(found.worst_loss)


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (TrainingError("The loss is not finite."), "not finite"),
        (ValueError("no factor"), "error"),
        ("weight", "not finite"),
        ("prediction", "error"),  # `predict` refuses it
    ],
)
def test_failures_are_found(monkeypatch, broken, kind):
    def fit(train, *, on_epoch, **_):
        on_epoch({"train_loss": 0.5})
        if isinstance(broken, Exception):
            raise broken
        model = build_model("mean-pool", in_dim=24, num_classes=2).eval()
        with torch.no_grad():
            if broken == "weight":
                next(model.parameters())[:] = torch.nan
            else:
                model.standardise.mean.fill_(torch.inf)
        return model

    monkeypatch.setattr(study, "fit", fit)
    assert judge("default", Condition(0)).failure == kind


def test_a_weight_that_is_not_finite_is_seen():
    model = build_model("mean-pool", in_dim=3, num_classes=2)
    assert study.weights_finite(model)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = torch.inf
    assert not study.weights_finite(model)


def test_the_study_counts_and_resumes(tmp_path, monkeypatch):
    verdicts = {
        "default": study.Verdict("", "", 1.0, 0.5),
        "agp": study.Verdict("error", "no factor"),
    }
    judged = []
    monkeypatch.setattr(
        study, "judge", lambda design, condition, device: judged.append(design) or verdicts[design]
    )
    options = StabilityOptions(design=("default", "agp"), runs=3, out=tmp_path, jobs=1)
    assert measure_stability(options) == {}
    assert measure_stability(options) == {}
    assert Counter(judged) == {"default": 3, "agp": 3}
    runs = read_stability(tmp_path)
    assert failures([run for run in runs if run.design == "agp"], "error") == 3
    assert failures([run for run in runs if run.design == "default"]) == 0
    assert {run.condition for run in runs} == set(conditions(3))
    written = {path.name for path in write_stability_tables(tmp_path, 3)}
    assert written == {"stability.md", "runs.csv", "stability.png"}
    text = (tmp_path / "stability.md").read_text()
    assert "| agp | 3 | 3 | 0 | 3 | 0 | 0 |" in text
    assert "- agp, seed 2: error: no factor" in text


def test_what_does_not_exist_is_refused():
    with pytest.raises(SettingsError, match="`design` among default"):
        plan_stability(StabilityOptions(design=("abmil",)))
    with pytest.raises(SettingsError, match="`runs`"):
        plan_stability(StabilityOptions(runs=0))
