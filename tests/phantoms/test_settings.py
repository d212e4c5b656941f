import pytest

from sgpmil.errors import SettingsError
from sgpmil.phantoms import PhantomSettings


def test_extent_in_microns():
    assert PhantomSettings(size=(4000, 2000), mpp=0.25).extent == (1000, 500)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"size": (100, 4000)}, r"512 to 400,000 pixels a side, but got 100×4000"),
        ({"size": (500_000, 4000)}, "but got 500000×4000"),
        ({"mpp": 0.0}, "0.1 to 2 microns a pixel, but got 0"),
        ({"mpp": 8.0}, "but got 8"),
        ({"mpp": float("nan")}, "but got nan"),
        ({"size": (600, 4000), "mpp": 0.5}, r"at least 400 microns a side, but got 300×2000"),
        ({"tumour_share": -0.1}, "from 0 to 0.9, but got -0.1"),
        ({"tumour_share": 1.0}, "but got 1"),
        ({"pen_share": 1.5}, "with a pen from 0 to 1, but got 1.5"),
        ({"fold_share": -1.0}, "with a fold from 0 to 1, but got -1"),
        ({"quality": 0}, "quality from 1 to 100, but got 0"),
    ],
)
def test_impossible_settings_are_refused_in_a_sentence(wrong, sentence):
    with pytest.raises(SettingsError, match=sentence):
        PhantomSettings(**wrong)
