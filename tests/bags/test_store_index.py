import json
from dataclasses import replace

import pytest

from sgpmil.bags.store_index import LeftOutSlide, PackedSlide, StoreIndex
from sgpmil.bags.target import ClassTarget

SLIDE = PackedSlide("a", "p", 1, 7, 512, "uni", 20.0, True, False, "10-20")
TARGET = ClassTarget(("x", "y"))
INDEX = StoreIndex("float16", 4, TARGET, (SLIDE,), (LeftOutSlide("b", "1-2", "damaged"),))


def test_round_trip():
    assert StoreIndex.from_json(INDEX.to_json()) == INDEX
    assert INDEX.num_rows == 7


def test_an_index_of_the_first_version_still_opens():
    content = json.loads(INDEX.to_json())
    del content["target"]
    assert (
        StoreIndex.from_json(json.dumps(content | {"version": 1, "class_names": ["x", "y"]}))
        == INDEX
    )


def test_header():
    header = SLIDE.header(4, "float16")
    assert (header.num_instances, header.feature_dim, header.encoder) == (7, 4, "uni")


def _changed(**changes):
    return json.dumps(json.loads(INDEX.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting"),
        ("[]", "not the index"),
        (_changed(kind="other"), "not the index"),
        (_changed(version=3), "version 3"),
        (_changed(slides=[]), "0 slides"),
        (_changed(slides=[{"slide_id": "a"}]), "missing"),
        (_changed(slides=None), "wrong"),
        (_changed(dtype="int8"), "int8"),
        (replace(INDEX, slides=(replace(SLIDE, num_instances=0),)).to_json(), "0 instances"),
    ],
)
def test_damage_is_a_value_error(text, message):
    with pytest.raises(ValueError, match=message):
        StoreIndex.from_json(text)
