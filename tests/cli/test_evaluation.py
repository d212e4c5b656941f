import csv

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget, OrdinalTarget
from sgpmil.cli import output
from sgpmil.evaluation import InstanceScores, Prediction
from sgpmil.evaluation.prediction_table import PredictionTable
from sgpmil.evaluation.uncertainty.temperature import fit_temperature
from sgpmil.runs.prediction_files import read_predictions, write_predictions, write_predictions_csv
from sgpmil.runs.prediction_folder import write_prediction_folder
from sgpmil.runs.run import Run


@pytest.mark.slow
def test_predictions_of_another_system(sgpmil, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 30)
    p = np.clip(0.3 * labels + rng.uniform(0, 0.7, 30), 0, 1)
    path = tmp_path / "other.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "label", "p_0", "p_1"])
        writer.writerows(
            [f"{i:04d}", y, f"{1 - q:.6f}", f"{q:.6f}"]
            for i, (y, q) in enumerate(zip(labels, p, strict=True))
        )
    code, out, _ = sgpmil("evaluate", path, "--out", tmp_path / "out")
    assert code == 0
    expected = roc_auc_score(labels, p.round(6))
    assert f"{expected:.3f}" in out
    (auc,) = pd.read_parquet(tmp_path / "out" / "metrics.parquet")["auc"]
    assert abs(auc - expected) < 1e-9


@pytest.mark.slow
def test_undefined_is_said(sgpmil, tmp_path):
    path = tmp_path / "one_class.csv"
    path.write_text("slide_id,label,p_0,p_1\na,1,0.2,0.8\nb,1,0.3,0.7\n")
    code, out, _ = sgpmil("evaluate", path, "--full")
    assert code == 0
    assert "AUC is undefined in 1 of 1" in out
    assert "not defined: it needs slides of every class" in out


def write_table(path, num=40, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num)
    p = np.clip(0.3 * labels + rng.uniform(0, 0.7, num), 0.01, 0.99)
    rows = enumerate(zip(labels, p, strict=True))
    lines = [f"{path.stem}{i},{y},{1 - q:.6f},{q:.6f}" for i, (y, q) in rows]
    path.write_text("\n".join(["slide_id,label,p_0,p_1", *lines]) + "\n")
    return path


def test_a_bias_of_each_class_on_request(sgpmil, tmp_path):
    test, val = write_table(tmp_path / "test.csv"), write_table(tmp_path / "val.csv", seed=1)
    given = ("evaluate", test, "--validation", val, "--bootstrap", "0", "--full")
    assert "bias of" not in sgpmil(*given)[1]
    code, said, _ = sgpmil(*given, "--temperature-bias")
    assert code == 0
    found = fit_temperature(read_predictions(val), bias=True)
    for name, bias in zip("01", found.bias, strict=True):
        assert f"bias of {name} {bias:.3f}" in " ".join(said.replace("│", " ").split())


def test_the_first_lines_are_few_and_short(sgpmil, tmp_path, monkeypatch):
    monkeypatch.setattr(output.console, "width", 80)
    test, val = write_table(tmp_path / "test.csv"), write_table(tmp_path / "val.csv", num=12)
    code, said, _ = sgpmil("evaluate", test, "--validation", val, "--bootstrap", "50")
    lines = said.splitlines()
    assert (code, len(lines) <= 14) == (0, True)
    assert max(map(len, lines)) <= 80
    for part in ("test.csv: 40 slides", "12 validation slides are too few, they need 30", "--full"):
        assert part in said
    for detail in ("Confusion", "kappa", "AURC"):
        assert detail not in said


def test_long_names_of_classes_and_folders_fit_the_terminal(sgpmil, tmp_path, monkeypatch):
    monkeypatch.setattr(output.console, "width", 80)
    names = tuple(f"adenocarcinoma of the colon, grade {grade}" for grade in range(6))
    rng = np.random.default_rng(0)
    run = Run.create(tmp_path / ("long" * 20) / "run", kfold(), {"model": "none"})
    for fold in kfold():
        rows = [
            Prediction.from_samples(slide, slide, i % 6, rng.dirichlet(np.ones(6), 2))
            for i, slide in enumerate(fold.test)
        ]
        run.folds[fold.name].write(PredictionTable(tuple(rows), OrdinalTarget(names)))
    code, said, _ = sgpmil("evaluate", run.path, "--bootstrap", "50")
    lines = said.splitlines()
    assert (code, len(lines) <= 14) == (0, True)
    assert max(map(len, lines)) <= 80
    assert "run: 80 slides; means over 5 folds" in lines[0]
    assert any(line.startswith("wrong ") and line.endswith("…") for line in lines)
    # The folder is left out of the provenance where it does not fit.
    assert any(line.startswith("predicted by       none; 5 folds; sgpmil") for line in lines)


def test_the_froc_of_digit_bags_is_not_printed(sgpmil, tmp_path):
    annotated(tmp_path)
    out = tmp_path / "out"
    given = ("evaluate", tmp_path / "predictions", "--full", "--bootstrap", "0", "--out", out)
    code, said, _ = sgpmil(*given)
    assert (code, "Instances" in said) == (0, True)
    assert "FROC" not in said
    assert "as published for" not in said
    assert (out / "instance_froc.csv").exists()


@pytest.mark.slow
def test_all_that_is_measured_is_printed_and_written(sgpmil, tmp_path):
    test, val = write_table(tmp_path / "test.csv"), write_table(tmp_path / "val.csv", seed=1)
    out = tmp_path / "out"
    code, said, _ = sgpmil("evaluate", test, "--validation", val, "--out", out, "--full")
    assert code == 0
    for heading in ("95% intervals", "Confusion", "Brier score", "AUROC", "temperature"):
        assert heading in said
    figures = {path.name for path in (out / "figures").iterdir()}
    assert figures >= {"roc.png", "reliability.png", "risk-coverage.png", "temperature.png"}
    code, _, err = sgpmil("evaluate", test, "--out", out)
    assert code == 2
    assert "holds an evaluation already" in err
    assert sgpmil("evaluate", test, "--out", out, "--overwrite", "--bootstrap", "0")[0] == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a,1,0.5,0.9", "probabilities that sum to 1"),
        ("a,1,0.1,0.9\na,0,0.8,0.2", "'a' twice"),
        ("a,1,nan,0.9", "a number for every probability"),
        ("a,1,-3.2,4.2", "probabilities between 0 and 1"),
        ("a,,0.1,0.9", "slide with a label"),
    ],
)
@pytest.mark.slow
def test_tables_that_cannot_be_judged_get_a_sentence(sgpmil, tmp_path, rows, said):
    path = tmp_path / "bad.csv"
    path.write_text(f"slide_id,label,p_0,p_1\n{rows}\n")
    code, _, err = sgpmil("evaluate", path)
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.slow
def test_regions_need_annotations_and_a_run_no_validation(sgpmil, tmp_path):
    path = write_table(tmp_path / "test.csv")
    code, _, err = sgpmil("evaluate", path, "--regions", "Tumor")
    assert (code, "Add a folder" in err) == (2, True)
    code, _, err = sgpmil("evaluate", path, "--pixels")
    assert (code, "Add a folder" in err) == (2, True)
    code, _, err = sgpmil("evaluate", path, "--annotations", tmp_path / "none")
    assert (code, "folder of annotations" in err) == (2, True)
    code, _, err = sgpmil("evaluate", tmp_path / "nothing")
    assert (code, "there is nothing" in err) == (2, True)


def annotated(tmp_path):
    """A positive slide of sixteen patches, half of them in a tumour with a hole, and a negative."""
    rng = np.random.default_rng(0)
    coords = np.array([[x, y] for x in range(0, 400, 100) for y in range(0, 400, 100)])
    predictions = [
        Prediction.from_samples(
            name,
            name,
            label,
            np.array([[0.8 - 0.6 * label, 0.2 + 0.6 * label]]),
            InstanceScores(
                rng.random(16),
                np.zeros(16),
                coords=coords,
                patch_size=100,
                # Not those of the annotations, which are to be believed.
                instance_labels=np.arange(16) % 2,
            ),
        )
        for name, label in (("pos", 1), ("neg", 0))
    ]
    write_prediction_folder(
        tmp_path / "predictions", predictions, ClassTarget(("normal", "tumour"))
    )
    folder = tmp_path / "xml"
    folder.mkdir()

    def region(group, left, top, right, bottom):
        corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
        points = "".join(
            f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>' for i, (x, y) in enumerate(corners)
        )
        return (
            f'<Annotation Name="a" Type="Polygon" PartOfGroup="{group}">'
            f"<Coordinates>{points}</Coordinates></Annotation>"
        )

    drawn = region("Tumor", 0, 0, 200, 400) + region("Exclusion", 0, 0, 100, 100)
    (folder / "pos.xml").write_text(
        f"<ASAP_Annotations><Annotations>{drawn}</Annotations></ASAP_Annotations>"
    )
    truth = (coords[:, 0] < 200) & ~((coords[:, 0] == 0) & (coords[:, 1] == 0))
    return predictions[0].instances.attention_mean, truth


@pytest.mark.parametrize("regions", [(), ("--regions", "Tumor"), ("--regions", "camelyon")])
@pytest.mark.slow
def test_annotations_label_the_patches_with_their_holes(sgpmil, tmp_path, regions):
    pytest.importorskip("shapely")
    scores, truth = annotated(tmp_path)
    where = ("--annotations", tmp_path / "xml", *regions)
    given = (*where, "--out", tmp_path / "out", "--full")
    code, said, _ = sgpmil("evaluate", tmp_path / "predictions", *given)
    assert code == 0
    (auc,) = pd.read_parquet(tmp_path / "out" / "metrics.parquet")["attention_auc"]
    expected = roc_auc_score(truth, scores)
    assert auc == pytest.approx(expected)
    assert said.count(f"{expected:.3f}") >= 2  # the same above and in the table of instances


@pytest.mark.slow
def test_regions_that_no_annotation_has_are_refused(sgpmil, tmp_path):
    pytest.importorskip("shapely")
    annotated(tmp_path)
    where = ("--annotations", tmp_path / "xml", "--regions", "Tumour")
    code, _, err = sgpmil("evaluate", tmp_path / "predictions", *where)
    assert code == 2
    assert "--regions" in err


NUM_FOLDS, FOLD_SIZE = 5, 16
SLIDES = [f"s{i}" for i in range(NUM_FOLDS * FOLD_SIZE)]


def kfold():
    folds = []
    for k in range(NUM_FOLDS):
        test = tuple(SLIDES[k * FOLD_SIZE : (k + 1) * FOLD_SIZE])
        rest = [slide for slide in SLIDES if slide not in test]
        folds.append(Fold(str(k), tuple(rest[4:]), tuple(rest[:4]), test))
    return tuple(folds)


def table_of(slides, skill, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for slide in slides:
        label = int(slide[1:]) % 2
        p = 1 / (1 + np.exp(-rng.normal() - skill * (2 * label - 1)))
        rows.append(Prediction.from_samples(slide, slide, label, np.array([[1 - p, p]])))
    return PredictionTable(tuple(rows), ClassTarget(("normal", "tumor")))


def make_run(path, skill, seed, folds=None):
    folds = kfold() if folds is None else folds
    run = Run.create(path, folds, {"model": "none"})
    for k, fold in enumerate(folds):
        run.folds[fold.name].write(table_of(fold.test, skill, [seed, k]))
    return path


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return [
        make_run(tmp_path / "runs" / name, skill, seed)
        for seed, (name, skill) in enumerate([("ours", 2.5), ("abmil", 1.0), ("clam", 0.2)])
    ]


def rows_of(path):
    with path.open(newline="", encoding="utf-8") as file:
        return {(row["run"], row["metric"]): row for row in csv.DictReader(file)}


def aucs(path):
    from sklearn.metrics import roc_auc_score

    tables = [Run.open(path).folds[str(k)].load().test for k in range(NUM_FOLDS)]
    return np.array([roc_auc_score(t.labels, t.probs[:, 1]) for t in tables])


def test_runs_are_compared_printed_and_written(sgpmil, runs, tmp_path):
    code, out, err = sgpmil("compare", *runs)
    assert (code, err) == (0, "")
    ours, clam = aucs(runs[0]), aucs(runs[2])
    t = stats.ttest_rel(ours, clam, alternative="greater")
    corrected = stats.t.sf(t.statistic / np.sqrt(1 + NUM_FOLDS * FOLD_SIZE / 60), NUM_FOLDS - 1)
    row = rows_of(tmp_path / "comparison" / "tables" / "comparison.csv")["clam", "auc"]
    assert float(row["p_paired"]) == pytest.approx(t.pvalue)
    assert float(row["p_corrected"]) == pytest.approx(corrected)
    assert f"{ours.mean():.3f} ± {ours.std(ddof=1):.3f}" in out
    assert f"{corrected:.2g} (" in out
    assert "★: ours is better than this run, at p < 0.05" in out
    assert "Training sets of two folds share" in out
    for name in ("tables/comparison.md", "tables/comparison.tex", "figures/comparison.png"):
        assert (tmp_path / "comparison" / name).stat().st_size > 500
        assert f"comparison/{name}" in out


def test_a_reference_that_is_worse_is_printed_and_written(sgpmil, runs, tmp_path):
    code, out, _ = sgpmil("compare", runs[2], runs[0])
    assert code == 0
    assert "☆: this run is better than clam" in out
    assert "ours is better than clam in" in out
    written = (tmp_path / "comparison" / "tables" / "comparison.md").read_text()
    assert "ours is better than clam in" in written
    row = rows_of(tmp_path / "comparison" / "tables" / "comparison.csv")["ours", "auc"]
    assert (row["marked"], row["reference_worse"]) == ("false", "true")
    assert float(row["p_run_better_holm"]) == pytest.approx(1 - float(row["p_corrected"]))


def test_names_metrics_level_and_folder_are_chosen(sgpmil, runs, tmp_path):
    out_folder = tmp_path / "deep" / "out"
    code, out, _ = sgpmil(
        *("compare", f"Ours={runs[0]}", f"base={runs[2]}", "--out", out_folder),
        *("--metric", "ece", "--metric", "auc", "--alpha", "0.2"),
    )
    assert code == 0
    assert "p < 0.2" in out
    rows = rows_of(out_folder / "tables" / "comparison.csv")
    assert list(rows) == [(r, m) for r in ("Ours", "base") for m in ("ece", "auc")]


def test_an_earlier_comparison_is_kept_unless_overwritten(sgpmil, runs, tmp_path):
    assert sgpmil("compare", *runs[:2])[0] == 0
    before = (tmp_path / "comparison" / "tables" / "comparison.csv").read_bytes()
    code, _, err = sgpmil("compare", *runs)
    assert code == 2
    assert "--overwrite" in err
    assert (tmp_path / "comparison" / "tables" / "comparison.csv").read_bytes() == before
    # One fold has no figure, and that of five folds must not stay beside its tables.
    files = []
    for seed in range(2):
        files.append(tmp_path / f"p{seed}.parquet")
        write_predictions(files[-1], table_of(SLIDES[:20], 1.0, seed))
    code, _, _ = sgpmil("compare", *files, "--overwrite")
    assert code == 0
    assert (tmp_path / "comparison" / "tables" / "delong.csv").exists()
    assert not (tmp_path / "comparison" / "figures" / "comparison.png").exists()
    assert sgpmil("compare", *runs, "--overwrite")[0] == 0
    assert not (tmp_path / "comparison" / "tables" / "delong.csv").exists()


def test_unfinished_runs_are_compared_where_all_are_done(sgpmil, runs):
    (runs[1] / "fold-3" / "predictions.parquet").unlink()
    code, out, _ = sgpmil("compare", *runs)
    assert code == 0
    assert "abmil: 1 of 5 folds are not done." in out
    assert "Only the 4 folds that every run has finished are compared; left out: '3'." in out
    assert "cannot be below 0.0625" in out


def test_prediction_files_of_one_test_set(sgpmil, tmp_path):
    write_predictions(tmp_path / "ours.parquet", table_of(SLIDES[:40], 2.0, 0))
    write_predictions_csv(tmp_path / "theirs.csv", table_of(SLIDES[:40][::-1], 0.3, 1))
    out_folder = tmp_path / "out"
    code, out, _ = sgpmil(
        "compare", tmp_path / "ours.parquet", tmp_path / "theirs.csv", "--out", out_folder
    )
    assert code == 0
    assert "a test across folds needs at least two" in out
    assert "DeLong" in out
    assert "could not be checked" in out
    assert (out_folder / "tables" / "delong.csv").exists()
    assert "±" not in out


def test_files_that_every_fold_has_are_named_by_their_folder(sgpmil, runs, tmp_path):
    files = [run / "fold-0" / "predictions.parquet" for run in runs[:2]]
    code, _, err = sgpmil("compare", *files)
    assert code == 2
    assert "'fold-0' twice" in err
    assert f"fold-0-1={files[0]}" in err
    assert sgpmil("compare", f"a={files[0]}", files[1])[0] == 0
    rows = rows_of(tmp_path / "comparison" / "tables" / "comparison.csv")
    assert {run for run, _ in rows} == {"a", "fold-0"}


def test_a_path_may_have_an_equals_sign(sgpmil, runs, tmp_path):
    odd = tmp_path / "lr=0.1"
    runs[1].rename(odd)
    assert sgpmil("compare", runs[0], odd)[0] == 0
    rows = rows_of(tmp_path / "comparison" / "tables" / "comparison.csv")
    assert {run for run, _ in rows} == {"ours", "lr=0.1"}


def test_differing_test_sets_are_refused_in_a_sentence(sgpmil, runs, tmp_path):
    folds = list(kfold())
    turned = [Fold(str(k), f.train, f.val, f.test) for k, f in enumerate(folds[::-1])]
    other = make_run(tmp_path / "turned", 1.0, 9, turned)
    code, _, err = sgpmil("compare", runs[0], other)
    assert code == 2
    assert "in fold 0 's0' is in 'ours' and not in 'turned' (in all 32 slides)" in err
    assert "Traceback" not in err
    assert not (tmp_path / "comparison").exists()


def test_a_leak_is_refused_in_a_sentence(sgpmil, runs):
    """All models judged on the test slides of the first fold, as in the published protocol."""
    run = Run.open(runs[1])
    run.folds["2"].write(run.folds["0"].load().test)
    code, _, err = sgpmil("compare", *runs)
    assert code == 2
    assert "fold 2" in err
    assert "of the 16 slides predicted 12 are in its training list and 4 are in its valid" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ours",), "at least two runs to compare, but got 1"),
        (("ours", "ours"), "'ours' twice"),
        (("ours", "nowhere"), "nothing"),
        (("ours", "abmil", "--metric", "f2"), "but got 'f2'"),
        (("ours", "abmil", "--alpha", "5"), "alpha between 0 and 1"),
    ],
)
def test_errors_are_one_sentence(sgpmil, runs, monkeypatch, arguments, message):
    monkeypatch.chdir(runs[0].parent)
    code, _, err = sgpmil("compare", *arguments)
    assert code == 2
    assert message in err
    assert "Traceback" not in err
