import json
import math
import os
import signal
from functools import partial

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import sgpmil.experiments.study as study
from sgpmil.bags import make_kfold, read_bags
from sgpmil.bags.dataset import BagDataset
from sgpmil.bags.splits import Fold
from sgpmil.errors import RunFolderError, SettingsError, SplitError, TrainingError
from sgpmil.experiments.model_study import colon_bags
from sgpmil.experiments.study import StudySet, Variant, load_set, plan_jobs, run_jobs
from sgpmil.training.settings import TrainingSettings, default_training
from tests.experiments.tiny_data import write_classic, write_colon
from tests.ray_machines import by_value, first, losing_a_machine, wait_on_lost

pytestmark = pytest.mark.slow

QUICK = {"epochs": 2}
SIZE = Variant("size", "bag-size", training=QUICK)
MEAN = Variant("mean", "mean-pool", {"hidden_dim": 8}, QUICK)


def load_two_folds(path):
    bags = read_bags(path)
    return bags, make_kfold(bags.label_table(), num_folds=2)


@pytest.fixture
def musk(tmp_path):
    write_classic(tmp_path / "musk.npz")
    return StudySet("musk", partial(load_two_folds, tmp_path / "musk.npz"))


def run(jobs, out, **options):
    return run_jobs(jobs, out, progress=False, **options)


def times(out):
    return {p.relative_to(out): p.stat().st_mtime_ns for p in out.rglob("*-seed*.json")}


def test_jobs_are_seed_by_seed_with_each_models_own_training(musk):
    jobs = plan_jobs(musk, [SIZE, MEAN], seeds=2, device="cpu")
    assert [job.file.key for job in jobs] == [
        f"musk/{variant}/{fold}-seed{seed}"
        for seed in (0, 1)
        for variant in ("size", "mean")
        for fold in ("0", "1")
    ]
    own = default_training("bag-size")
    assert jobs[0].training.learning_rate == own.learning_rate != TrainingSettings().learning_rate
    assert jobs[0].training.epochs == 2 != own.epochs
    (job, *_) = plan_jobs(musk, [SIZE], seeds=1, training=TrainingSettings(learning_rate=0.3))
    assert job.training.learning_rate == 0.3


def test_a_result_is_what_its_predictions_say(tmp_path):
    write_colon(tmp_path / "colon")
    colon = StudySet("colon", partial(colon_bags, tmp_path / "colon"))
    (job, *_) = plan_jobs(colon, [MEAN], seeds=1)
    (result,) = run([job], tmp_path / "out")
    assert result["status"] == "done"
    assert json.loads((tmp_path / "out/colon/mean/0-seed0.json").read_text()) == result
    bags, folds = load_set(colon)
    for part in ("val", "test"):
        found = result[part]
        assert found["slide_ids"] == list(folds["0"].part(part))
        assert found["labels"] == list(bags.subset(found["slide_ids"]).labels)
        probs, labels = np.array(found["probs"]), np.array(found["labels"])
        metrics = found["metrics"]
        assert metrics["auc"] == pytest.approx(roc_auc_score(labels, probs[:, 1]))
        of_label = probs[np.arange(len(labels)), labels]
        assert metrics["nll"] == pytest.approx(-np.log(of_label).mean(), rel=1e-4)
        balanced = balanced_accuracy_score(labels, probs.argmax(1))
        assert metrics["balanced_accuracy"] == pytest.approx(balanced)
        assert metrics["attention_auc"] == 0.5  # of a plain mean, which prefers nothing
        assert metrics["num_bags"] == labels.sum()
    assert result["epochs_run"] == 2
    assert result["parameters"] == 6 * 8 + 8 + 8 * 2 + 2
    assert 0 < result["seconds_per_epoch"] < result["seconds"]
    assert result["settings"]["model_settings"]["hidden_dim"] == 8
    assert result["settings"]["training"]["seed"] == 0


def test_undefined_metrics_are_null(tmp_path):
    def load():
        bags = BagDataset.from_arrays([np.eye(3) * i for i in range(1, 9)], [0, 1] * 4)
        ids = bags.slide_ids
        return bags, [Fold("0", ids[:7], (), (ids[7],))]

    (result,) = run(plan_jobs(StudySet("one", load), [SIZE], seeds=1), tmp_path)
    assert result["test"]["metrics"]["auc"] is None
    assert math.isfinite(result["test"]["metrics"]["nll"])
    assert "val" not in result


def test_a_second_call_runs_only_what_is_missing(musk, tmp_path):
    out = tmp_path / "out"
    first = run(plan_jobs(musk, [SIZE], seeds=1), out)
    before = times(out)
    assert len(before) == 2
    again = run(plan_jobs(musk, [SIZE], seeds=1), out)
    assert times(out) == before
    assert again == first
    (out / "musk/size/1-seed0.json").unlink()
    run(plan_jobs(musk, [SIZE], seeds=2), out)
    after = times(out)
    assert len(after) == 4
    assert [p for p in before if after[p] != before[p]] == [
        (out / "musk/size/1-seed0.json").relative_to(out)
    ]


def test_same_job_same_numbers(musk, tmp_path):
    jobs = plan_jobs(musk, [MEAN], seeds=2)
    one, other = (run(jobs, tmp_path / name) for name in ("one", "other"))
    assert [r["test"] for r in one] == [r["test"] for r in other]
    assert one[0]["test"]["probs"] != one[2]["test"]["probs"]  # the seeds do something


def test_changed_settings_are_refused_and_run_again_when_told(musk, tmp_path):
    out = tmp_path / "out"
    run(plan_jobs(musk, [SIZE, MEAN], seeds=1), out)
    before = times(out)
    longer = Variant("size", "bag-size", training={"epochs": 3})
    with pytest.raises(
        RunFolderError, match=r"training.epochs of musk/size/0-seed0 was 2 and is now 3 \(1 more"
    ):
        run(plan_jobs(musk, [longer, MEAN], seeds=1), out)
    assert times(out) == before
    results = run(plan_jobs(musk, [longer, MEAN], seeds=1), out, overwrite=True)
    assert [r["epochs_run"] for r in results] == [3, 3, 2, 2]
    changed = {p for p, time in times(out).items() if time != before[p]}
    assert {p.parts[1] for p in changed} == {"size"}


def test_changed_data_are_noticed_and_moved_data_are_not(musk, tmp_path):
    out = tmp_path / "out"
    run(plan_jobs(musk, [SIZE], seeds=1), out)
    (tmp_path / "musk.npz").rename(tmp_path / "elsewhere.npz")
    write_classic(tmp_path / "musk.npz")  # the same numbers in a newer file
    run(plan_jobs(musk, [SIZE], seeds=1), out)
    write_classic(tmp_path / "musk.npz", seed=1)
    with pytest.raises(RunFolderError, match="the bags or the fold of musk/size/0-seed0"):
        run(plan_jobs(musk, [SIZE], seeds=1), out)


def test_the_device_is_no_setting_of_a_result(musk):
    files = [plan_jobs(musk, [SIZE], seeds=1, device=d)[0].file for d in ("auto", "cpu")]
    assert files[0] == files[1]


def test_a_job_that_diverges_is_written_down_and_stops_no_other(musk, tmp_path):
    wild = Variant(
        "wild",
        "mean-pool",
        {"hidden_dim": 8},
        {"epochs": 5, "learning_rate": 1e30, "gradient_clip": 0.0},
    )
    results = run(plan_jobs(musk, [wild, MEAN], seeds=1), tmp_path / "out")
    assert [r["status"] for r in results] == ["failed", "failed", "done", "done"]
    assert "not finite" in results[0]["error"]
    assert "test" not in results[0]


def test_a_failed_job_is_tried_again(musk, tmp_path, monkeypatch):
    out = tmp_path / "out"
    fit, calls = study.fit, []

    def sometimes(*arguments, **options):
        calls.append(options["training"].seed)
        if len(calls) == 1:
            raise TrainingError("The loss is not finite.")
        if len(calls) == 2:
            raise RuntimeError("out of\nmemory")
        return fit(*arguments, **options)

    monkeypatch.setattr(study, "fit", sometimes)
    jobs = plan_jobs(musk, [SIZE], seeds=2)
    first = run(jobs, out)
    assert [r["error"] for r in first[:2]] == [
        "The loss is not finite.",
        "RuntimeError: out of memory",
    ]
    assert [r["status"] for r in run(jobs, out)] == ["done"] * 4
    assert len(calls) == 4 + 2


def test_interrupting_loses_only_the_job_in_flight(musk, tmp_path, monkeypatch):
    out = tmp_path / "out"
    fit, calls = study.fit, []

    def interrupted(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return fit(*arguments, **options)

    monkeypatch.setattr(study, "fit", interrupted)
    jobs = plan_jobs(musk, [SIZE], seeds=2)
    with pytest.raises(KeyboardInterrupt):
        run(jobs, out)
    assert len(times(out)) == 2
    run(jobs, out)
    assert len(calls) == 3 + 2


def test_validation_is_used_where_the_training_asks_for_it(musk, tmp_path, monkeypatch):
    fit, seen = study.fit, []

    def watched(*arguments, **options):
        seen.append(options["val"])
        return fit(*arguments, **options)

    monkeypatch.setattr(study, "fit", watched)
    early = Variant("early", "bag-size", training={**QUICK, "patience": 1, "select": "best"})
    (job, *_) = plan_jobs(musk, [early], seeds=1)
    run([job], tmp_path / "a")
    (plain, *_) = plan_jobs(musk, [SIZE], seeds=1)
    run([plain], tmp_path / "b")
    _, folds = load_set(musk)
    assert seen[0].slide_ids == folds["0"].val
    assert seen[1] is None


@pytest.mark.parametrize(
    ("variants", "seeds", "said"),
    [
        ([Variant("a", "no-such-model")], 1, "no-such-model"),
        ([Variant("a", "abmil", {"no_such": 1})], 1, "no_such"),
        ([Variant("a", "abmil", training={"no_such": 1})], 1, "no_such"),
        ([Variant("a/b", "abmil")], 1, "a/b"),
        ([SIZE, SIZE], 1, "twice"),
        ([SIZE], 0, "seed"),
    ],
)
def test_impossible_plans_are_refused_before_anything_runs(musk, variants, seeds, said):
    with pytest.raises(SettingsError, match=said):
        plan_jobs(musk, variants, seeds=seeds)


def test_leaking_folds_are_refused(tmp_path):
    def load():
        bags = BagDataset.from_arrays([np.eye(2)] * 4, [0, 1, 0, 1])
        return bags, [Fold("0", bags.slide_ids, (), bags.slide_ids[:2])]

    with pytest.raises(SplitError, match="more than once"):
        plan_jobs(StudySet("leak", load), [SIZE], seeds=1)


def test_two_processes_give_what_one_gives(musk, tmp_path):
    jobs = plan_jobs(musk, [SIZE, MEAN], seeds=1)
    one = run(jobs, tmp_path / "one")
    two = run(jobs, tmp_path / "two", processes=2)
    assert [r["test"]["probs"] for r in one] == [r["test"]["probs"] for r in two]
    assert times(tmp_path / "one").keys() == times(tmp_path / "two").keys()


def _fragile(markers, lost_machine):
    """Train and test, but die once, and wait once on the machine that is to be lost."""
    train_and_test = study._TrainAndTest()

    def work(job):
        if first(markers / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        wait_on_lost(markers, lost_machine)
        return train_and_test(job)

    return work


@pytest.mark.filterwarnings("default")
def test_a_killed_worker_and_a_lost_machine_cost_a_study_nothing(musk, tmp_path, cluster):
    from sgpmil.scaleout.ray_cluster import RayExecutor

    by_value(__name__)
    jobs = plan_jobs(musk, [SIZE, MEAN], seeds=2)
    assert len(jobs) == 8
    local = run(jobs, tmp_path / "local")
    with losing_a_machine(cluster, tmp_path) as lost:
        work = partial(_fragile, tmp_path, lost)
        found = run(jobs, tmp_path / "ray", work=work, executor=RayExecutor())
    assert (tmp_path / "killed").exists()
    assert (tmp_path / "waits").exists()
    assert [r["test"]["probs"] for r in found] == [r["test"]["probs"] for r in local]
    assert [r["test"]["metrics"] for r in found] == [r["test"]["metrics"] for r in local]
    assert times(tmp_path / "ray").keys() == times(tmp_path / "local").keys()
    assert not list((tmp_path / "ray").rglob("*.tmp"))
