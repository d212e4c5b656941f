from dataclasses import replace

import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation import PredictionTable
from sgpmil.report.material import SlideSources
from sgpmil.report.pages.case_report import CaseReports
from sgpmil.slides.reading import open_slide

from .reported_run import SIDE, material


def test_what_is_said_of_a_slide_is_what_was_predicted(run_material):
    reports = CaseReports(run_material, 0.9)
    assert set(reports.slide_ids) == run_material.slide_ids
    own = run_material.folds[1].test.predictions[3]
    case = reports.of(own.slide_id)
    assert (case.slide_id, case.case_id) == (own.slide_id, own.case_id)
    assert [line.name for line in case.classes] == ["tumour", "normal"]
    assert [line.probability for line in case.classes] == pytest.approx(own.probs[::-1])
    assert [line.std for line in case.classes] == pytest.approx(own.std[::-1])
    assert "fold 1" in case.origin
    assert "model sgpmil" in case.origin
    assert case.label == "The data set labels this slide “tumour”: the prediction agrees."
    wrong = reports.of("f0 s02")
    assert "DISAGREES" in wrong.label
    assert any("test set of fold 1" in caveat for caveat in case.caveats)
    assert case.caveats[0].startswith("Research use only. Not a medical device")


def test_patches_are_cut_where_they_lie(run_material):
    case = CaseReports(run_material).of("f0 s00")
    patches = [patch for group in case.patches for patch in group.patches]
    assert {patch.index for patch in patches} == set(case.images)
    with open_slide(run_material.sources.files["f0 s00"]) as slide:
        whole = slide.read(0, 0, 256, 256)
    for patch in patches:
        x, y = patch.corner
        np.testing.assert_array_equal(case.images[patch.index], whole[y : y + SIDE, x : x + SIDE])


def test_a_slide_of_several_folds_is_told_by_the_first(run_material):
    first, second = run_material.folds
    again = replace(first, name="2", validation=second.validation)
    case = CaseReports(replace(run_material, folds=(first, second, again))).of("f0 s00")
    p = first.test.predictions[0]
    assert case.other_folds == (
        "Models of other folds tested it as well: fold 2 "
        f"{('normal', 'tumour')[p.predicted_class]} {p.told(p.predicted_class)}."
    )
    assert "fold 0" in case.origin


def test_an_unknown_slide_is_refused(run_material):
    with pytest.raises(ExplanationError, match=r"but got 'nowhere'\. Its slides are 'f0 s00'"):
        CaseReports(run_material).of("nowhere")


def test_a_broken_slide_is_said(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    broken = tmp_path / "x.png"
    broken.write_bytes(b"no picture")
    found = replace(found, sources=SlideSources({"f0 s00": broken}))
    case = CaseReports(found).of("f0 s00")
    assert case.images == {}
    assert case.picture.pixels is None
    assert case.problems[0].startswith("The slide is not shown: ")
    assert case.patches  # their places are known


def test_predictions_alone_are_enough(tmp_path):
    found = material(path=tmp_path, num_folds=1, num_validation=0)
    bare = tuple(replace(p, label=None, instances=None) for p in found.folds[0].test.predictions)
    fold = replace(found.folds[0], test=PredictionTable(bare, found.class_names))
    case = CaseReports(replace(found, folds=(fold,), description={}, model="")).of("f0 s00")
    assert case.label == ""
    assert case.patches == ()
    assert case.prediction_set.names is None
    assert "There are no scores of patches." in case.caveats
    assert not any("test set of fold" in caveat for caveat in case.caveats)
