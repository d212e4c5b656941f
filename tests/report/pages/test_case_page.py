import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from sgpmil.errors import SgpmilError
from sgpmil.evaluation import PredictionTable
from sgpmil.report.pages.case_page import (
    MARK_COLOURS,
    case_map_figure,
    case_page,
    case_paths,
    write_case,
)
from sgpmil.report.pages.case_report import CaseReports

from .reported_run import COORDS, NASTY, SIDE, ReadPage, material


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
        assert row[1] == line.text
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
    num_patches = sum(len(patches) for patches in case.patches.values())
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


def test_without_slides_patches_are_named(tmp_path):
    found = material(path=tmp_path, num_folds=1)
    case = CaseReports(found).of("f0 s00")
    page = ReadPage(write_case(tmp_path, case)[0].read_text(encoding="utf-8"))
    first = case.patches["evidence"][0]
    assert f"patch {first.patch}" in page.text
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
    [
        ("a b", "a b"),
        ("../../etc/x", "%2E.%2F..%2Fetc%2Fx"),
        ("..", "%2E%2E"),
        ('a<b>:"c"', "a%3Cb%3E%3A%22c%22"),
    ],
)
def test_files_stay_in_their_folder(tmp_path, slide_id, name):
    html, pdf = case_paths(tmp_path, slide_id)
    assert (html.name, pdf.name) == (f"{name}.html", f"{name}.pdf")
    assert html.parent == tmp_path


def test_long_names_make_files_or_a_sentence(tmp_path):
    html, _ = case_paths(tmp_path, "ä" * 100)
    html.write_text("x")
    with pytest.raises(SgpmilError, match="800 of at most 200 bytes"):
        case_paths(tmp_path, "ä" * 400)


def test_scores_are_in_the_units_of_the_maps(tmp_path):
    case = CaseReports(material(path=tmp_path, num_folds=1)).of("f0 s00")
    blocks = {block.role: block for block in case_page(case).sections[0].blocks[1:]}
    assert list(blocks) == ["for", "against", "unsure"]
    assert [tile.mark for tile in blocks["for"].tiles][:2] == ["F1", "F2"]
    number = len(COORDS)
    for role, kind, sign in (("for", "evidence", "+"), ("against", "against", "−")):
        text, patch = blocks[role].tiles[0].score, case.patches[kind][0]
        assert text.startswith(sign)
        mean, std = text.replace("−", "-").split(" ± ")
        assert float(mean) == pytest.approx(number * patch.evidence, rel=0.1)
        assert float(std) == pytest.approx(number * patch.evidence_std, rel=0.1, abs=0.006)
    assert "±" not in blocks["unsure"].tiles[0].score


def test_without_evidence_the_attention_is_shown(tmp_path):
    case = CaseReports(material(path=tmp_path, num_folds=1, evidence=False)).of("f0 s00")
    (first, *_) = case_page(case).sections[0].blocks[1:]
    share = case.patches["attention"][0].attention
    assert first.tiles[0].score.startswith(f"{len(COORDS) * share:.2f} ± ")


def test_a_group_without_patches_says_so(tmp_path):
    case = CaseReports(material(path=tmp_path, num_folds=1)).of("f0 s00")
    case = replace(case, patches={**case.patches, "against": ()})
    blocks = {block.role: block for block in case_page(case).sections[0].blocks[1:]}
    assert blocks["against"].missing == f"No patch speaks against “{case.predicted}”."
    html, _ = write_case(tmp_path, case)
    assert blocks["against"].missing in ReadPage(html.read_text(encoding="utf-8")).text


def test_a_patch_of_several_groups_has_one_frame_with_all_its_marks(run_material):
    case = CaseReports(run_material).of("f0 s00")
    patch = case.patches["evidence"][0]
    twice, once = (64, 128), (192, 0)
    patches = {
        "evidence": (replace(patch, corner=twice),),
        "unsure": (
            replace(patch, kind="unsure", corner=once),
            replace(patch, kind="unsure", corner=twice, rank=2),
        ),
    }
    slide = case_map_figure(replace(case, patches=patches)).axes[0]
    marks = {text.get_text(): text.get_position() for text in slide.texts}
    middle = SIDE / 2
    assert marks["F1 U2"] == (twice[0] + middle, twice[1] + middle)
    assert marks["U1"] == (once[0] + middle, once[1] + middle)
    assert not {"F1", "U2"} & set(marks)
    frames = [
        (patch.get_xy(), to_hex(patch.get_edgecolor()))
        for patch in slide.patches
        if isinstance(patch, Rectangle) and to_hex(patch.get_edgecolor()) != "#ffffff"
    ]
    assert sorted(frames) == [
        (twice, MARK_COLOURS["for"]),
        (once, MARK_COLOURS["unsure"].lower()),
    ]
