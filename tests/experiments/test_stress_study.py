import json

import pytest

import sgpmil.experiments.design_study as design_study
from sgpmil.errors import BagError, SettingsError
from sgpmil.experiments.ablation_study import AblationOptions, choose_rows, plan_ablations
from sgpmil.experiments.design_study import read_scored, score
from sgpmil.experiments.stress_study import (
    STRESS_MODELS,
    StressOptions,
    compare_stress,
    plan_stress,
    stress_designs,
)
from sgpmil.experiments.stress_table import write_stress_tables
from sgpmil.experiments.uncertainty_designs import train_design
from sgpmil.training.settings import default_training, resolve_training

QUICK = {
    "axis": ("witness",),
    "value": (1.0,),
    "model": ("mean-pool", "max-pool"),
    "seeds": "0,1",
    "jobs": 1,
    "device": "cpu",
    "quick": True,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("stress")
    options = StressOptions(out=out, **QUICK)
    assert compare_stress(options) == {}
    return out


def test_models_have_their_own_training_and_equal_epochs():
    for design in stress_designs(StressOptions(epochs=7)):
        training = resolve_training(design.model, design.training)
        assert training.epochs == (70 if design.name == "mixmil" else 7)
        assert training.learning_rate == default_training(design.model).learning_rate
    diagonal = next(d for d in stress_designs(StressOptions()) if d.name == "agp-diagonal")
    assert diagonal.resolved()["model_settings"]["sampling"] == "independent"


def test_a_seed_is_complete_before_the_next_begins():
    jobs = plan_stress(StressOptions(axis=("witness",), seeds="0-2", device="cpu"))
    assert len(jobs) == 3 * 4 * len(STRESS_MODELS)
    assert [job.seed for job in jobs] == sorted(job.seed for job in jobs)
    assert len({job.file.key for job in jobs}) == len(jobs)


def test_noise_and_bags_share_the_set_without_noise(tmp_path):
    (tmp_path / "mnist").mkdir()
    jobs = plan_stress(StressOptions(data=tmp_path, model=("abmil",), seeds="0", device="cpu"))
    names = [job.data_set.name for job in jobs]
    assert sorted(names) == sorted(set(names))
    assert {"digits-200", "digits-200-noise-20", "digits-20", "digits-500"} <= set(names)
    assert len(names) == 4 + 5 - 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"axis": ("size",)}, "`axis` among witness"),
        ({"axis": ("witness",), "value": (7.0,)}, "`value` among"),
        ({"axis": ("witness",), "model": ("resnet",)}, "`model`"),
        ({"axis": ("witness",), "epochs": 0}, "`epochs`"),
        ({"axis": ("witness",), "seeds": "x"}, "`seeds`"),
    ],
)
def test_what_does_not_exist_is_refused(changes, match):
    with pytest.raises(SettingsError, match=match):
        plan_stress(StressOptions(**changes))


def test_missing_data_are_named(tmp_path):
    with pytest.raises(BagError, match="Expected MNIST at"):
        plan_stress(StressOptions(data=tmp_path))
    with pytest.raises(BagError, match="mnist/ or colon/"):
        plan_ablations(AblationOptions(data=tmp_path))
    with pytest.raises(BagError, match="data of 'colon'"):
        plan_ablations(AblationOptions(data=tmp_path, sets=("colon",)))


def test_ablations_are_chosen_by_base_and_axis():
    rows = choose_rows(AblationOptions(base=("paper",), axis=("kernel",)))
    assert [row.value for row in rows] == ["RBF", "Matérn 5/2", "linear"]
    for changes in ({"base": ("papers",)}, {"axis": ("colour",)}, {"sets": ("camelyons",)}):
        with pytest.raises(SettingsError, match=r"among|`axis`"):
            plan_ablations(AblationOptions(**changes))
    with pytest.raises(SettingsError, match="there are none"):
        choose_rows(AblationOptions(base=("grid",), axis=("kernel",)))


def test_slow_joint_draws_come_last():
    jobs = plan_ablations(AblationOptions(sets=("camelyon",), seeds="0", device="cpu"))
    is_full = [job.design.settings.get("sampling") == "full" for job in jobs]
    assert is_full == sorted(is_full)
    assert any(is_full)


def test_a_result_is_what_its_design_scores(finished):
    options = StressOptions(out=finished, **{**QUICK, "model": ("mean-pool",)})
    job = plan_stress(options)[0]
    data = job.data_set.draw(job.seed)
    expected = score(train_design(job.design, data, device="cpu"), data)
    found = json.loads((finished / f"{job.file.key}.json").read_text())
    for key in expected.keys() - {"seconds_per_epoch"}:
        assert found["columns"][key] == pytest.approx(expected[key]), key
    assert expected["best_auc"] == max(
        expected[f"{kind}_auc"] for kind in ("attention", "evidence", "single")
    )


def test_a_lost_run_alone_is_done_again(finished, monkeypatch):
    trained = []
    own = design_study.train_design
    monkeypatch.setattr(
        design_study, "train_design", lambda d, *a, **k: trained.append(d.name) or own(d, *a, **k)
    )
    options = StressOptions(out=finished, **QUICK)
    compare_stress(options)
    assert trained == []
    (finished / "witness-1/max-pool/run-seed1.json").unlink()
    compare_stress(options)
    assert trained == ["max-pool"]


def test_tables_are_made_of_the_runs_that_are_there(finished):
    files = {path.name for path in write_stress_tables(finished, (0, 1))}
    assert files == {"stress.md", "runs.csv", "comparisons.csv", "stress-witness.png"}
    text = (finished / "stress.md").read_text()
    assert "| max-pool |" in text
    assert len(read_scored(finished, (0,))) == 2
    assert len((finished / "runs.csv").read_text().splitlines()) == 1 + 4
