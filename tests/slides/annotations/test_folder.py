import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("tifffile", reason="pip install 'sgpmil[slides]'")

from sgpmil.errors import AnnotationError
from sgpmil.slides.annotations.bracs import bracs_rule
from sgpmil.slides.annotations.folder import open_annotations
from sgpmil.slides.annotations.regions import RegionRule

from .drawings import feature, rectangle, write_asap, write_geojson, write_tiff


def test_files_by_slide(tmp_path):
    write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 5, 10))])
    write_tiff(tmp_path / "a_mask.tif", np.ones((4, 4), dtype=np.uint8))
    write_tiff(tmp_path / "B_Mask.TIF", np.ones((4, 4), dtype=np.uint8))
    write_geojson(tmp_path / "c.1.geojson", [feature([rectangle(0, 0, 1, 1)])])
    (tmp_path / "readme.txt").write_text("text")
    (tmp_path / "d.xml").mkdir()
    found = open_annotations(tmp_path, mask_downsample=16.0)
    assert set(found.files) == {"a", "B", "c.1"}
    assert "a" in found
    assert "d" not in found
    assert found.read("a", "tumour").positive_area().area == 50  # the polygons, not the mask
    assert found.read("B", "tumour").downsample == 16
    assert found.read("c.1", "tumour").positive_area().area == 1
    with pytest.raises(AnnotationError, match=r"annotations of 'd' .* Name the file 'd\.xml'"):
        found.read("d", "tumour")


def test_rules(tmp_path):
    write_geojson(
        tmp_path / "a.geojson",
        [feature([rectangle(0, 0, 1, 1)], "DCIS"), feature([rectangle(2, 0, 4, 1)], "ADH")],
    )
    by_class = open_annotations(tmp_path, bracs_rule)
    assert by_class.depends_on_class
    assert by_class.read("a", "MT").positive_area().area == 1
    assert by_class.read("a", "AT").positive_area().area == 2
    fixed = open_annotations(tmp_path, RegionRule(positive=("ADH",)))
    assert not fixed.depends_on_class
    assert fixed.read("a", "anything").positive_area().area == 2


def test_no_folder_and_no_files(tmp_path):
    with pytest.raises(AnnotationError, match="Expected a folder of annotations"):
        open_annotations(tmp_path / "absent")
    (tmp_path / "readme.txt").write_text("text")
    with pytest.raises(AnnotationError, match=r"there are none\. Name them after the slides"):
        open_annotations(tmp_path)
