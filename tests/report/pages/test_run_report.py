import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, confusion_matrix, roc_auc_score

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import RunFolderError
from sgpmil.evaluation import PredictionTable
from sgpmil.report.pages import rendering
from sgpmil.report.pages.run_report import ReportOptions, run_report, write_run_report
from sgpmil.runs.material import SlideSources

from .reported_run import NASTY, ReadPage, material

pytestmark = pytest.mark.slow

QUICK = {"bootstrap": 0}


def report_of(found, **options):
    chosen = ReportOptions(run=found.path, **options)
    return run_report(chosen, found, num_slides=1 if options == QUICK else 3)


def page_of(tmp_path, found, options=QUICK):
    path = tmp_path / "report.html"
    write_run_report(path, report_of(found, **options))
    return ReadPage(path.read_text(encoding="utf-8"))


def test_numbers_are_those_of_scikit_learn(run_page, run_material):
    page = ReadPage(run_page.read_text(encoding="utf-8"))
    folds = page.tables["Each fold's model on its own test slides, which it was not trained on."]
    areas, precisions, pooled = [], [], np.zeros((2, 2), int)
    for fold in run_material.folds:
        labels, probs = fold.test.labels, fold.test.probs
        areas.append(roc_auc_score(labels, probs[:, 1]))
        precisions.append(average_precision_score(labels, probs[:, 1]))
        pooled += confusion_matrix(labels, probs.argmax(axis=1), labels=[0, 1])
    column = folds[0].index("AUC")
    told = [row[column].split("\n")[0] for row in folds[1:3]]
    assert told == [f"{area:.3f}" for area in areas]
    assert folds[3][column] == f"{np.mean(areas):.3f} ± {np.std(areas, ddof=1):.3f}"
    column = folds[0].index("Average precision")
    assert [row[column].split("\n")[0] for row in folds[1:3]] == [f"{p:.3f}" for p in precisions]
    classes = page.tables[
        "Of each class: how many of its slides were found, and how many so called are of it."
    ]
    for c in (0, 1):
        assert classes[1 + c][1:] == [
            f"{pooled[c].sum()}",
            f"{pooled[c, c]}",
            f"{pooled[c, c] / pooled[c].sum():.3f}",
            f"{pooled[c, c] / pooled[:, c].sum():.3f}",
        ]
    right = int(np.trace(pooled))
    assert f"{24 - right} of 24 predictions are wrong. That is too few" in page.text
    assert f"{right} of 24" in page.text
    assert f"The AUC is {np.mean(areas):.3f}" in page.text


def test_intervals_stand_beside_the_numbers(run_page):
    page = ReadPage(run_page.read_text(encoding="utf-8"))
    folds = page.tables["Each fold's model on its own test slides, which it was not trained on."]
    for row in folds[1:3]:
        value, low, high = map(float, re.findall(r"\d\.\d{3}", row[folds[0].index("AUC")]))
        assert low <= value <= high
    assert "95% bootstrap intervals over patients (50 rounds)" in page.text


def test_the_page_has_every_part_and_nests_well(run_page):
    page = ReadPage(run_page.read_text(encoding="utf-8"))
    assert page.problems == []
    assert len(set(page.ids)) == len(page.ids)
    assert [text for tag, text in page.headings if tag == "h2"] == [
        "Checks",
        "Data",
        "Results of the folds",
        "Ranking and errors",
        "Calibration",
        "Uncertainty",
        "Localisation",
        "Prototypes",
        "Slides and what the model saw",
        "All slides",
        "Settings",
        "Environment",
        "How to reproduce",
    ]
    assert len([tag for tag, _ in page.headings if tag == "h1"]) == 1
    text = run_page.read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert '<html lang="en">' in text


def test_the_page_carries_all_it_needs(run_page):
    text = run_page.read_text(encoding="utf-8")
    page = ReadPage(text)
    # ROC, PR, confusion, reliability, boxes, risk, temperature, sets, sheet, map, slides.
    assert len(page.images) >= 13
    for image in page.images:
        assert image["src"].startswith("data:image/")
        assert len(image["alt"]) > 10
        assert int(image["width"]) > 0
    assert not re.search(r"""(src|href)=["'](?!data:|\#|cases/)""", text)
    assert "@import" not in text
    assert "url(" not in text
    assert run_page.stat().st_size < 6_000_000  # the slides are noise


def test_prototypes_and_maps_are_of_the_run(run_page, run_material):
    page = ReadPage(run_page.read_text(encoding="utf-8"))
    assert re.search(r"[1-5] of 5 have patches", page.text)
    assert "These are the prototypes of fold 0 on its 12 test slides" in page.text
    shown = [text for tag, text in page.headings if tag == "h4"]
    surest = max(
        (p for fold in run_material.folds for p in fold.test.predictions),
        key=lambda p: p.entropy,
    )
    assert surest.slide_id in shown
    wrong = [p for f in run_material.folds for p in f.test.predictions]
    wrong = [p for p in wrong if p.predicted_class != p.label]
    assert max(wrong, key=lambda p: p.probs.max()).slide_id in shown


def test_every_slide_is_listed_the_least_certain_first(run_page, run_material):
    page = ReadPage(run_page.read_text(encoding="utf-8"))
    (rows,) = (t for caption, t in page.tables.items() if (caption or "").startswith("All test"))
    known = {p.slide_id: p for f in run_material.folds for p in f.test.predictions}
    assert sorted(row[0] for row in rows[1:]) == sorted(known)
    entropies = [float(row[8]) for row in rows[1:]]
    assert entropies == sorted(entropies, reverse=True)
    for row in rows[1:]:
        p = known[row[0]]
        right = "right" if int(p.probs.argmax()) == p.label else "WRONG"
        assert row[2:5] == [
            ("normal", "tumour")[p.label],
            ("normal", "tumour")[int(p.probs.argmax())],
            right,
        ]
        assert row[6] == f"{p.probs.max():.3f}"


def test_names_are_escaped_and_no_formulas(tmp_path):
    names = [["a", "b", NASTY, *(f"s{i}" for i in range(9))]]  # the third is predicted wrong
    found = material(num_folds=1, names=names, path=tmp_path / NASTY)
    text_path = tmp_path / "out" / "report.html"
    write_run_report(text_path, report_of(found, **QUICK))
    text = text_path.read_text(encoding="utf-8")
    page = ReadPage(text)
    assert page.problems == []
    assert "<img src=x" not in text
    assert "onerror=alert(1)>" not in text
    assert ("h4", NASTY) in page.headings
    assert ("h1", NASTY) in page.headings
    assert all(image["src"].startswith("data:") for image in page.images)


def test_classes_are_escaped(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    names = ("</script><b>", "$\\frac$ & 'x'")
    folds = tuple(
        replace(
            fold,
            test=replace(fold.test, target=ClassTarget(names)),
            validation=replace(fold.validation, target=ClassTarget(names)),
        )
        for fold in found.folds
    )
    page = page_of(tmp_path, replace(found, folds=folds))
    assert page.problems == []
    assert f"12 patients (6 {names[0]}, 6 {names[1]})" in page.text


def test_a_deterministic_model_without_validation(tmp_path):
    found = material(path=tmp_path, num_folds=1, num_validation=0, posterior=False, evidence=False)
    page = page_of(tmp_path, found)
    assert "the model is deterministic" in page.text
    assert "There are no validation slides." in page.text
    assert "of these predictions no single model is known" in page.text
    (rows,) = (t for caption, t in page.tables.items() if (caption or "").startswith("All test"))
    assert {row[5] for row in rows[1:]} == {"–"}
    assert {row[7] for row in rows[1:]} == {"–"}


def test_slides_without_labels_are_shown_without_metrics(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    unknown = tuple(replace(p, label=None) for p in found.folds[0].test.predictions)
    fold = replace(found.folds[0], test=PredictionTable(unknown, found.target))
    page = page_of(tmp_path, replace(found, folds=(fold,)))
    assert "None has a label, so nothing could be measured" in page.text
    assert "No slide has a label, so there are no metrics" in page.text
    assert "Surest" in [text for _, text in page.headings]
    assert "Ranking and errors" not in [text for _, text in page.headings]


def test_a_fold_without_labels_does_not_stop_the_others(tmp_path):
    found = material(path=tmp_path)
    unknown = tuple(replace(p, label=None) for p in found.folds[0].test.predictions)
    first = replace(found.folds[0], test=PredictionTable(unknown, found.target))
    page = page_of(tmp_path, replace(found, folds=(first, found.folds[1])))
    labels, probs = found.folds[1].test.labels, found.folds[1].test.probs
    assert f"AUC is {roc_auc_score(labels, probs[:, 1]):.3f}" in page.text
    assert "12 slides without a label left out" in page.text


def test_a_broken_slide_is_said_and_the_rest_goes_on(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n no picture")
    files = dict.fromkeys(found.folds[0].test.slide_ids, broken)
    page = page_of(tmp_path, replace(found, sources=SlideSources(files)))
    assert "The slide is not shown: " in page.text
    maps = [image for image in page.images if image["alt"].startswith("Maps of ")]
    assert len(maps) >= 2  # on a canvas instead


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_do_not_stop_the_rest(tmp_path, value):
    found = material(path=tmp_path, num_folds=1)
    rows = []
    for p in found.folds[0].test.predictions:
        attention = p.instances.attention_mean.copy()
        attention[3] = value
        rows.append(replace(p, instances=replace(p.instances, attention_mean=attention)))
    fold = replace(found.folds[0], test=PredictionTable(tuple(rows), found.target))
    page = page_of(tmp_path, replace(found, folds=(fold,)))
    assert "12 slides with patches whose scores are not finite" in page.text
    assert [image for image in page.images if image["alt"].startswith("Maps of ")]


def test_nothing_is_replaced_unasked_or_by_halves(tmp_path, monkeypatch):
    found = report_of(material(path=tmp_path, num_folds=1), **QUICK)
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(RunFolderError, match=r"exists already\. Replace it with `overwrite=True`"):
        write_run_report(path, found)
    assert path.read_text() == "before"
    with pytest.raises(RunFolderError, match="is a folder"):
        write_run_report(tmp_path, found, overwrite=True)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("sgpmil.bags.files.os.replace", fail)
    with pytest.raises(RunFolderError, match="disk full"):
        write_run_report(path, found, overwrite=True)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"
    write_run_report(path, found, overwrite=True)
    assert "<!DOCTYPE html>" in path.read_text(encoding="utf-8")


def test_a_template_that_lacks_something_is_an_error():
    with pytest.raises(Exception, match="'report' is undefined"):
        rendering.render_page("run_report.html.j2", {})


def test_a_hundred_slides_take_less_than_20_mb(tmp_path):
    found = material(path=tmp_path, num_folds=5, num_slides=20)
    path = tmp_path / "report.html"
    write_run_report(path, report_of(found, bootstrap=100))
    page = ReadPage(path.read_text(encoding="utf-8"))
    (rows,) = (t for caption, t in page.tables.items() if (caption or "").startswith("All test"))
    assert len(rows) == 101
    assert path.stat().st_size < 20e6


def test_the_command_of_the_page_has_what_was_asked_for(tmp_path):
    options = ReportOptions(run=tmp_path, coverage=0.8, temperature_bias=True)
    assert options.command.split()[3:] == ["--coverage", "0.8", "--temperature-bias", "--overwrite"]
    assert ReportOptions(run=tmp_path).command.split()[3:] == ["--overwrite"]
