import csv
import re

import h5py
import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("shapely", reason="pip install '.[slides]'")

from tests.slides.extraction.drawn_files import write_folder, write_slide

COLOURS = ("--encoder", "tests.slides.extraction.cheap_encoders:Colours", "--workers", "1")


@pytest.fixture
def slide_folder(tmp_path):
    folder = tmp_path / "my slides"
    write_folder(folder, num_slides=2)
    return folder


@pytest.mark.slow
def test_slides_become_embeddings_that_inspect_reads(sgpmil, slide_folder, tmp_path):
    (slide_folder / "zip.svs").write_bytes(b"PK\x03\x04")
    write_slide(slide_folder / "glass.tiff", tissue=None)
    out = tmp_path / "out"
    code, text, error = sgpmil("extract", slide_folder, "--out", out, *COLOURS)
    assert code == 1  # one failed
    assert re.search(r"extracted +│ 2", text)
    assert re.search(r"without patches +│ 1 \(glass\)", text)
    assert "1 (zip)" in text
    *_, reason, advice = text.rstrip().splitlines()
    assert reason.startswith("zip: Expected a slide in")
    assert "--skip-bad" in advice
    assert "Traceback" not in error
    features = out / "20x_256px_0px_overlap" / "features_Colours"
    assert str(features) in text
    code, text, _ = sgpmil("inspect", features)
    assert code == 0
    assert "24 to 24" in text or "0 to 24" in text
    code, text, _ = sgpmil("extract", slide_folder, "--out", out, "--skip-bad", *COLOURS)
    assert code == 0
    assert f"Skipped slides: 1, listed in {out / 'skipped.csv'}." in text
    with (out / "skipped.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["slide_id"] == "zip"
    assert row["reason"].startswith("Expected a slide in")
    (slide_folder / "zip.svs").unlink()
    code, text, _ = sgpmil("extract", slide_folder, "--out", out, *COLOURS)
    assert code == 0
    assert re.search(r"existing +│ 3", text)
    assert not (out / "skipped.csv").exists()


def test_an_extraction_of_damaged_slides_alone_fails(sgpmil, tmp_path):
    (tmp_path / "a.svs").write_bytes(b"PK\x03\x04")
    given = ("--out", tmp_path / "out", "--no-encode", "--workers", "1", "--skip-bad")
    assert sgpmil("extract", tmp_path, *given)[0] == 1


@pytest.mark.slow
def test_microns_per_pixel_and_overlap(sgpmil, slide_folder, tmp_path):
    out = tmp_path / "out"
    arguments = ("--mpp", "1.0", "--patch-size", "128", "--overlap", "64")
    code, _, _ = sgpmil("extract", slide_folder, "--out", out, *arguments, *COLOURS)
    assert code == 0
    (folder,) = out.glob("1mpp_128px_64px_overlap/features_*")
    with h5py.File(folder / "slide 0.é.h5") as file:
        coords = file["coords"][()]
        assert file["coords"].attrs["patch_size_level0"] == 256
    assert np.unique(np.diff(np.unique(coords[:, 0]))).tolist() == [128]


@pytest.mark.slow
def test_a_slide_that_does_not_say_its_magnification(sgpmil, tmp_path):
    folder = tmp_path / "slides"
    folder.mkdir()
    write_slide(folder / "silent.tiff", mpp=None)
    out = tmp_path / "out"
    code, text, _ = sgpmil("extract", folder, "--out", out, *COLOURS)
    assert code == 1
    assert "--slide-mag" in text
    code, _, _ = sgpmil("extract", folder, "--out", out, "--slide-mag", "40", *COLOURS)
    assert code == 0
    with h5py.File(out / "20x_256px_0px_overlap" / "features_Colours" / "silent.h5") as file:
        assert file["coords"].attrs["patch_size_level0"] == 512
        assert file["coords"].attrs["magnification_source"] == "given"


@pytest.mark.slow
def test_a_table_says_it_slide_by_slide(sgpmil, tmp_path):
    folder = tmp_path / "slides"
    folder.mkdir()
    write_slide(folder / "a.tiff", mpp=None)
    write_slide(folder / "b.tiff")
    (tmp_path / "list.csv").write_text("wsi,mag\na.tiff,40\nb.tiff,40\n")
    arguments = ("--list", tmp_path / "list.csv", "--no-encode", "--workers", "1")
    code, text, error = sgpmil("extract", folder, "--out", tmp_path / "out", *arguments)
    assert code == 0
    assert "b: " in error
    assert "was given" in error  # the file of b says 20×
    for name in ("a", "b"):
        patches = tmp_path / "out" / "20x_256px_0px_overlap" / "patches" / f"{name}_patches.h5"
        with h5py.File(patches) as file:
            assert file["coords"].attrs["patch_size_level0"] == 512
    assert str(tmp_path / "out" / "contours") in text


@pytest.mark.slow
def test_encoders_are_listed(sgpmil):
    code, text, _ = sgpmil("extract", "--list-encoders")
    assert code == 0
    for name in ("efficientnet-lite0", "uni_v2", "virchow2", "gigapath", "conch_v1"):
        assert name in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Missing argument"),
        (("nowhere",), "nowhere"),
        (("SLIDES", "--mag", "80"), "at most the slide's"),
        (("SLIDES", "--mag", "20", "--mpp", "0.5"), "Give one"),
        (("SLIDES", "--overlap", "256"), "overlap"),
        (("SLIDES", "--encoder", "no_such_encoder"), "no_such_encoder"),
        (("SLIDES", "--workers", "0"), "at least 1"),
        (("SLIDES", "--out", "FILE"), "Could not write"),
    ],
)
@pytest.mark.slow
def test_mistakes_are_told_in_a_sentence(sgpmil, slide_folder, tmp_path, arguments, expected):
    (tmp_path / "file").touch()
    places = {"SLIDES": slide_folder, "FILE": tmp_path / "file"}
    given = [places.get(argument, argument) for argument in arguments]
    if "--out" not in given:
        given += ["--out", tmp_path / "out"]
    if "--encoder" not in given:
        given += COLOURS[:2]
    code, text, error = sgpmil("extract", *given)
    assert code in (1, 2)
    assert expected in text + error
    assert "Traceback" not in error


TINY = ("--size", "800x600", "--mpp", "1", "--workers", "1")


def test_slides_are_written_and_completed(sgpmil, tmp_path):
    out = tmp_path / "my slides"
    code, said, err = sgpmil("phantom", out, "--num-slides", "3", *TINY)
    assert code == 0
    assert "3 synthetic slides (not of patients) in" in said
    assert "1 with a tumour (3 written now)" in said
    assert str(out / "labels.csv") in said
    assert "3 of 3: phantom-0003" in err
    assert len(list((out / "slides").glob("*.tiff"))) == 3
    (out / "slides" / "phantom-0002.tiff").unlink()
    code, said, _ = sgpmil("phantom", out, "--num_slides", "3", *TINY)
    assert code == 0
    assert "(1 written now)" in said


def test_options_reach_the_slides(sgpmil, tmp_path):
    import json

    options = ("--tumour-share", "0.2", "--positive-share", "1", "--seed", "7", "--quality", "80")
    code, said, _ = sgpmil(
        "phantom", tmp_path / "a", "--num-slides", "1", *options, "--pen-share", "0", *TINY
    )
    assert code == 0
    assert "1 with a tumour" in said
    content = json.loads((tmp_path / "a" / "phantoms.json").read_text())
    assert content["seed"] == 7
    settings = content["settings"]
    assert settings["tumour_share"] == 0.2
    assert settings["pen_share"] == 0
    assert settings["quality"] == 80
    assert settings["size"] == [800, 600]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--size", "big"), "Expected a size as WIDTHxHEIGHT in pixels"),
        (("--size", "-5x600"), "Expected a size as WIDTHxHEIGHT in pixels"),
        (("--size", "20x600"), "512 to 400,000 pixels a side, but got 20×600"),
        (("--mpp", "7"), "0.1 to 2 microns a pixel, but got 7"),
        (("--tumour-share", "2"), "from 0 to 0.9, but got 2"),
        (("--num-slides", "0"), "1 to 100,000 slides, but got 0"),
        (("--seed", "-1"), "a seed of 0 or more, but got -1"),
        (("--workers", "0"), "1 or more workers, but got 0"),
        (("--positive-share", "3"), "from 0 to 1, but got 3"),
    ],
)
def test_wrong_options_are_one_sentence(sgpmil, tmp_path, options, sentence):
    code, _, err = sgpmil("phantom", tmp_path / "a", *options)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert not (tmp_path / "a").exists()


def test_other_folders_are_refused(sgpmil, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    code, _, err = sgpmil("phantom", tmp_path, "--overwrite", *TINY)
    assert code == 2
    assert "holds something else" in err


def test_other_settings_need_overwrite(sgpmil, tmp_path):
    sgpmil("phantom", tmp_path / "a", "--num-slides", "1", *TINY)
    code, _, err = sgpmil("phantom", tmp_path / "a", "--num-slides", "1", "--seed", "1", *TINY)
    assert code == 2
    assert "phantoms of seed 0. Choose another, or replace them with --overwrite." in err
    code, _, _ = sgpmil(
        "phantom", tmp_path / "a", "--num-slides", "1", "--seed", "1", "--overwrite", *TINY
    )
    assert code == 0
