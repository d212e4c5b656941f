import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")

from sgpmil.bags import read_bags
from sgpmil.errors import ExtractionError
from sgpmil.slides.encoders import load_encoder
from sgpmil.slides.extraction import (
    ExtractionSettings,
    extract_slides,
    extraction_progress,
    place_patches_of,
    slide_jobs,
)
from sgpmil.slides.extraction import encoding as encoding_module
from sgpmil.slides.patches import ExtractionFolder, PatchSettings
from tests.slides.extraction import cheap_encoders
from tests.slides.extraction.cheap_encoders import Colours
from tests.slides.extraction.drawn_files import TISSUE, write_folder, write_slide
from tests.waiting import HANGS_S, wait_until

pytestmark = pytest.mark.slow

ENCODERS = "tests.slides.extraction.cheap_encoders"
REPOSITORY = Path(__file__).parents[3]


def settings(**changes):
    given = {"batch_size": 7, "num_workers": 1, "dtype": "float32", **changes}
    return ExtractionSettings(**given)


def extract(slides, out, encoder="Colours", magnification=None, **changes):
    chosen = settings(**changes)
    jobs = slide_jobs(slides, magnification=magnification)
    folder = ExtractionFolder.of(out, chosen.patches)
    with extraction_progress(len(jobs), show=False) as bar:
        done = extract_slides(jobs, load_encoder(f"{ENCODERS}:{encoder}"), folder, chosen, bar)
    return done, folder.features_folder(load_encoder(f"{ENCODERS}:{encoder}").name)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_embeddings_are_those_of_the_patches_at_their_coordinates(tmp_path):
    pictures = write_folder(tmp_path / "slides")
    done, folder = extract(tmp_path / "slides", tmp_path / "out")
    assert [outcome.status for outcome in done.outcomes] == ["done"] * 3
    encode = load_encoder(f"{ENCODERS}:Colours").encode
    for slide_id, pixels in pictures.items():
        with h5py.File(folder / f"{slide_id}.h5") as file:
            features, coords = file["features"][()], file["coords"][()]
            assert file["coords"].attrs["patch_size_level0"] == 256
        left, top, right, bottom = TISSUE
        grid = [(x, y) for y in range(top, bottom, 256) for x in range(left, right, 256)]
        assert coords.tolist() == [list(place) for place in grid]
        for (x, y), found in zip(grid, features, strict=True):
            patch = torch.from_numpy(pixels[y : y + 256, x : x + 256].copy())[None]
            np.testing.assert_allclose(found, encode(patch)[0].numpy(), atol=1e-6)
    assert len(read_bags(folder)) == 3


def test_lower_magnification_is_read_from_the_level_made_for_it(tmp_path):
    (tmp_path / "slides").mkdir()
    pixels = write_slide(tmp_path / "slides" / "a.tiff")
    patches = PatchSettings(size=64, magnification=10.0)
    _, folder = extract(tmp_path / "slides", tmp_path / "out", patches=patches)
    with h5py.File(folder / "a.h5") as file:
        features, coords = file["features"][()], file["coords"][()]
    assert len(coords) == 12 * 8
    for (x, y), found in zip(coords[::17].tolist(), features[::17], strict=True):
        square = pixels[y : y + 128, x : x + 128].reshape(64, 2, 64, 2, 3).astype(float)
        patch = torch.from_numpy(square.mean(axis=(1, 3)).round().astype(np.uint8))[None]
        expected = load_encoder(f"{ENCODERS}:Colours").encode(patch)[0].numpy()
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_second_run_keeps_everything(tmp_path):
    write_folder(tmp_path / "slides")
    _, folder = extract(tmp_path / "slides", tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    done, _ = extract(tmp_path / "slides", tmp_path / "out")
    assert [(o.status, o.num_patches) for o in done.outcomes] == [("kept", 24)] * 3
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_slide_that_fails_does_not_stop_the_others(tmp_path):
    write_folder(tmp_path / "slides")
    (tmp_path / "slides" / "no slide.svs").write_bytes(b"PK\x03\x04 a zip")
    whole = (tmp_path / "slides" / "slide 1.é.tiff").read_bytes()
    (tmp_path / "slides" / "slide 1.é.tiff").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "slides" / "zero.svs").touch()
    done, folder = extract(tmp_path / "slides", tmp_path / "out")
    states = {outcome.slide_id: outcome for outcome in done.outcomes}
    assert {name for name, o in states.items() if o.status == "done"} == {"slide 0.é", "slide 2.é"}
    for name in ("no slide", "slide 1.é", "zero"):
        assert states[name].status == "failed"
        assert states[name].reason.endswith(".")
        assert name in states[name].reason
    assert sorted(path.name for path in folder.iterdir()) == ["slide 0.é.h5", "slide 2.é.h5"]


def test_a_slide_without_tissue_has_an_empty_valid_file(tmp_path):
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "glass.tiff", tissue=None)
    done, folder = extract(tmp_path / "slides", tmp_path / "out")
    assert done.outcomes[0].status == "empty"
    with h5py.File(folder / "glass.h5") as file:
        assert file["features"].shape == (0, 6)
        assert file["coords"].shape == (0, 2)
        assert file["features"].attrs["encoder"] == "Colours"


def test_edited_contours_are_taken(tmp_path):
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "a.tiff")
    extract(tmp_path / "slides", tmp_path / "out")
    contours = tmp_path / "out" / "contours_geojson" / "a.geojson"
    content = json.loads(contours.read_text())
    square = [[256, 256], [768, 256], [768, 512], [256, 512], [256, 256]]
    content["features"][0]["geometry"]["coordinates"] = [square]
    contours.write_text(json.dumps(content))
    done, folder = extract(tmp_path / "slides", tmp_path / "out")
    assert done.outcomes[0].status == "done"
    assert "contours were edited" in done.outcomes[0].notes[0]
    with h5py.File(folder / "a.h5") as file:
        assert file["coords"][()].tolist() == [[256, 256], [512, 256]]
    done, _ = extract(tmp_path / "slides", tmp_path / "out")
    assert done.outcomes[0].status == "kept"


def test_coordinates_of_another_tool_are_taken(tmp_path):
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "a.tiff")
    folder = tmp_path / "out" / "20x_256px_0px_overlap" / "patches"
    folder.mkdir(parents=True)
    with h5py.File(folder / "a_patches.h5", "w") as file:
        file["coords"] = np.array([[300, 300], [700, 500]])
        file["coords"].attrs.update(
            {"patch_size": 256, "patch_size_level0": 256, "level0_magnification": 20}
        )
        file["coords"].attrs.update({"target_magnification": 20, "overlap": 0, "name": "a"})
    _, features = extract(tmp_path / "slides", tmp_path / "out")
    with h5py.File(features / "a.h5") as file:
        assert file["coords"][()].tolist() == [[300, 300], [700, 500]]


def one_slide(tmp_path, **options):
    (tmp_path / "slides").mkdir()
    return write_slide(tmp_path / "slides" / "a.tiff", **options)


def attribute(folder, name):
    with h5py.File(folder / "a.h5") as file:
        return file["coords"].attrs[name]


def test_a_corrected_magnification_is_taken(tmp_path):
    one_slide(tmp_path, mpp=None)
    places = tmp_path / "slides", tmp_path / "out"
    _, folder = extract(*places, magnification=40.0)
    assert attribute(folder, "patch_size_level0") == 512
    done, _ = extract(*places, magnification=20.0)
    assert "another magnification is given now" in done.outcomes[0].notes[0]
    assert attribute(folder, "patch_size_level0") == 256
    for again in (20.0, None):  # what was said once stands
        done, _ = extract(*places, magnification=again)
        assert done.outcomes[0].status == "kept"


def test_another_slide_under_the_same_name_is_extracted(tmp_path):
    one_slide(tmp_path)
    extract(tmp_path / "slides", tmp_path / "out")
    write_slide(tmp_path / "slides" / "a.tiff", seed=5, tissue=(512, 512, 1024, 1024))
    done, _ = extract(tmp_path / "slides", tmp_path / "out")
    assert "slide file has changed" in done.outcomes[0].notes[0]
    assert done.outcomes[0].num_patches == 4


def test_another_number_type_is_extracted_again(tmp_path):
    one_slide(tmp_path)
    extract(tmp_path / "slides", tmp_path / "out", dtype="float16")
    _, folder = extract(tmp_path / "slides", tmp_path / "out", dtype="float32")
    with h5py.File(folder / "a.h5") as file:
        assert file["features"].dtype == np.float32


@pytest.mark.parametrize("damage", ["features", "rows", "coords"])
def test_damaged_files_are_made_again(tmp_path, damage):
    one_slide(tmp_path)
    _, folder = extract(tmp_path / "slides", tmp_path / "out")
    whole = (folder / "a.h5").read_bytes()
    coords = folder.parent / "patches" / "a_patches.h5"
    stored = coords.read_bytes()
    if damage == "features":
        (folder / "a.h5").write_bytes(whole[:500])
    elif damage == "rows":
        with h5py.File(folder / "a.h5", "r+") as file:
            file["features"].resize(3, axis=0)
    else:
        (folder / "a.h5").unlink()
        coords.write_bytes(stored[:500])
    done, _ = extract(tmp_path / "slides", tmp_path / "out")
    assert done.outcomes[0].status == "done"
    assert (folder / "a.h5").read_bytes() == whole
    assert coords.read_bytes() == stored


def test_coordinates_on_disk_are_those_of_the_embeddings(tmp_path):
    one_slide(tmp_path)
    _, folder = extract(tmp_path / "slides", tmp_path / "out")
    coords = folder.parent / "patches" / "a_patches.h5"
    stored = coords.read_bytes()
    coords.unlink()
    done, _ = extract(tmp_path / "slides", tmp_path / "out")
    assert done.outcomes[0].status == "kept"
    assert coords.read_bytes() == stored


@pytest.mark.parametrize(
    ("size", "place", "expected"),
    [(512, (0, 0), "are of 512 px"), (256, (3000, 3000), r"one at \(3000, 3000\)")],
)
def test_coordinates_that_do_not_fit_fail_their_slide_alone(tmp_path, size, place, expected):
    write_folder(tmp_path / "slides", num_slides=2)
    folder = tmp_path / "out" / "20x_256px_0px_overlap" / "patches"
    folder.mkdir(parents=True)
    with h5py.File(folder / "slide 0.é_patches.h5", "w") as file:
        file["coords"] = np.array([place])
        file["coords"].attrs.update({"patch_size": size, "patch_size_level0": size})
    done, _ = extract(tmp_path / "slides", tmp_path / "out")
    assert [outcome.status for outcome in done.outcomes] == ["failed", "done"]
    assert re.search(expected, done.outcomes[0].reason)


def test_an_encoder_that_fails_on_a_slide_fails_it_alone(tmp_path):
    write_folder(tmp_path / "slides", num_slides=3)
    done, folder = extract(tmp_path / "slides", tmp_path / "out", "NotANumberAtFirst")
    assert [outcome.status for outcome in done.outcomes] == ["failed", "done", "done"]
    assert "finite" in done.outcomes[0].reason
    assert len(list(folder.iterdir())) == 2


def test_tissue_without_a_whole_patch_is_told_from_no_tissue(tmp_path):
    one_slide(tmp_path)
    done, _ = extract(tmp_path / "slides", tmp_path / "out", patches=PatchSettings(size=1600))
    assert done.outcomes[0].status == "empty"
    assert "no whole patch" in done.outcomes[0].notes[0]


def test_embeddings_of_another_encoder_are_not_mixed_in(tmp_path, monkeypatch):
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "a.tiff")
    extract(tmp_path / "slides", tmp_path / "out")
    monkeypatch.setattr(Colours, "mean", (0.0, 0.0, 0.0), raising=False)
    monkeypatch.setattr(Colours, "std", (1.0, 1.0, 1.0), raising=False)
    with pytest.raises(ExtractionError, match="another transform or another precision"):
        extract(tmp_path / "slides", tmp_path / "out")
    done, _ = extract(tmp_path / "slides", tmp_path / "out", overwrite=True)
    assert done.outcomes[0].status == "done"


def test_placing_alone_writes_no_embeddings(tmp_path):
    write_folder(tmp_path / "slides")
    (tmp_path / "slides" / "zero.svs").touch()
    chosen = settings()
    folder = ExtractionFolder.of(tmp_path / "out", chosen.patches)
    jobs = slide_jobs(tmp_path / "slides")
    with extraction_progress(len(jobs), show=False) as bar:
        outcomes = place_patches_of(jobs, folder, chosen, bar)
    assert [(o.status, o.num_patches) for o in outcomes] == [("done", 24)] * 3 + [("failed", 0)]
    for slide_id in ("slide 0.é", "slide 1.é", "slide 2.é"):
        assert folder.contours(slide_id).exists()
        assert folder.preview(slide_id).exists()
        assert folder.coords(slide_id).exists()
    assert not list(folder.patches_folder.glob("features_*"))


def command(slides, out, encoder="SlowColours", **held):
    arguments = ["extract", slides, "--out", out, "--encoder", f"{ENCODERS}:{encoder}"]
    arguments += ["--batch-size", "4", "--workers", "2", "--patch-size", "128"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **held}
    return subprocess.Popen(
        [sys.executable, "-m", "sgpmil", *map(str, arguments)],
        env=environment,
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def extract_whole(tmp_path, encoder):
    """What the command should write, in one go and with batches of another size."""
    patches, out = PatchSettings(size=128), tmp_path / "whole"
    _, folder = extract(
        tmp_path / "slides", out, encoder, patches=patches, dtype="float16", num_workers=2
    )
    return contents(folder)


def start_and_hold(tmp_path, folder, after):
    """Start the command, and wait until it is in the middle of a slide."""
    held_by, is_held = tmp_path / "held by", tmp_path / "held"
    held_by.touch()
    is_held.unlink(missing_ok=True)
    held = {"HELD_BY": str(held_by), "HELD_AFTER": str(after), "HELD_IN": str(folder)}
    process = command(tmp_path / "slides", tmp_path / "out", "HeldColours", **held)
    wait_until(is_held.exists, process)
    return process, held_by


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_the_middle_and_run_again_gives_the_same_bytes(tmp_path, stop):
    write_folder(tmp_path / "slides")
    whole = extract_whole(tmp_path, "HeldColours")
    folder = tmp_path / "out" / "20x_128px_0px_overlap" / "features_HeldColours"
    for after in (0, 1):
        stopped, _ = start_and_hold(tmp_path, folder, after)
        if stop == signal.SIGKILL:
            stopped.kill()
        else:
            os.killpg(stopped.pid, stop)
        _, error = stopped.communicate(timeout=HANGS_S)
        if stop == signal.SIGINT:
            assert stopped.returncode == 130, error
            assert "Interrupted" in error
            assert "Traceback" not in error
            assert not list(folder.glob(".*"))
    again = command(tmp_path / "slides", tmp_path / "out", "HeldColours")
    _, error = again.communicate(timeout=HANGS_S)
    assert again.returncode == 0, error
    assert contents(folder) == whole


def test_two_processes_share_a_folder(tmp_path, monkeypatch):
    write_folder(tmp_path / "slides", num_slides=5)
    both = [command(tmp_path / "slides", tmp_path / "out") for _ in range(2)]
    printed = [process.communicate(timeout=HANGS_S) for process in both]
    # One may end while the other is still at work on the last slides, and says so.
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, 1]), printed
    assert (codes == [0, 1]) == any("Not complete:" in text for text, _ in printed)
    relative = Path("20x_128px_0px_overlap") / "features_SlowColours"
    monkeypatch.setattr(cheap_encoders, "time", SimpleNamespace(sleep=lambda _: None))
    assert contents(tmp_path / "out" / relative) == extract_whole(tmp_path, "SlowColours")


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the processes in /proc")
def test_a_process_that_dies_costs_nothing(tmp_path):
    write_folder(tmp_path / "slides")
    folder = tmp_path / "out" / "20x_128px_0px_overlap" / "features_HeldColours"
    process, held_by = start_and_hold(tmp_path, folder, 0)
    threads = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = [child for thread in threads for child in thread.read_text().split()]
    readers = [
        int(child)
        for child in children
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()
    ]
    os.kill(readers[0], signal.SIGKILL)
    held_by.unlink()
    printed, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 0, error
    assert len(list(folder.glob("slide*.h5"))) == 3
    assert "failed" not in printed


def test_only_what_was_begun_for_this_file_is_removed(tmp_path):
    for name in (".a[1].h5.0123abcd.tmp", ".a1.h5.0123abcd.tmp", "a[1].h5", ".a[1].h5"):
        (tmp_path / name).touch()
    encoding_module._remove_leftovers(tmp_path / "a[1].h5")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".a1.h5.0123abcd.tmp",
        ".a[1].h5",
        "a[1].h5",
    ]
