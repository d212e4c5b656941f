import pytest

from sgpmil.errors import SettingsError
from sgpmil.models.setting_values import checked_value


@pytest.mark.parametrize(
    ("value", "default", "found"),
    [
        (3, 7, 3),
        (True, False, True),
        (1, 0.5, 1.0),
        (2, None, 2),
        ([4, 2], (8,), (4, 2)),
        ([0.5, 0.9], (0.9, 0.999), (0.5, 0.9)),
        ("gelu", "relu", "gelu"),
    ],
)
def test_values_of_the_right_kind_pass(value, default, found):
    assert checked_value("x", value, default) == found
    assert type(checked_value("x", value, default)) is type(found)


@pytest.mark.parametrize(
    ("value", "default", "kind"),
    [
        (None, 7, "a whole number"),
        (True, 7, "a whole number"),
        (3.5, 7, "a whole number"),
        ("no", False, "yes or no"),
        (float("nan"), 0.5, "a finite number"),
        (float("inf"), None, "a finite number"),
        (16, (8,), "a list of whole numbers"),
        ([1.5], (8,), "a list of whole numbers"),
        (["a", 1], (0.9, 0.999), "a list of finite numbers"),
        (2, "relu", "a name"),
    ],
)
def test_values_of_another_kind_are_refused(value, default, kind):
    with pytest.raises(SettingsError, match=f"Expected x to be {kind}, but got"):
        checked_value("x", value, default)
