import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from sgpmil.bags.target import ClassTarget
from sgpmil.errors import RunFolderError
from sgpmil.evaluation import Prediction, PredictionTable
from sgpmil.evaluation.assessment import TestedFold
from sgpmil.report.pages.case_page import case_page, write_case
from sgpmil.report.pages.case_report import CaseReports
from sgpmil.report.pages.pdf import write_pdf
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.run import Run

from .reported_run import NASTY, ReadPage, material, prediction, table

pytestmark = pytest.mark.slow


def many_classes(tmp_path):
    """Nine classes with long names, and slides of long names."""
    rng = np.random.default_rng(0)
    classes = tuple(f"adenocarcinoma of some very long type number {c}" for c in range(9))
    name = "TCGA-AA-1234-01Z-00-DX1.0123456789abcdef" * 4
    rows = [
        Prediction.from_samples(name, "patient " * 20, 3, rng.dirichlet(np.ones(9), size=20)),
        *(
            Prediction.from_samples(f"s{i}", f"s{i}", i % 9, rng.dirichlet(np.ones(9), size=20))
            for i in range(4)
        ),
    ]
    fold = TestedFold("0", PredictionTable(tuple(rows), ClassTarget(classes)))
    again = [replace(fold, name=f"long fold name {k}") for k in range(6)]
    path = tmp_path / ("a very long name of a run " * 8)
    description = {"folds": [], "settings": {"model": "sgpmil"}, "created": "2026-01-01"}
    return RunMaterial(path, (fold, *again), Run(path, description)), name


def kinds(tmp_path, run_material):
    yield CaseReports(run_material).of("f0 s02")  # wrong, with pictures
    yield CaseReports(material(path=tmp_path)).of("f1 s03")  # without pictures
    plain = material(path=tmp_path, posterior=False, evidence=False, num_validation=0)
    yield CaseReports(plain).of("f0 s00")
    found, name = many_classes(tmp_path)
    yield CaseReports(found).of(name)
    tall = [prediction(NASTY, 1, 0.5, np.random.default_rng(0))]
    scores = tall[0].instances
    stretched = replace(scores, coords=scores.coords * np.array([[1, 12]]))
    tall = [replace(tall[0], instances=stretched)]
    fold = TestedFold(
        "0",
        PredictionTable(tuple(tall), ClassTarget(("normal", "tumour"))),
        table([f"v{i}" for i in range(20)], 5),
    )
    yield CaseReports(RunMaterial(tmp_path, (fold,))).of(NASTY)


class Placed:
    """The lines and pictures of a sheet with the boxes they take, read back from the file."""

    def __init__(self, sheet):
        self.width, self.height = (float(side) for side in sheet.mediabox[2:])
        self.boxes = []
        sheet.extract_text(visitor_text=self.add_text, visitor_operand_before=self.add_picture)

    def add_text(self, text, cm, tm, font, size):
        if not text.strip():
            return
        x, y = tm[4], tm[5]
        name = "bold" if "Bold" in str(font["/BaseFont"]) else "normal"
        face = FontProperties(family="DejaVu Sans", weight=name, size=size)
        width, _, _ = text_to_path.get_text_width_height_descent(text.rstrip(), face, ismath=False)
        # Of the letters' height, without what few of them reach.
        self.boxes.append((text.strip(), (x, y, x + width, y + 0.6 * size)))

    def add_picture(self, operator, operands, cm, tm):
        if operator == b"Do":
            width, _, _, height, x, y = cm
            self.boxes.append((str(operands[0]), (x, y, x + width, y + height)))


def test_everything_is_on_the_sheet_and_nothing_on_anything_else(tmp_path, run_material):
    pypdf = pytest.importorskip("pypdf", reason="pip install '.[dev]'")
    for number, case in enumerate(kinds(tmp_path, run_material)):
        path = tmp_path / f"{number}.pdf"
        write_pdf(path, case_page(case))
        for sheet in pypdf.PdfReader(path).pages:
            placed = Placed(sheet)
            assert len(placed.boxes) > 5
            for text, (left, low, right, high) in placed.boxes:
                assert 20 <= left < right <= placed.width - 20, (case.slide_id, text)
                assert 20 <= low < high <= placed.height - 20, (case.slide_id, text)
            for i, (first, a) in enumerate(placed.boxes):
                for second, b in placed.boxes[i + 1 :]:
                    wide = min(a[2], b[2]) - max(a[0], b[0])
                    tall = min(a[3], b[3]) - max(a[1], b[1])
                    assert wide <= 1 or tall <= 0.5, (case.slide_id, first, second)


def test_the_pdf_is_one_page_of_a4_with_letters_that_can_be_read(tmp_path, run_material):
    path = tmp_path / "case.pdf"
    write_pdf(path, case_page(CaseReports(run_material).of("f0 s02")))
    content = path.read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", content)) == 1
    (box,) = re.findall(rb"/MediaBox\s*\[([^\]]*)\]", content)
    assert [float(side) for side in box.split()] == pytest.approx([0, 0, 595.28, 841.89], abs=0.1)
    assert b"/FontFile2" in content  # TrueType, not outlines
    assert b"/ToUnicode" in content or b"/WinAnsiEncoding" in content


def test_the_text_of_the_pdf_can_be_extracted(tmp_path, run_material):
    pypdf = pytest.importorskip("pypdf", reason="pip install '.[dev]'")
    for number, case in enumerate(kinds(tmp_path, run_material)):
        path = tmp_path / f"{number}.pdf"
        write_pdf(path, case_page(case))
        reader = pypdf.PdfReader(path)
        assert len(reader.pages) == 1
        text = re.sub(r"\s+", "", reader.pages[0].extract_text())
        assert re.sub(r"\s+", "", case.confidence.headline) in text
        assert re.sub(r"\s+", "", case.caveats[0]) in text
        assert re.sub(r"\s+", "", case.slide_id)[:40] in text
        assert f"Slide report: {case.slide_id}" == reader.metadata.title


def test_names_in_other_scripts(tmp_path):
    names = [["Präparat Łódź №7 Ω", "病理", *(f"s{i}" for i in range(10))]]
    found = material(num_folds=1, names=names, path=tmp_path)
    for name in names[0][:2]:
        html, pdf = write_case(tmp_path, CaseReports(found).of(name))
        assert html.name == f"{name}.html"
        assert ("h1", name) in ReadPage(html.read_text(encoding="utf-8")).headings
        assert pdf.stat().st_size > 10_000
    pypdf = pytest.importorskip("pypdf", reason="pip install '.[dev]'")
    text = pypdf.PdfReader(tmp_path / f"{names[0][0]}.pdf").pages[0].extract_text()
    assert names[0][0] in text


def test_files_are_not_replaced_unasked(tmp_path, run_material):
    case = CaseReports(run_material).of("f0 s00")
    html, pdf = write_case(tmp_path, case)
    before = pdf.read_bytes()
    html.unlink()
    with pytest.raises(RunFolderError, match="exists already"):
        write_case(tmp_path, case)
    assert not html.exists()  # not one without the other
    assert pdf.read_bytes() == before
    write_case(tmp_path, case, overwrite=True)
    assert html.exists()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["f0 s00.html", "f0 s00.pdf"]
