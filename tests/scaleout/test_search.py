import pytest

from sgpmil.errors import SettingsError
from sgpmil.scaleout.search import Dimension


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-5..1e-2:log", Dimension("k", 1e-5, 1e-2, is_log=True)),
        ("-1..2.5", Dimension("k", -1.0, 2.5)),
        ("1..8", Dimension("k", 1.0, 8.0, is_whole=True)),
        ("16,32", Dimension("k", choices=(16, 32))),
        ("1e-4, rbf, true", Dimension("k", choices=(1e-4, "rbf", True))),
        ("[8],[16, 8]", Dimension("k", choices=([8], [16, 8]))),
        ([1, 2], Dimension("k", choices=(1, 2))),
    ],
)
def test_ranges_and_values_are_read(text, expected):
    assert repr(Dimension.parse("k", text)) == repr(expected)  # NaN is not itself


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2..1", "from a lower to a higher number, but got 2..1"),
        ("0..1:log", "higher number above 0"),
        ("1..nan", "lower to a higher"),
        ("16", "several values of k .* but got 16 alone"),
        ("a..b", "such as 1e-5..1e-2:log"),
        ("", "such as 16,32,64, for k"),
        ("[", "such as 16,32,64"),
    ],
)
def test_what_is_no_space_is_refused(text, message):
    with pytest.raises(SettingsError, match=message):
        Dimension.parse("k", text)
