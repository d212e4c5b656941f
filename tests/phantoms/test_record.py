import json
from dataclasses import replace

import pytest

from sgpmil.errors import SettingsError, SlideError
from sgpmil.phantoms.record import PhantomRecord, claim_folder

from .scenes import SMALL

RECORD = PhantomRecord(4, 0, 0.5, SMALL)


def test_slides_stay_the_same_when_more_are_asked_for():
    few, many = RECORD.slides(), replace(RECORD, num_slides=9).slides()
    assert many[:4] == few
    assert len({slide.seed for slide in many}) == 9
    assert len({slide.slide_id for slide in many}) == 9
    assert {slide.seed for slide in replace(RECORD, seed=1).slides()}.isdisjoint(
        {slide.seed for slide in many}
    )


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 0), (1.0, 30), (0.5, 15), (0.3, 9), (0.1, 3)]
)
def test_share_of_positive_slides(share, expected):
    slides = PhantomRecord(30, 0, share, SMALL).slides()
    assert sum(slide.label == "tumour" for slide in slides) == expected
    for slide in slides:
        wanted = SMALL.tumour_share if slide.label == "tumour" else 0.0
        assert slide.settings == replace(SMALL, tumour_share=wanted)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"num_slides": 0}, "1 to 100,000 slides, but got 0"),
        ({"seed": -1}, "seed of 0 or more, but got -1"),
        ({"positive_share": 1.2}, "from 0 to 1, but got 1.2"),
    ],
)
def test_impossible_records(wrong, sentence):
    with pytest.raises(SettingsError, match=sentence):
        replace(RECORD, **wrong)


def test_a_folder_is_claimed_once_and_again(tmp_path):
    claim_folder(tmp_path / "new", RECORD, overwrite=False)
    claim_folder(tmp_path / "new", RECORD, overwrite=False)
    claim_folder(tmp_path / "new", replace(RECORD, num_slides=5), overwrite=False)
    content = json.loads((tmp_path / "new" / "phantoms.json").read_text())
    assert content["num_slides"] == 5
    assert content["settings"]["mpp"] == 0.5


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (replace(RECORD, seed=1), "phantoms of seed 0"),
        (replace(RECORD, settings=replace(SMALL, mpp=0.6)), "phantoms of mpp 0.5"),
        (
            replace(RECORD, settings=replace(SMALL, size=(3000, 2000))),
            "phantoms of size 2000×1500",
        ),
        (replace(RECORD, num_slides=3), "4 phantoms, more than the 3 asked for"),
        (replace(RECORD, drawing=2), "phantoms of drawing 1"),
    ],
)
def test_other_phantoms_are_refused_or_replaced(tmp_path, other, sentence):
    claim_folder(tmp_path / "a", RECORD, overwrite=False)
    old = RECORD.slides()[3]
    for file in (old.file(tmp_path / "a"), old.truth(tmp_path / "a", "tissue")):
        file.parent.mkdir()
        file.write_text("old")
    with pytest.raises(SlideError, match=sentence):
        claim_folder(tmp_path / "a", other, overwrite=False)
    assert old.file(tmp_path / "a").exists()
    claim_folder(tmp_path / "a", other, overwrite=True)
    assert not old.file(tmp_path / "a").exists()
    assert not old.truth(tmp_path / "a", "tissue").exists()


@pytest.mark.parametrize("overwrite", [True, False])
def test_folders_of_others_are_never_touched(tmp_path, overwrite):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(SlideError, match="holds something else"):
        claim_folder(tmp_path, RECORD, overwrite=overwrite)
    with pytest.raises(SlideError, match="holds something else"):
        claim_folder(tmp_path / "thesis.txt", RECORD, overwrite=overwrite)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": {"size": 3}}', '{"settings": {}}'])
def test_damaged_records(tmp_path, text):
    (tmp_path / "phantoms.json").write_text(text)
    with pytest.raises(SlideError, match=r"phantoms\.json', but it cannot be read"):
        claim_folder(tmp_path, RECORD, overwrite=False)
