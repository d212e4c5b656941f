import csv
import io
import json
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from sgpmil.viewer import reviews as module
from sgpmil.viewer.reviews import (
    OtherVersionError,
    ReviewError,
    Reviews,
    reviews_csv,
    reviews_geojson,
)

RING = ((0.0, 0.0), (10.0, 0.0), (10.0, 5.5))


@pytest.fixture
def reviews(tmp_path):
    return Reviews(tmp_path / "run.reviews.sqlite")


def save(reviews, version=0, *, slide="a", reviewer="Ada", verdict="agree", note="", regions=()):
    return reviews.save(
        slide, reviewer, version, verdict, note, regions, predicted="tumour", probability=0.75
    )


def test_a_verdict_is_read_back(reviews):
    saved = save(reviews, note="clear", regions=[RING])
    assert reviews.of("a") == [saved]
    assert (saved.version, saved.regions, saved.predicted) == (1, (RING,), "tumour")
    assert Reviews(reviews.path).all() == [saved]


def test_nothing_is_made_before_the_first_verdict(reviews):
    assert reviews.all() == []
    assert not reviews.path.exists()


def test_who_did_not_see_the_last_version_does_not_overwrite_it(reviews):
    first = save(reviews)
    second = save(reviews, 1, verdict="unsure", note="look again")
    with pytest.raises(OtherVersionError) as error:
        save(reviews, 1, verdict="disagree")
    assert error.value.current == second
    with pytest.raises(OtherVersionError):
        save(reviews, 0)
    assert reviews.of("a") == [second]
    assert reviews.history("a") == [first, second]


def test_two_people_have_their_own_verdicts(reviews):
    save(reviews, reviewer="Ada")
    save(reviews, reviewer="Ben", verdict="disagree")
    assert reviews.verdicts() == {"a": ["agree", "disagree"]}


def test_verdicts_are_listed_without_reading_the_regions(reviews):
    save(reviews, regions=[RING])
    with sqlite3.connect(reviews.path) as connection:
        connection.execute("UPDATE verdicts SET regions = 'no JSON'")
    assert reviews.verdicts() == {"a": ["agree"]}
    with pytest.raises(ReviewError, match="cannot be read"):
        reviews.all()


def test_the_file_is_whole_by_itself(reviews):
    # A write-ahead log beside it fails on network drives and in folders that cannot be written.
    save(reviews)
    assert [file.name for file in reviews.path.parent.iterdir()] == [reviews.path.name]


def test_people_who_save_at_once_lose_nothing(reviews):
    other = Reviews(reviews.path)  # as another process would

    def work(number):
        own = (reviews, other)[number % 2]
        name = f"person {number % 4}"
        for turn in range(5):
            while True:
                known = next((r for r in own.of("a") if r.reviewer == name), None)
                try:
                    version = 0 if known is None else known.version
                    save(own, version, reviewer=name, note=f"{number}.{turn}")
                    break
                except OtherVersionError:
                    continue

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    history = reviews.history("a")
    assert len(history) == 40
    assert {one.note for one in history} == {f"{n}.{t}" for n in range(8) for t in range(5)}
    assert {one.version for one in reviews.of("a")} == {10}


def test_nothing_is_saved_read_only(reviews):
    save(reviews)
    closed = Reviews(reviews.path, read_only=True)
    assert len(closed.all()) == 1
    with pytest.raises(ReviewError, match="read-only"):
        save(closed, 1)


def test_a_damaged_file_is_one_sentence(reviews):
    reviews.path.write_bytes(b"no database" * 100)
    with pytest.raises(ReviewError, match="cannot be read"):
        reviews.all()
    with pytest.raises(ReviewError, match="Could not save"):
        save(reviews)


def test_text_is_stored_as_it_is(reviews):
    nasty = "Robert'); DROP TABLE verdicts;--\n<script>alert(1)</script>"
    save(reviews, slide=nasty, reviewer=nasty, note=nasty)
    (found,) = reviews.of(nasty)
    assert (found.slide, found.reviewer, found.note) == (nasty, nasty, nasty)
    with sqlite3.connect(reviews.path) as connection:
        assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (1,)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_a_spreadsheet_runs_nothing(reviews, start):
    formula = f'{start}HYPERLINK("http://x")'
    save(reviews, slide=formula, reviewer=formula, note=formula)
    (row,) = csv.DictReader(io.StringIO(reviews_csv(reviews.all(), {formula: formula})))
    assert all(row[name] == f"'{formula}" for name in ("slide", "reviewer", "note", "label"))
    assert row["probability"] == "0.750000"


def test_regions_are_closed_polygons_of_geojson(reviews):
    save(reviews, regions=[RING], note="here")
    content = json.loads(reviews_geojson(reviews.all()))
    (feature,) = content["features"]
    shapely = pytest.importorskip("shapely.geometry")
    shape = shapely.shape(feature["geometry"])
    assert shape.is_valid
    assert shape.area == pytest.approx(10 * 5.5 / 2)
    assert feature["properties"]["slide"] == "a"
    assert feature["properties"]["objectType"] == "annotation"


def test_the_history_of_a_slide_is_bounded(reviews, monkeypatch):
    monkeypatch.setattr(module, "MOST_VERSIONS", 5)
    save(reviews, slide="b")
    save(reviews, reviewer="Ben")
    for version in range(12):
        save(reviews, version, note=str(version))
    kept = reviews.history("a")
    assert len(kept) == 5
    # The newest versions stay, and the only one of somebody else.
    assert [one.note for one in kept if one.reviewer == "Ada"] == ["8", "9", "10", "11"]
    assert [one.reviewer for one in kept if one.reviewer != "Ada"] == ["Ben"]
    assert len(reviews.history("b")) == 1
    assert reviews.of("a")[0].version == 12


def test_the_file_is_bounded_and_says_when_it_is_full(reviews, monkeypatch):
    save(reviews, slide="first", note="kept")
    monkeypatch.setattr(module, "MOST_BYTES", 400_000)
    for version in range(60):
        save(reviews, version, note="x" * 10_000)
    assert reviews.path.stat().st_size < 600_000
    assert reviews.of("first")[0].note == "kept"
    assert reviews.of("a")[0].version == 60

    def fill():
        for number in range(100):
            save(reviews, slide=f"slide {number}", note="x" * 10_000)

    with pytest.raises(ReviewError, match="at most 400,000 bytes"):
        fill()


def test_the_number_of_people_is_bounded(reviews, monkeypatch):
    monkeypatch.setattr(module, "MOST_REVIEWERS", 2)
    save(reviews, reviewer="Ada")
    save(reviews, reviewer="Ben")
    with pytest.raises(ReviewError, match="at most 2 people"):
        save(reviews, reviewer="Cleo")
    assert save(reviews, 1, reviewer="Ada").version == 2
    assert save(reviews, slide="b", reviewer="Cleo").version == 1
