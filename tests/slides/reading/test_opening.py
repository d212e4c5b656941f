import io
import subprocess
import sys
import zipfile

import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("imagecodecs", reason="pip install '.[slides]'")
pytest.importorskip("cv2", reason="pip install '.[slides]'")

import openslide
from PIL import Image

from sgpmil.errors import MissingPartError, SlideError
from sgpmil.slides.reading import open_slide, opening

from .slide_files import BROKEN, CMU, TCGA, halves, needs_slides, picture, write_ome, write_tiff


@pytest.fixture
def pyramid():
    return halves(picture(200, 300), 3)


def kind(path):
    with open_slide(path) as slide:
        return type(slide).__name__


@needs_slides
@pytest.mark.parametrize("path", [CMU, TCGA])
def test_scanners_are_read_by_openslide(path):
    assert kind(path) == "OpenSlideFile"
    assert kind(str(path)) == "OpenSlideFile"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"compression": "jpeg"},
        {"subifds": True},
        {"compression": "jpeg2000"},
        {"tile": None},
    ],
)
def test_every_level_of_a_plain_tiff_is_seen(tmp_path, pyramid, options):
    path = write_tiff(tmp_path / "a.tif", pyramid, **options)
    with open_slide(path) as slide:
        assert [level.downsample for level in slide.levels] == [1.0, 2.0, 4.0]
        assert slide.mpp == pytest.approx(0.25)
        lossy = 60 if options.get("compression") else 0
        found = slide.read(0, 0, 300, 200).astype(int)
        assert np.abs(found - pyramid[0]).max() <= lossy


def test_ome_tiff(tmp_path, pyramid):
    physical = {"PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "µm"}
    path = write_ome(tmp_path / "a.ome.tiff", pyramid, physical=physical)
    assert openslide.OpenSlide(path).level_count == 1
    with open_slide(path) as slide:
        assert type(slide).__name__ == "TiffSlide"
        assert (len(slide.levels), slide.mpp) == (3, 0.5)
    with open_slide(write_ome(tmp_path / "b.ome.tiff", pyramid[:1], physical=physical)) as slide:
        assert (len(slide.levels), slide.mpp) == (1, 0.5)


@pytest.mark.parametrize("suffix", ["png", "jpg", "JPEG"])
def test_images(tmp_path, pyramid, suffix):
    path = tmp_path / f"a.{suffix}"
    Image.fromarray(pyramid[0]).save(path)
    assert kind(path) == "ImageSlide"


@pytest.mark.parametrize("name", ["mit Leerzeichen", "a.b.c-1.2", "größe μ 切片", "[x]*?"])
def test_odd_names(tmp_path, pyramid, name):
    for suffix, options in ((".tif", {}), (".tiff", {"subifds": True}), (".png", None)):
        path = tmp_path / (name + suffix)
        if options is None:
            Image.fromarray(pyramid[0]).save(path)
        else:
            write_tiff(path, pyramid, **options)
        with open_slide(path) as slide:
            assert slide.slide_id == name
            np.testing.assert_array_equal(slide.read(5, 7, 30, 20), pyramid[0][7:27, 5:35])


def zipped():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.svs", "pixels")
    return stream.getvalue()


def saved(form):
    stream = io.BytesIO()
    Image.fromarray(picture(20, 20)).save(stream, form)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.svs", b"", "the file is empty (0 bytes)"),
        ("a.png", b"", "the file is empty (0 bytes)"),
        ("a.svs", zipped(), "its content is a zip archive"),
        ("a.ndpi", b"\x1f\x8b\x08" + bytes(99), "its content is a gzip archive"),
        ("a.svs", b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ("a.svs", b"<!DOCTYPE html><html>", "its content is a web page"),
        ("a.svs", saved("PNG"), "its content is a PNG image"),
        ("a.tif", saved("JPEG"), "its content is a JPEG image"),
        ("a.png", saved("TIFF"), "its content is a TIFF"),
        ("a.jpg", b"no image", "of no slide format (it begins with b'no image')"),
        ("a.svs", b"\0" * 5000, "of no slide format"),
        ("a.tif", b"II*\0" + bytes(4), "there is none"),
        ("a.tif", b"II*\0\xff\xff\0\0", "the file is cut short"),
        ("a.mrxs", saved("JPEG"), "the folder"),
        ("a.txt", b"text", "Expected a slide file (.svs, "),
        ("a", b"text", "Expected a slide file (.svs, "),
    ],
)
def test_what_is_no_slide(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SlideError) as caught:
        open_slide(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_slides
def test_the_broken_slide():
    with pytest.raises(SlideError, match=r"broken\.svs', but its content is of no slide format"):
        open_slide(BROKEN)


def test_paths_that_are_no_files(tmp_path):
    with pytest.raises(SlideError, match=r"absent\.svs', but there is no such file"):
        open_slide(tmp_path / "absent.svs")
    with pytest.raises(SlideError, match="got a folder without DICOM files"):
        open_slide(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(SlideError, match=r"a\.svs', but it cannot be read \(Not a directory\)"):
        open_slide(tmp_path / "file" / "a.svs")


@needs_slides
@pytest.mark.parametrize("path", [CMU, TCGA])
@pytest.mark.parametrize("part", [0.001, 0.5, 0.99])
def test_real_slides_cut_short(tmp_path, path, part):
    content = path.read_bytes()
    cut = tmp_path / "a.svs"
    cut.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(SlideError, match=r"a\.svs', but got .*: the file is cut short"):
        open_slide(cut)


@pytest.mark.parametrize("subifds", [False, True])
@pytest.mark.parametrize("part", [0.3, 0.8, 0.999])
def test_a_pyramid_cut_short_is_not_taken_for_a_smaller_one(tmp_path, pyramid, subifds, part):
    content = write_tiff(tmp_path / "a.tif", pyramid, subifds=subifds).read_bytes()
    cut = tmp_path / "b.tif"
    cut.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(SlideError, match=r"b\.tif', but got .*: the file is cut short"):
        open_slide(cut)


def test_a_scanners_file_that_openslide_refuses(tmp_path, pyramid):
    words = "Aperio Image Library v1\r\n300x200 (64x64)|AppMag = 40|MPP = 0.2525|Filename = a"
    path = write_tiff(
        tmp_path / "a.svs", pyramid, mpp=None, description=words, compression="jpeg2000"
    )
    assert openslide.OpenSlide.detect_format(path) == "aperio"
    with open_slide(path) as slide:
        assert type(slide).__name__ == "TiffSlide"
        assert (slide.mpp, slide.objective, len(slide.levels)) == (0.2525, 40.0, 3)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 500])
    with pytest.raises(SlideError, match="cut short"):
        open_slide(path)
    odd = {"photometric": "cielab", "compression": "jpeg2000"}
    write_tiff(path, [pyramid[0]], description=words, **odd)
    with pytest.raises(SlideError, match=r"OpenSlide reads in .*a\.svs.*compression: 34712"):
        open_slide(path)


def test_what_neither_reads_is_said_by_the_one_that_knows(tmp_path):
    path = write_tiff(tmp_path / "a.tif", [np.zeros((64, 64, 3), np.float32)])
    with pytest.raises(SlideError, match="RGB of 3 × float32"):
        open_slide(path)


def test_what_only_openslide_decodes(tmp_path, pyramid):
    cielab = write_tiff(tmp_path / "a.tif", [pyramid[0]], photometric="cielab")
    with open_slide(cielab) as slide:
        assert type(slide).__name__ == "OpenSlideFile"


def test_a_folder_of_dicom_is_opened_by_its_largest_file(tmp_path, monkeypatch):
    folder = tmp_path / "1.2.840"
    folder.mkdir()
    for name, size in (("a.dcm", 10), ("b.DCM", 30), ("c.dcm", 20), ("d.txt", 90)):
        (folder / name).write_bytes(bytes(size))
    with pytest.raises(SlideError, match=r"b\.DCM"):
        open_slide(folder)
    with open_slide(write_tiff(tmp_path / "a.tif", [picture(64, 64)])) as stand_in:
        opened = []
        monkeypatch.setattr(
            opening, "OpenSlideFile", lambda *paths: opened.append(paths) or stand_in
        )
        open_slide(folder)
    assert opened == [(folder, folder / "b.DCM")]


def test_without_the_part(tmp_path, pyramid, monkeypatch):
    path = write_tiff(tmp_path / "a.tif", pyramid)
    monkeypatch.setitem(sys.modules, "openslide", None)
    with pytest.raises(MissingPartError, match=r"'openslide'.*pip install .*\[slides\]'"):
        open_slide(path)


def test_importing_the_room_loads_nothing_of_it():
    code = (
        "import sys, sgpmil.slides.reading;"
        "heavy = {'openslide', 'tifffile', 'imagecodecs', 'cv2'} & set(sys.modules);"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
