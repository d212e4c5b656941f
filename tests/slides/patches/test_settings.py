import pytest

from sgpmil.errors import SettingsError
from sgpmil.slides.patches import PatchSettings


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"size": 0}, "patch size of at least 1 px, but got 0"),
        ({"overlap": 256}, "less than the patch size of 256 px, but got 256"),
        ({"overlap": -1}, "but got -1"),
        ({"magnification": None}, "but got neither"),
        ({"mpp": 0.5}, "but got 20× and 0.5"),
        ({"magnification": 0.0}, "above 0, but got 0.0"),
        ({"magnification": float("nan")}, "above 0, but got nan"),
        ({"magnification": None, "mpp": -0.5}, "above 0, but got -0.5"),
        ({"min_tissue": 1.5}, "from 0 to 1, but got 1.5"),
        ({"min_tissue": -0.1}, "from 0 to 1, but got -0.1"),
        ({"min_tissue": float("nan")}, "from 0 to 1, but got nan"),
    ],
)
def test_impossible_settings(wrong, words):
    with pytest.raises(SettingsError, match=words):
        PatchSettings(**wrong)


def test_target_magnification():
    assert PatchSettings(magnification=2.5).target_magnification == 2.5
    assert PatchSettings(magnification=None, mpp=0.4).target_magnification == 25.0
