import pytest

pytest.importorskip("shapely", reason="pip install 'sgpmil[slides]'")
pytest.importorskip("tifffile", reason="pip install 'sgpmil[slides]'")

TINY = ("--size", "800x600", "--mpp", "1", "--workers", "1")


def test_slides_are_written_and_completed(sgpmil, tmp_path):
    out = tmp_path / "my slides"
    code, said, err = sgpmil("phantom", out, "--num-slides", "3", *TINY)
    assert code == 0
    assert "Synthetic slides, not patients': 3 in" in said
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
