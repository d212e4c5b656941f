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

from sgpmil.phantoms import make_scene, render, write_phantom
from sgpmil.phantoms.pyramid_file import level_sizes

from .scenes import SMALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def large_scene():
    # Neither side is a multiple of a tile, a block or the step between levels.
    return make_scene(3, replace(SMALL, size=(2603, 1531), quality=92))


@pytest.fixture(scope="module")
def slide(large_scene, tmp_path_factory):
    path = tmp_path_factory.mktemp("phantom") / "a slide.v1 ü.tiff"
    write_phantom(path, large_scene)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    with openslide.OpenSlide(path) as found:
        yield found


def test_openslide_reads_levels_and_resolution(slide):
    assert slide.level_dimensions == ((2603, 1531), (650, 382))
    assert slide.level_downsamples[1] == pytest.approx(4, rel=0.003)
    assert float(slide.properties["openslide.mpp-x"]) == pytest.approx(0.5, rel=1e-6)
    assert float(slide.properties["openslide.mpp-y"]) == pytest.approx(0.5, rel=1e-6)


def test_pixels_are_those_drawn_up_to_jpeg(slide, large_scene):
    for x, y, width, height in ((900, 500, 700, 600), (2403, 1331, 200, 200), (0, 0, 300, 300)):
        read = np.array(slide.read_region((x, y), 0, (width, height)).convert("RGB"))
        drawn = render(large_scene, x, y, width, height)
        difference = np.abs(read.astype(int) - drawn)
        assert difference.mean() < 4
        assert np.quantile(difference, 0.999) < 40
        assert np.abs(read.mean(axis=(0, 1)) - drawn.mean(axis=(0, 1))).max() < 1


def test_lower_level_is_the_mean_of_the_upper(slide, large_scene):
    drawn = render(large_scene, 0, 0, 2600, 1528).astype(float)
    means = drawn.reshape(382, 4, 650, 4, 3).mean(axis=(1, 3))
    read = np.array(slide.read_region((0, 0), 1, (650, 382)).convert("RGB")).astype(float)
    assert np.abs(read - means).mean() < 4
    assert np.abs((read - means).mean(axis=(0, 1))).max() < 1


def test_tifffile_reads_it_too(slide, large_scene):
    import tifffile

    with tifffile.TiffFile(slide._filename) as file:
        assert file.is_bigtiff
        assert [page.shape for page in file.pages] == [(1531, 2603, 3), (382, 650, 3)]
        assert [page.tile for page in file.pages] == [(256, 256), (256, 256)]
        assert [page.subfiletype for page in file.pages] == [0, 1]
        pixels = file.pages[0].asarray()[500:900, 900:1300]
    assert np.abs(pixels.astype(int) - render(large_scene, 900, 500, 400, 400)).mean() < 4


def test_same_scene_same_bytes(tmp_path, normal_scene):
    for name in ("a.tiff", "b.tiff"):
        write_phantom(tmp_path / name, normal_scene)
    assert (tmp_path / "a.tiff").read_bytes() == (tmp_path / "b.tiff").read_bytes()


def test_an_interruption_leaves_nothing_behind(tmp_path, normal_scene):
    rows = []

    def interrupt(count):
        rows.append(count)
        if len(rows) == 2:
            raise KeyboardInterrupt

    before = tmp_path / "a.tiff"
    before.write_text("what was there")
    with pytest.raises(KeyboardInterrupt):
        write_phantom(before, normal_scene, on_rows=interrupt)
    assert [file.name for file in tmp_path.iterdir()] == ["a.tiff"]
    assert before.read_text() == "what was there"
    assert rows == [512, 512]


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((2047, 2047), ((2047, 2047),)),
        ((2048, 600), ((2048, 600), (512, 150))),
        ((40_000, 40_000), ((40_000, 40_000), (10_000, 10_000), (2500, 2500), (625, 625))),
    ],
)
def test_pyramid_ends_below_2048(size, expected):
    assert level_sizes(size) == expected


_LARGE = """
import resource, sys
from dataclasses import replace
import numpy as np
from sgpmil.phantoms import PhantomSettings, make_scene, pyramid_file

def glass(scene, x, y, width, height):
    return np.full((height, width, 3), 240, np.uint8)

scene = make_scene(0, PhantomSettings(size=(1000, 1000)))
pyramid_file.render = glass
peaks = []
for side in (2048, 20000):
    large = replace(scene, settings=replace(scene.settings, size=(side, side)))
    pyramid_file.write_phantom(sys.argv[1], large)
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(peaks[1] - peaks[0])
"""


def test_memory_does_not_grow_with_the_slide(tmp_path):
    command = [sys.executable, "-c", _LARGE, str(tmp_path / "a.tiff")]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    # The picture has 1,144 MiB; a strip of it 29.
    assert float(found.stdout) < 250
    with openslide.OpenSlide(tmp_path / "a.tiff") as slide:
        assert slide.level_dimensions == ((20000, 20000), (5000, 5000), (1250, 1250))
