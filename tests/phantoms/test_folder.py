import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("shapely", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("imagecodecs", reason="pip install '.[slides]'")
pytest.importorskip("openslide", reason="pip install '.[slides]'")

import openslide
import tifffile

from sgpmil.errors import MissingPartError, SettingsError, SlideError
from sgpmil.phantoms import (
    PhantomSettings,
    folder,
    make_scene,
    pyramid_file,
    render,
    write_phantom,
    write_phantoms,
)
from sgpmil.phantoms.folder import PhantomRecord, claim_folder
from tests.waiting import HANGS_S, wait_until

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


pytestmark = pytest.mark.slow

TINY = PhantomSettings(size=(800, 600), mpp=1.0, tumour_share=0.05)


def files(place):
    return sorted(str(file.relative_to(place)) for file in place.rglob("*") if file.is_file())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    out = tmp_path_factory.mktemp("phantoms") / "out"
    return write_phantoms(out, 4, TINY, seed=2, workers=1)


def test_layout_and_labels(written):
    names = [f"phantom-{number:04d}" for number in (1, 2, 3, 4)]
    expected = [
        f"{kind}/{n}.geojson" for kind in ("annotations", "regions", "tissue") for n in names
    ]
    expected += [f"slides/{name}.tiff" for name in names] + ["labels.csv", "phantoms.json"]
    assert files(written.folder) == sorted(expected)
    assert written.num_written == 4
    with written.labels.open() as table:
        rows = list(csv.DictReader(table))
    assert [row["slide_id"] for row in rows] == names
    assert [row["label"] for row in rows] == ["normal", "tumour", "normal", "tumour"]
    assert len({row["case_id"] for row in rows}) == 4


def test_slides_are_their_scenes(written):
    for slide in written.slides:
        scene = make_scene(slide.seed, slide.settings)
        assert scene.is_positive == (slide.label == "tumour")
        with openslide.OpenSlide(slide.file(written.folder)) as found:
            read = np.array(found.read_region((200, 150), 0, (400, 300)).convert("RGB"))
        assert np.abs(read.astype(int) - render(scene, 200, 150, 400, 300)).mean() < 5


def test_truth_is_read_as_annotations_of_a_folder(written):
    from sgpmil.slides.annotations import RegionRule, open_annotations

    drawn = open_annotations(written.folder / "annotations", RegionRule(positive=("Tumor",)))
    for slide in written.slides:
        found = drawn.read(slide.slide_id, slide.label)
        assert found.is_positive == (slide.label == "tumour")


def test_a_second_run_completes_what_is_missing(written, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(written.folder, copy)
    lost = written.slides[1].file(copy)
    whole = lost.read_bytes()
    lost.unlink()
    kept = written.slides[0].file(copy)
    before = kept.stat().st_mtime_ns
    again = write_phantoms(copy, 5, TINY, seed=2, workers=1)
    assert again.num_written == 2
    assert lost.read_bytes() == whole
    assert kept.stat().st_mtime_ns == before
    assert len(again.labels.read_text().splitlines()) == 6


def test_workers_write_the_same_bytes(written, tmp_path):
    parallel = write_phantoms(tmp_path / "a", 4, TINY, seed=2, workers=2)
    assert files(parallel.folder) == files(written.folder)
    for name in files(written.folder):
        assert (parallel.folder / name).read_bytes() == (written.folder / name).read_bytes()


def test_overwriting(written, tmp_path):
    write_phantoms(tmp_path / "a", 2, TINY, seed=5, workers=1)
    with pytest.raises(SlideError, match="phantoms of seed 5"):
        write_phantoms(tmp_path / "a", 2, TINY, seed=2, workers=1)
    write_phantoms(tmp_path / "a", 2, TINY, seed=2, workers=1, overwrite=True)
    name = "slides/phantom-0002.tiff"
    assert (tmp_path / "a" / name).read_bytes() == (written.folder / name).read_bytes()


def test_progress_is_told_in_lines_without_a_terminal(tmp_path, capsys):
    write_phantoms(tmp_path / "a", 2, TINY, workers=1, show_progress=True)
    assert capsys.readouterr().err.splitlines() == ["1 of 2: phantom-0001", "2 of 2: phantom-0002"]
    write_phantoms(tmp_path / "a", 2, TINY, workers=1)
    assert capsys.readouterr().err == ""


def test_no_workers(tmp_path):
    with pytest.raises(SettingsError, match="1 or more workers, but got 0"):
        write_phantoms(tmp_path / "a", 2, TINY, workers=0)
    assert not (tmp_path / "a").exists()


def test_a_missing_package_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(pyramid_file, "PACKAGES", ("no_such_package",))
    monkeypatch.setattr(folder, "PACKAGES", ("no_such_package",))
    with pytest.raises(MissingPartError, match="no_such_package"):
        write_phantoms(tmp_path / "a", 2, TINY, workers=1)
    assert not (tmp_path / "a").exists()
    with pytest.raises(MissingPartError, match="no_such_package"):
        write_phantom(tmp_path / "a.tiff", make_scene(0, TINY))


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SlideError, match=r"Could not write phantoms .* Not a directory"):
        write_phantoms(tmp_path / "file" / "a", 2, TINY, workers=1)


_SCRIPT = """
import resource, sys
from sgpmil.errors import SlideError
from sgpmil.phantoms import PhantomSettings, write_phantoms

if __name__ == "__main__":
    folder, limit, workers, side, number = sys.argv[1], *map(int, sys.argv[2:])
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        write_phantoms(folder, number, PhantomSettings(size=(side, side)), workers=workers)
    except SlideError as error:
        print(error)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(_SCRIPT)

    def hear_interrupts():
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def start(out, *, limit=0, workers=1, side=1024, number=3):
        numbers = (limit, workers, side, number)
        command = [sys.executable, str(path), str(out), *map(str, numbers)]
        return subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=hear_interrupts,
            start_new_session=True,
        )

    return start


@pytest.mark.parametrize("workers", [1, 2])
def test_a_full_disk_is_one_sentence(script, tmp_path, workers):
    # A limit on the size of files fails in the middle of a write, as a full disk does.
    with script(tmp_path / "out", limit=60_000, workers=workers) as process:
        out, err = process.communicate(timeout=HANGS_S)
    assert out.startswith(f"Could not write phantoms to '{tmp_path / 'out'}': File too large.")
    assert len(out.splitlines()) == 1
    assert "Traceback" not in err
    assert not [name for name in files(tmp_path / "out") if name.startswith("slides")]


def is_half_a_slide(place):
    try:
        return any(file.stat().st_size > 100_000 for file in place.rglob(".*.tmp"))
    except FileNotFoundError:  # it is whole now
        return False


def assert_none_is_half(out):
    assert not list(out.rglob("*.tmp"))
    # A slow test may see whole ones.
    for path in out.rglob("*.tiff"):
        with tifffile.TiffFile(path) as file:
            assert len([page.asarray() for page in file.pages]) > 1


MANY = {"workers": 2, "side": 3000, "number": 400}  # no machine is done before it is stopped


def test_an_interruption_leaves_no_half_files(script, tmp_path):
    out = tmp_path / "out"
    with script(out, **MANY) as process:
        wait_until(lambda: is_half_a_slide(out / "slides"), process)
        os.killpg(process.pid, signal.SIGINT)
        said, err = process.communicate(timeout=HANGS_S)
    assert said == "interrupted\n"
    assert "Traceback" not in err
    assert_none_is_half(out)


def test_workers_end_with_a_killed_main_process(script, tmp_path):
    out = tmp_path / "out"
    with script(out, **MANY) as process:
        wait_until(lambda: is_half_a_slide(out / "slides"), process)
        process.kill()
        # The pipes close when the last worker is gone.
        process.communicate(timeout=HANGS_S)
    assert_none_is_half(out)
