import re
from dataclasses import replace

import numpy as np
import pytest

from sgpmil.evaluation import PredictionTable
from sgpmil.report.pages.case_page import case_paths, write_case
from sgpmil.report.pages.case_pdf import case_figure
from sgpmil.report.pages.case_report import CaseReports

from .reported_run import NASTY, ReadPage, material


def test_the_page_says_what_the_report_says(tmp_path, run_material):
    case = CaseReports(run_material).of("f0 s02")
    html, _ = write_case(tmp_path, case)
    text = html.read_text(encoding="utf-8")
    page = ReadPage(text)
    assert page.problems == []
    assert page.headings[0] == ("h1", "f0 s02")
    (rows,) = page.tables.values()
    for row, line in zip(rows[1:], case.classes, strict=True):
        assert row[0] == line.name
        assert row[1] == line.told
        assert row[3] == ("yes" if line.is_in_set else "no")
    for words in (
        case.confidence.headline,
        *case.confidence.reasons,
        case.confidence.doubt,
        case.prediction_set.sentence,
        case.label,
        *case.caveats,
    ):
        assert words in page.text
    # The maps, and every patch as often as it is shown.
    num_patches = sum(len(group.patches) for group in case.patches)
    assert len(page.images) == 1 + num_patches
    assert all(image["src"].startswith("data:image/webp") for image in page.images)
    assert "<script" not in text
    assert html.stat().st_size < 600_000


def test_nothing_is_rounded_to_certainty(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    first, *rest = found.folds[0].test.predictions
    sure = replace(first, probs=np.array([0.9995, 0.0005]), std=np.full(2, 0.0004))
    fold = replace(found.folds[0], test=PredictionTable((sure, *rest), found.target))
    case = CaseReports(replace(found, folds=(fold,))).of("f0 s00")
    page = ReadPage(write_case(tmp_path, case)[0].read_text(encoding="utf-8"))
    (rows,) = page.tables.values()
    assert [row[1] for row in rows[1:]] == [">0.99 ± <0.01", "<0.01 ± <0.01"]
    words = [text.get_text() for text in case_figure(case).texts]
    assert ">0.99 ± <0.01" in words
    assert "<0.01 ± <0.01" in words


def test_without_slides_patches_are_named(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    case = CaseReports(found).of("f0 s00")
    page = ReadPage(write_case(tmp_path, case)[0].read_text(encoding="utf-8"))
    first = case.patches[0].patches[0]
    assert f"patch {first.index}" in page.text
    assert f"x {first.corner[0]}" in page.text
    assert len(page.images) == 1


def test_names_are_escaped(tmp_path):
    names = [[NASTY, *(f"s{i}" for i in range(11))]]
    found = material(num_folds=1, names=names, path=tmp_path)
    html, pdf = write_case(tmp_path, CaseReports(found).of(NASTY))
    text = html.read_text(encoding="utf-8")
    assert ReadPage(text).headings[0] == ("h1", NASTY)
    assert not re.search(r"<img src=x", text)
    assert pdf.exists()


@pytest.mark.parametrize(
    ("slide_id", "name"),
    [("a b", "a b"), ("../../etc/x", "_.._etc_x"), ("..", "slide"), ('a<b>:"c"', "a_b___c_")],
)
def test_files_stay_in_their_folder(tmp_path, slide_id, name):
    html, pdf = case_paths(tmp_path, slide_id)
    assert (html.name, pdf.name) == (f"{name}.html", f"{name}.pdf")
    assert html.parent == tmp_path


def test_long_names_make_files(tmp_path):
    html, _ = case_paths(tmp_path, "ä" * 400)
    html.write_text("x")
    assert len(html.name.encode()) <= 255
