import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")

from sgpmil.cli.annotation_options import annotation_folder
from sgpmil.errors import SettingsError
from sgpmil.slides.annotations.regions import CAMELYON
from tests.report.explained_run import SLIDES, write_annotations


def test_names_become_rules(tmp_path):
    folder = write_annotations(tmp_path / "drawn")
    assert annotation_folder(None, None, None) is None
    plain = annotation_folder(folder, None, 4.0)
    assert (plain.rule, plain.mask_downsample) == (None, 4.0)
    assert annotation_folder(folder, "Camelyon", None).rule is CAMELYON
    assert annotation_folder(folder, "bracs", None).depends_on_class
    own = annotation_folder(folder, " Tumor, Exclusion ,", None).rule
    assert own.positive == ("Tumor", "Exclusion")
    assert "Exclusion" not in own.excluded
    assert "Exclusion" in annotation_folder(folder, "Tumor", None).rule.excluded
    assert SLIDES[1] in plain


@pytest.mark.parametrize("words", [("Tumor", None), (None, 2.0)])
def test_options_about_nothing_are_refused(words):
    with pytest.raises(SettingsError, match="--annotations"):
        annotation_folder(None, *words)
