import shutil
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import h5py
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from sgpmil.errors import ExplanationError
from sgpmil.viewer.answers import (
    agreement_answer,
    patch_answer,
    similar_answer,
    slide_answer,
)
from sgpmil.viewer.app import create_app
from sgpmil.viewer.bounded_cache import BoundedCache
from sgpmil.viewer.reviews import Review
from sgpmil.viewer.scored_slide import ScoredSlide
from sgpmil.viewer.server import ViewOptions, open_viewing
from sgpmil.viewer.viewing import PICTURE
from tests.slides.extraction.drawn_files import TISSUE, write_slide


@pytest.fixture(scope="module")
def partly(viewed, tmp_path_factory):
    """The run with one sound slide, a damaged one, and two that are missing."""
    slides = tmp_path_factory.mktemp("partly")
    write_slide(slides / "s2.tiff", 2)
    write_slide(slides / "whole.tiff", 3)
    content = (slides / "whole.tiff").read_bytes()
    (slides / "s3.tiff").write_bytes(content[: len(content) // 2])
    (slides / "whole.tiff").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two slides have no file
        found = open_viewing(ViewOptions(run=viewed / "run", slides=slides))
    yield found
    found.close()


def answer(viewing, name):
    case = viewing.cohort.named(name)
    return case, slide_answer(viewing, case, case.class_index)


def test_a_slide_without_an_image_lies_on_a_canvas(partly):
    case, found = answer(partly, "s 0")
    left, top, right, bottom = TISSUE
    assert not found["frame"]["has_image"]
    assert found["bounds"] == [left, top, right, bottom]
    assert (found["frame"]["width"], found["frame"]["height"]) == (right, bottom)
    assert any("no image" in text for text in found["notes"])
    last = partly.base_pyramid(case).last_level
    tile = np.asarray(Image.open(BytesIO(partly.base_tile(case, last, 1, 1))))
    assert tile.shape == (256, 256, 3)
    assert partly.thumbnail(case) is not None
    assert partly.patch_picture(case, 0) is None
    assert partly.map_tile(case, "attention", 1, None, last, 1, 1) is not None


def test_a_damaged_slide_says_so_and_keeps_its_maps(partly):
    case, found = answer(partly, "s3")
    assert not found["frame"]["has_image"]
    assert any("cut short" in text for text in found["notes"])
    assert partly.map_tile(case, "evidence", 1, None, 8, 0, 0) is not None
    assert partly.thumbnail(case) is not None
    patch = patch_answer(partly, case, partly.scored(case), 3, case.class_index)
    assert not patch["has_picture"]
    links = similar_answer(partly, partly.cohort.named("s2"), 3)["elsewhere"]
    assert {one["name"] for one in links if one["has_picture"]} == set()
    assert Image.open(BytesIO(partly.patch_picture(case, 3))).size == (PICTURE, PICTURE)


def test_predictions_without_a_model_offer_no_prototypes(viewed, tmp_path):
    alone = tmp_path / "alone"
    shutil.copytree(viewed / "run" / "fold-1", alone)
    for name in ("checkpoint.json", "checkpoint.safetensors"):
        (alone / name).unlink()
    (alone / "attention" / "s3.h5").unlink()
    viewing = open_viewing(ViewOptions(run=alone))
    case, found = answer(viewing, "s2")
    assert "attention" in {layer["kind"] for layer in found["layers"]}
    assert "prototype" not in {layer["kind"] for layer in found["layers"]}
    similar = similar_answer(viewing, case, 0)
    assert (similar["here"], similar["elsewhere"]) == ([], [])
    assert "--features" in similar["note"]
    with pytest.raises(ExplanationError, match="the model of these predictions is unknown"):
        viewing.knowledge[0]._find_prototypes(case.fold)
    bare = viewing.cohort.named("s3").number
    assert TestClient(create_app(viewing)).get(f"/thumbnails/{bare}.jpg").status_code == 204
    viewing.close()


def test_other_slides_do_not_suffer(partly):
    case, found = answer(partly, "s2")
    assert found["frame"]["has_image"]
    assert found["notes"] == []
    assert partly.base_tile(case, 11, 3, 3) is not None


def test_a_part_that_cannot_be_read_is_a_striped_tile(partly, monkeypatch):
    from sgpmil.errors import SlideError

    case = partly.cohort.named("s2")

    def fail(*_):
        raise SlideError("damaged there")

    monkeypatch.setattr(partly.slides, "tile", fail)
    tile = np.asarray(Image.open(BytesIO(partly.base_tile(case, 11, 1, 1))))
    assert tile.shape == (256, 256, 3)
    assert tile.std() > 5


def test_memory_of_tiles_is_bounded(partly):
    case = partly.cohort.named("s2")
    partly.tiles.limit, before = 50_000, partly.tiles.limit
    for column in range(8):
        for row in range(6):
            partly.base_tile(case, 11, column, row)
            assert partly.tiles.num_bytes <= 50_000
    partly.tiles.limit = before


def test_tiles_that_do_not_exist_take_no_memory(viewing, case):
    kept = len(viewing.tiles._values)
    assert all(viewing.base_tile(case, 30 + n, 1, 1) is None for n in range(20))
    assert len(viewing.tiles._values) == kept


def test_small_tiles_count_with_what_keeping_them_takes(viewing, case):
    before = viewing.tiles.num_bytes
    tile = viewing.map_tile(case, "attention", 1, 123.5, 8, 0, 0)
    assert viewing.tiles.num_bytes - before >= len(tile) + 500


def test_threads_that_want_the_same_scores_read_them_once(partly, monkeypatch):
    case, read, begun = partly.cohort.named("s 0"), [], threading.Barrier(8)
    scores = case.run.scores(case)
    partly._scored = BoundedCache(2**20, lambda slide: slide.num_bytes)
    monkeypatch.setattr(type(case.run), "scores", lambda *_: read.append(1) or scores)

    def ask(_):
        begun.wait()
        return partly.scored(case).num_patches

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(ask, range(8))) == {scores.num_instances}
    assert len(read) == 1


def test_embeddings_of_other_patches_are_not_searched(viewing, case, monkeypatch):
    monkeypatch.setattr(ScoredSlide, "num_patches", 5)
    with pytest.raises(ExplanationError, match="of the 5 patches"):
        viewing.similar(case, 3)


def test_a_verdict_on_an_earlier_prediction_is_no_agreement_with_this_one(viewing, case):
    now = case.run.class_names[case.prediction.predicted_class]
    other = next(name for name in case.run.class_names if name != now)
    known = ("Ada", 1, "agree", "", ())
    reviews = [Review(case.name, *known, predicted, 0.9, "") for predicted in (now, other, other)]
    found = agreement_answer(viewing.cohort, reviews)
    assert (found["all"]["agree"], found["num_outdated"], found["num_reviewed"]) == (1, 2, 1)


def test_canvases_of_one_slide_are_of_one_size_in_all_runs(viewed, tmp_path):
    fewer = tmp_path / "fewer"
    shutil.copytree(viewed / "other", fewer)
    for file in fewer.rglob("attention/*.h5"):
        with h5py.File(file, "r+") as content:
            coords = content["coords"][...]
            coords[:] = coords.min(axis=0)  # all patches of this run lie at one place
            content["coords"][...] = coords
    run, slides = tmp_path / "run", tmp_path / "slides"
    shutil.copytree(viewed / "run", run)
    slides.mkdir()
    write_slide(slides / "s2.tiff", 2)  # a run may remember other slides
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = open_viewing(ViewOptions(run=run, beside=(fewer,), slides=slides))
    case = found.cohort.named("s.1")
    (other,) = found.cohort.counterparts(case)
    frames = [found.frame(one) for one in (case, other)]
    own, smaller = found.scored(case).size, found.scored(other).size
    found.close()
    assert not any(frame.has_image for frame in frames)
    assert own != smaller
    assert {(frame.width, frame.height) for frame in frames} == {own}


def test_a_score_that_is_not_a_number_leaves_one_patch_out(viewed, tmp_path):
    sound, run = tmp_path / "sound", tmp_path / "run"
    for copy in (sound, run):
        shutil.copytree(viewed / "other", copy)
    slides = tmp_path / "slides"
    slides.mkdir()
    write_slide(slides / "s2.tiff", 2)
    (file,) = run.rglob("s.1.h5")
    with h5py.File(file, "r+") as content:
        content["attention_mean"][3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = open_viewing(ViewOptions(run=sound, slides=slides))
        found = open_viewing(ViewOptions(run=run, slides=slides))
    case, said = answer(found, "s.1")
    before = whole.scored(whole.cohort.named("s.1")).layer("attention", 1)
    after = found.scored(case).layer("attention", 1)
    assert after.unit == before.unit
    others = np.arange(len(after.values)) != 3
    np.testing.assert_allclose(after.values[others], before.values[others])
    assert np.isnan(after.values[3])
    assert any("1 of 24 patches have no finite score" in note for note in said["notes"])
    thumbnail = np.asarray(Image.open(BytesIO(found.thumbnail(case))))
    assert thumbnail.std() > 0
    for one in (whole, found):
        one.close()
