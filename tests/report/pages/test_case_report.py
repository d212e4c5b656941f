from dataclasses import replace

import numpy as np
import pytest

from sgpmil.errors import ExplanationError
from sgpmil.evaluation import PredictionTable
from sgpmil.evaluation.provenance import PredictionProvenance
from sgpmil.report.pages.case_page import write_case
from sgpmil.report.pages.case_report import CaseReports
from sgpmil.runs.material import SlideSources
from sgpmil.slides.reading import open_slide

from .reported_run import SIDE, material


def test_what_is_said_of_a_slide_is_what_was_predicted(run_material):
    reports = CaseReports(run_material, 0.9)
    assert set(reports.slide_ids) == run_material.slide_ids
    own = run_material.folds[1].test.predictions[3]
    case = reports.of(own.slide_id)
    assert case.slide_id == own.slide_id
    assert f"patient {own.case_id}" in case.origin
    assert [line.name for line in case.classes] == ["tumour", "normal"]
    assert [line.probability for line in case.classes] == pytest.approx(own.probs[::-1])
    assert [line.std for line in case.classes] == pytest.approx(own.std[::-1])
    assert [line.text for line in case.classes] == [
        own.probability_text(1),
        own.probability_text(0),
    ]
    assert "fold 1" in case.origin
    assert "model sgpmil" in case.origin
    assert case.label == "The data set labels this slide “tumour”: the prediction agrees."
    wrong = reports.of("f0 s02")
    assert "DISAGREES" in wrong.label
    assert any("test set of fold 1" in caveat for caveat in case.caveats)
    assert case.caveats[0].startswith("Research use only. This is not a medical device")


def test_patches_are_cut_where_they_lie(run_material):
    case = CaseReports(run_material).of("f0 s00")
    patches = [patch for group in case.patches.values() for patch in group]
    assert {patch.patch for patch in patches} == set(case.images)
    with open_slide(run_material.sources.files["f0 s00"]) as slide:
        whole = slide.read(0, 0, 256, 256)
    for patch in patches:
        x, y = patch.corner
        np.testing.assert_array_equal(case.images[patch.patch], whole[y : y + SIDE, x : x + SIDE])


def test_a_slide_of_several_folds_is_told_by_the_first(run_material):
    first, second = run_material.folds
    again = replace(first, name="2", validation=second.validation)
    case = CaseReports(replace(run_material, folds=(first, second, again))).of("f0 s00")
    p = first.test.predictions[0]
    assert case.other_folds == (
        "Models of other folds tested this slide too: fold 2 "
        f"{('normal', 'tumour')[p.predicted_class]} {p.probability_text(p.predicted_class)}."
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
    fold = replace(found.folds[0], test=PredictionTable(bare, found.target))
    case = CaseReports(replace(found, folds=(fold,), run=None)).of("f0 s00")
    assert case.label == ""
    assert case.patches == {}
    assert case.prediction_set.names is None
    assert "There are no scores of patches." in case.caveats
    assert not any("test set of fold" in caveat for caveat in case.caveats)
    assert "It is unknown whether the model was trained on this slide." in case.caveats
    assert "The encoder of the patches is unknown." in case.caveats
    assert "sgpmil predict --coverage 0.9" in case.prediction_set.sentence


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ("", "The model was not trained on this slide."),
        ("train", "The model was trained on this slide: its confidence is too high."),
        ("patient", "The model was trained on another slide of this patient."),
        ("validation", "The slide validated the training: the confidence may be too high."),
    ],
)
def test_predictions_that_know_their_training_slides_say_whether_this_is_one(tmp_path, seen, said):
    found = replace(material(path=tmp_path, num_folds=1), run=None)
    rows = tuple(replace(p, seen=seen) for p in found.folds[0].test.predictions)
    origin = PredictionProvenance(encoders=("uni_v1",), train=("digest",))
    test = replace(found.folds[0].test, predictions=rows, provenance=origin)
    found = replace(found, folds=(replace(found.folds[0], test=test),))
    caveats = CaseReports(found).of("f0 s00").caveats
    assert said in caveats
    assert not any("encoder of the patches is unknown" in caveat for caveat in caveats)


@pytest.mark.parametrize(("p_value", "is_said"), [(0.02, True), (0.5, False)])
def test_a_slide_unlike_the_training_slides_is_said(tmp_path, p_value, is_said):
    found = material(path=tmp_path, num_folds=1)
    rows = tuple(
        replace(p, novel_share=0.3, novelty_p=p_value) for p in found.folds[0].test.predictions
    )
    fold = replace(found.folds[0], test=PredictionTable(rows, found.target))
    caveats = CaseReports(replace(found, folds=(fold,))).of("f0 s00").caveats
    said = any("(p = 0.02): 30% of its patches" in caveat for caveat in caveats)
    assert said == is_said


@pytest.mark.parametrize(
    ("encoder", "said"),
    [("uni_v1", []), ("resnet50", ["(resnet50) was trained on everyday"])],
)
def test_an_encoder_that_is_known(tmp_path, encoder, said):
    reports = CaseReports(material(path=tmp_path, num_folds=1))
    reports.facts = replace(reports.facts, encoders=(encoder,))
    found = [c for c in reports.of("f0 s00").caveats if "encoder" in c]
    assert len(found) == len(said)
    assert all(part in caveat for part, caveat in zip(said, found, strict=True))


def test_a_spread_of_rounding_size_is_not_told(tmp_path):
    found = material(path=tmp_path, num_folds=1, posterior=False)
    rows = tuple(replace(p, std=np.full(2, 1e-12)) for p in found.folds[0].test.predictions)
    fold = replace(found.folds[0], test=PredictionTable(rows, found.target))
    case = CaseReports(replace(found, folds=(fold,))).of("f0 s00")
    assert not any("±" in line.text for line in case.classes)


@pytest.mark.parametrize("evidence", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_scores_that_are_not_finite_are_said_and_not_shown(tmp_path, value, evidence):
    found = material(path=tmp_path, num_folds=1, evidence=evidence)
    rows = list(found.folds[0].test.predictions)
    scores = rows[0].instances
    attention = scores.attention_mean.copy()
    attention[[2, 5]] = value
    changes = {"attention_mean": attention}
    if evidence:
        means = scores.evidence_mean.copy()
        means[[2, 7]] = value
        changes["evidence_mean"] = means
    rows[0] = replace(rows[0], instances=replace(scores, **changes))
    fold = replace(found.folds[0], test=PredictionTable(tuple(rows), found.target))
    reports = CaseReports(replace(found, folds=(fold,)))
    case = reports.of("f0 s00")
    number = 3 if evidence else 2
    assert any(c.startswith(f"{number} of 16 patches have no finite score") for c in case.caveats)
    kept = {patch.patch for patch in case.patches["evidence" if evidence else "attention"]}
    assert kept
    assert not kept & ({2, 7} if evidence else {2, 5})
    assert not any("finite" in caveat for caveat in reports.of("f0 s01").caveats)
    html, pdf = write_case(tmp_path, case)
    assert pdf.exists()
    assert "data:image" in html.read_text(encoding="utf-8")  # the map is drawn all the same
