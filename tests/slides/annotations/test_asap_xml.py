import re

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.asap_xml import read_asap_xml
from sgpmil.slides.annotations.regions import SkippedRegionWarning

from .drawings import rectangle, write_asap


def test_groups_and_areas(tmp_path):
    path = write_asap(
        tmp_path / "a.xml",
        [
            ("_0", rectangle(0, 0, 10.5, 20)),
            ("_2", rectangle(1, 1, 2, 2)),
            ("Tumor", rectangle(50, 0, 60, 1), "Rectangle"),
            ("None", [(0, 0), (2, 2), (2, 0), (0, 2)], "Spline"),
        ],
    )
    found = read_asap_xml(path)
    assert [region.name for region in found] == ["_0", "_2", "Tumor", "None"]
    np.testing.assert_allclose([region.polygon.area for region in found], [210, 1, 10, 2])
    assert found[0].polygon.bounds == (0, 0, 10.5, 20)


def test_points_are_taken_in_their_order(tmp_path):
    path = write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 4, 3))])
    lines = path.read_text().splitlines()
    corners = [k for k, line in enumerate(lines) if "<Coordinate " in line]
    # As written, the file's points would make a figure of eight.
    lines[corners[0]], lines[corners[1]] = lines[corners[1]], lines[corners[0]]
    path.write_text("\n".join(lines))
    assert read_asap_xml(path)[0].polygon.area == 12
    without_order = re.sub(r'Order="\d+" ', "", "\n".join(lines))
    path.write_text(without_order)
    assert read_asap_xml(path)[0].polygon.area == pytest.approx(6)


def test_what_is_no_area_is_left_out_with_a_warning(tmp_path):
    path = write_asap(
        tmp_path / "a.xml",
        [
            ("Tumor", [(1, 1)], "Dot"),
            ("Tumor", rectangle(0, 0, 9, 9), "PointSet"),
            ("Tumor", [(0, 0), (1, 1)]),
            ("Tumor", rectangle(0, 0, 2, 2)),
        ],
    )
    with pytest.warns(SkippedRegionWarning, match="Left out 3 of 4 objects"):
        found = read_asap_xml(path)
    assert [region.polygon.area for region in found] == [4]


def test_no_annotations(tmp_path):
    assert read_asap_xml(write_asap(tmp_path / "a.xml", [])) == ()


def test_damaged_files(tmp_path):
    good = write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 9, 9))]).read_text()
    bad = tmp_path / "bad.xml"
    for text in (good[: len(good) // 2], "", "nonsense", good.replace("</Coordinates>", "")):
        bad.write_text(text)
        with pytest.raises(AnnotationError, match=r"ASAP writes .*bad\.xml.* cannot be read"):
            read_asap_xml(bad)
    for text in (
        good.replace('X="9.0"', 'X="nine"'),
        good.replace('X="9.0" ', ""),
        good.replace('X="9.0"', 'X="inf"'),
        good.replace('X="9.0"', 'X="nan"'),
    ):
        bad.write_text(text)
        with pytest.raises(AnnotationError, match="Expected numbers Order, X and Y"):
            read_asap_xml(bad)
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_asap_xml(tmp_path / "absent.xml")


def test_xml_of_another_program(tmp_path):
    path = tmp_path / "aperio.xml"
    path.write_text('<Annotations MicronsPerPixel="0.25"><Annotation Id="1"/></Annotations>')
    with pytest.raises(AnnotationError, match="but got 'Annotations'"):
        read_asap_xml(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_document_type_is_refused(tmp_path, encoding):
    bomb = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">'
        '<!ENTITY b "&a;&a;&a;&a;">]><ASAP_Annotations>&b;</ASAP_Annotations>'
    )
    path = tmp_path / "bomb.xml"
    path.write_bytes(bomb.encode(encoding))
    with pytest.raises(AnnotationError, match="document type"):
        read_asap_xml(path)
