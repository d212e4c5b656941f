import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")

from sgpmil.errors import AnnotationError, SettingsError
from sgpmil.slides.annotations.folder import (
    AnnotationOptions,
    open_annotations,
    read_annotations,
)
from sgpmil.slides.annotations.mask import AnnotationMask
from sgpmil.slides.annotations.regions import CAMELYON, RegionRule, bracs_rule
from tests.report.explained_run import SLIDES, write_annotations

from .drawings import feature, rectangle, write_asap, write_geojson, write_tiff


@pytest.fixture
def files(tmp_path):
    mask = np.zeros((20, 20), dtype=np.uint8)
    mask[:10, :5] = 255
    return [
        write_asap(tmp_path / "a.xml", [("Tumor", rectangle(0, 0, 5, 10))]),
        write_geojson(tmp_path / "a.geojson", [feature([rectangle(0, 0, 5, 10)], "Cancer")]),
        write_geojson(tmp_path / "a.json", [feature([rectangle(0, 0, 5, 10)], "Cancer")]),
        write_tiff(tmp_path / "a.tif", mask),
        write_tiff(tmp_path / "a.TIFF", mask),
    ]


def area(found):
    return found.pixels.sum() if isinstance(found, AnnotationMask) else found.positive_area().area


def test_format_by_suffix_and_by_content(files, tmp_path):
    for file in files:
        assert area(read_annotations(file)) == 50
        other = tmp_path / f"{file.stem}{file.suffix[1:]}.annotation"
        other.write_bytes(b"\xef\xbb\xbf" * (file.suffix == ".xml") + file.read_bytes())
        assert area(read_annotations(other)) == 50


def test_options_reach_the_readers(files):
    xml, geojson, _, tiff, _ = files
    assert read_annotations(tiff, mask_downsample=4.0).downsample == 4
    assert read_annotations(tiff, slide_size=(160, 160)).downsample == 8
    other = RegionRule(positive=("Normal",))
    assert area(read_annotations(geojson, other)) == 0
    assert area(read_annotations(xml, RegionRule(excluded=("tumor",)))) == 0


def test_other_files(tmp_path):
    odd = tmp_path / "notes.txt"
    odd.write_text("lesion at 3 o'clock")
    with pytest.raises(AnnotationError, match=r"ASAP XML, GeoJSON or TIFF in .*notes\.txt"):
        read_annotations(odd)
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_annotations(tmp_path / "absent")
    with pytest.raises(AnnotationError, match="cannot be read"):
        read_annotations(tmp_path / "absent.xml")


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


def options(folder=None, regions=None, mask_downsample=None):
    return AnnotationOptions(annotations=folder, regions=regions, mask_downsample=mask_downsample)


def test_names_become_rules(tmp_path):
    folder = write_annotations(tmp_path / "drawn")
    assert options().open_annotations() is None
    plain = options(folder, None, 4.0).open_annotations()
    assert (plain.rule, plain.mask_downsample) == (None, 4.0)
    assert options(folder, ("Camelyon",)).open_annotations().rule is CAMELYON
    assert options(folder, ("bracs",)).open_annotations().depends_on_class
    own = options(folder, ("Tumor", "Exclusion")).open_annotations().rule
    assert own.positive == ("Tumor", "Exclusion")
    assert "Exclusion" not in own.excluded
    assert "Exclusion" in options(folder, ("Tumor",)).open_annotations().rule.excluded
    assert SLIDES[1] in plain


@pytest.mark.parametrize("words", [(("Tumor",), None), (None, 2.0)])
def test_options_about_nothing_are_refused(words):
    with pytest.raises(SettingsError, match="`annotations`"):
        options(None, *words).open_annotations()
