import pickle
from pathlib import Path

from sgpmil.slides.reading.damage import cut_short, reason, unreadable_pixels


def test_reasons_are_a_few_words():
    assert reason(OSError("short read.\nmore")) == "short read"
    assert reason(ValueError()) == "its structure is damaged"
    assert reason(AttributeError("'NoneType' has no attribute 'x'")) == "its structure is damaged"


def test_errors_travel_between_processes():
    for error in (cut_short(2000, 10, "'a'"), unreadable_pixels(Path("a"), 1, 2, 0, OSError("b"))):
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301
        assert (type(copy), str(copy)) == (type(error), str(error))
