import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_rel
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import sgpmil.experiments.cohorts.study as study
from sgpmil.errors import BagError, RunFolderError, SettingsError, SplitError, TrainingError
from sgpmil.experiments.cohorts.measures import MeasuredFold, measure
from sgpmil.experiments.cohorts.plan import CohortJob, CohortOptions, plan_cohort
from sgpmil.experiments.cohorts.report import write_report
from sgpmil.experiments.cohorts.study import train_cohort
from sgpmil.experiments.cohorts.tables import StudyResults, results_csv, results_markdown
from sgpmil.runs.run import Run, run_lock

pytestmark = pytest.mark.slow


def run(options):
    plan = plan_cohort(options)
    errors = train_cohort(plan, options)
    assert errors == {}
    return plan


@pytest.fixture(scope="module")
def finished(rehearsed, tmp_path_factory):
    """A finished study of CAMELYON16's form: two models on two folds."""
    found = rehearsed("camelyon16")
    options = CohortOptions(
        cohort="camelyon16",
        features=found.features,
        labels=found.labels,
        splits=found.splits,
        annotations=found.annotations,
        out=tmp_path_factory.mktemp("finished") / "study",
        model=("mean-pool", "sgpmil"),
        fold=("0", "1"),
        epochs=1,
        device="cpu",
    )
    return options, run(options)


def test_every_row_is_a_run_whose_folds_are_measured(finished):
    _, plan = finished
    assert [one.name for one in plan.runs] == ["mean-pool", "sgpmil"]
    for one in plan.runs:
        opened = Run.open(one.path(plan.out))
        assert [name for name, fold in opened.folds.items() if fold.is_done] == ["0", "1"]
        assert opened.settings["training"]["prevalence"] == "balanced"
        for name in plan.folds:
            table = opened.folds[name].predictions
            found = MeasuredFold.read(one.measured(plan.out, name))
            predicted = table.probs.argmax(1)
            expected = balanced_accuracy_score(table.labels, predicted)
            assert found.slides["balanced_accuracy"] == pytest.approx(expected)
            area = roc_auc_score(table.labels, table.probs[:, 1])
            assert found.slides["auc"] == pytest.approx(area)
            assert (found.cost.epochs, found.cost.device) == (1, "CPU")
    assert plan.jobs() == []


def test_instances_are_measured_against_the_annotations(finished):
    _, plan = finished
    one = plan.runs[-1]
    fold = Run.open(one.path(plan.out)).folds["0"]
    found = MeasuredFold.read(one.measured(plan.out, "0"))
    assert found.annotations == str(plan.annotations.folder)
    areas = []
    for prediction in fold.load().test.predictions:
        scores = prediction.instances
        if prediction.label == 1 and 0 < scores.instance_labels.mean() < 1:
            areas.append(roc_auc_score(scores.instance_labels, scores.score("attention", 1)))
    # The bags carry the labels that the outlines were drawn for.
    assert found.num_bags == len(areas)
    assert found.localised["auc"] == pytest.approx(np.mean(areas), abs=0.05)


def test_a_measurement_survives_its_file(finished, tmp_path):
    _, plan = finished
    fold = Run.open(plan.runs[0].path(plan.out)).folds["0"]
    found = measure(fold.load())
    found.write(tmp_path / "deep" / "m.json")
    again = MeasuredFold.read(tmp_path / "deep" / "m.json")
    for name, value in found.slides.items():
        assert again.slides[name] == value or math.isnan(value)
    assert (again.num_slides, again.num_bags) == (found.num_slides, found.num_bags)
    (tmp_path / "broken.json").write_text("{")
    assert MeasuredFold.read(tmp_path / "broken.json") is None
    assert MeasuredFold.read(tmp_path / "absent.json") is None


def test_tables_have_the_papers_tests_and_every_number(finished):
    _, plan = finished
    results = StudyResults.read(plan)
    assert results.reference.name == "sgpmil"
    rows = {
        (r["model"], r["level"], r["metric"]): r
        for r in csv.DictReader(results_csv(results).splitlines())
    }
    assert len(rows) == 2 * (3 + 3)
    values = {
        one.name: [MeasuredFold.read(one.measured(plan.out, f)).slides["ace"] for f in plan.folds]
        for one in plan.runs
    }
    row = rows["mean-pool", "slides", "ace"]
    assert float(row["mean"]) == pytest.approx(np.mean(values["mean-pool"]))
    assert float(row["sd"]) == pytest.approx(np.std(values["mean-pool"], ddof=1))
    expected = ttest_rel(values["sgpmil"], values["mean-pool"], alternative="less").pvalue
    assert float(row["p_paired"]) == pytest.approx(expected)
    assert rows["sgpmil", "slides", "auc"]["p_paired"] == ""
    # Synthetic embeddings do not stand beside the paper's.
    assert {r["paper_mean"] for r in rows.values()} == {""}
    real = replace(results, beside_paper=True)
    text = results_markdown(real)
    assert "(0.986)" in text
    assert "(0.979)" in text
    assert "rehearsed" not in text
    assert "rehearsed" in results_markdown(results)
    assert "| mean-pool | 2 of 2 |" in text


def test_the_report_has_tables_figures_maps_and_corrected_tests(finished):
    options, plan = finished
    options = replace(options, show=("test_001",))
    files = write_report(plan, options)
    names = {str(path.relative_to(plan.out)) for path in files}
    assert {
        "results.md",
        "results.csv",
        "figures/slides.png",
        "figures/instances.png",
        "figures/reliability.png",
        "figures/uncertainty.png",
        "comparison/comparison.md",
        "maps/prototypes/fold-0/prototypes.png",
    } <= names
    assert "maps/models-test_001.png" in names
    assert all(path.stat().st_size > 1000 for path in files if path.suffix == ".png")
    with pytest.raises(SettingsError, match="`show`"):
        write_report(plan, replace(options, show=("nowhere",)))


def test_a_finished_study_does_nothing_again_and_a_missing_fold_alone_is_trained(
    options_of, monkeypatch
):
    options = options_of("camelyon16", model=("mean-pool",))
    plan = run(options)
    trained = []
    original = study.cross_validate

    def counting(*args, **how):
        trained.append(how["only_folds"])
        return original(*args, **how)

    monkeypatch.setattr(study, "cross_validate", counting)
    run(options)
    assert trained == []
    run(replace(options, fold=("0", "1", "2")))
    assert trained == [("2",)]
    # A measurement that is lost is made again, and keeps what the training took.
    cost = MeasuredFold.read(plan.runs[0].measured(plan.out, "0")).cost
    plan.runs[0].measured(plan.out, "1").unlink()
    before = (plan.runs[0].path(plan.out) / "fold-1" / "predictions.parquet").stat().st_mtime_ns
    run(options)
    assert trained == [("2",), ("1",)]
    after = (plan.runs[0].path(plan.out) / "fold-1" / "predictions.parquet").stat().st_mtime_ns
    assert after == before
    assert MeasuredFold.read(plan.runs[0].measured(plan.out, "0")).cost == cost


def test_seeds_are_runs_of_their_own_and_paired(options_of):
    options = options_of("bracs", model=("mean-pool", "max-pool"), seed=(3, 4), maps=False)
    plan = run(options)
    assert [one.name for one in plan.runs] == [
        *("max-pool-seed3", "max-pool-seed4"),
        *("mean-pool-seed3", "mean-pool-seed4"),
    ]
    results = StudyResults.read(plan)
    assert results.planned == 2
    for row in results.rows:
        assert list(results.measured[row]) == ["seed3", "seed4"]
    assert "comparison.md" in {path.name for path in write_report(plan, options)}


def test_grades_of_panda_have_a_kappa(options_of):
    plan = run(options_of("panda", model=("mean-pool",), fold=("0",), annotations=None))
    found = MeasuredFold.read(plan.runs[0].measured(plan.out, "0"))
    assert -1 <= found.slides["kappa"] <= 1
    assert Run.open(plan.runs[0].path(plan.out)).settings["target"] == "ordinal"


def test_jobs_come_fold_by_fold_the_longest_first(options_of):
    plan = plan_cohort(options_of("camelyon16", model=("abmil", "agp"), epochs=None))
    keys = [job.key for job in plan.jobs()]
    assert keys == ["agp, fold 0", "abmil, fold 0", "agp, fold 1", "abmil, fold 1"]
    assert CohortJob(plan.runs[0], ("0", "1")).key == "abmil, 2 folds"


def test_a_failure_is_its_jobs_own(options_of, monkeypatch):
    options = options_of("camelyon16", model=("mean-pool", "max-pool"), fold=("0",))
    original = study.cross_validate

    def failing(*args, **how):
        if how["model"] == "max-pool":
            raise TrainingError("It is not finite.")
        return original(*args, **how)

    monkeypatch.setattr(study, "cross_validate", failing)
    plan = plan_cohort(options)
    assert train_cohort(plan, options) == {"max-pool, fold 0": "It is not finite."}
    assert [row.name for row in StudyResults.read(plan).rows] == ["mean-pool"]
    monkeypatch.setattr(study, "cross_validate", original)
    assert train_cohort(plan, options) == {}


def test_other_settings_are_refused_and_overwriting_trains_anew(options_of):
    options = options_of("camelyon16", model=("mean-pool",), fold=("0",))
    plan = run(options)
    other = replace(options, epochs=2)
    (error,) = train_cohort(plan_cohort(other), other).values()
    assert "epochs" in error
    assert train_cohort(plan_cohort(other), replace(other, overwrite=True)) == {}
    assert Run.open(plan.runs[0].path(plan.out)).settings["training"]["epochs"] == 2


def test_two_studies_cannot_write_to_one_folder(options_of):
    options = options_of("camelyon16")
    plan = plan_cohort(options)
    with run_lock(plan.out), pytest.raises(RunFolderError, match="Another process"):
        train_cohort(plan, options)


def test_what_cannot_be_studied_is_refused_before_anything_is_trained(options_of, tmp_path):
    with pytest.raises(BagError, match=r"sgpmil extract SLIDES .*--encoder uni_v1 --mag 10"):
        plan_cohort(options_of("camelyon16", features=tmp_path / "nowhere"))
    with pytest.raises(SplitError, match="'12'"):
        plan_cohort(options_of("camelyon16", fold=("12",)))
    with pytest.raises(SettingsError, match="seed once"):
        plan_cohort(options_of("camelyon16", seed=(1, 1)))
    assert list(tmp_path.glob("study/runs/*")) == []
