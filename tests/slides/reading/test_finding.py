from pathlib import Path

import pytest

from sgpmil.errors import SlideError
from sgpmil.slides.reading import find_slides, is_slide_file

NAMES = ["b.svs", "a.SVS", "TCGA-1.2.3.tif", "mit Leerzeichen.ndpi", "größe μ.png", "z.JPEG"]


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_slides_by_their_suffix_in_order(tmp_path):
    touch(tmp_path, *NAMES, "labels.csv", ".b2.svs", "._b.svs", "svs", "sub/c.svs", ".x/d.svs")
    assert find_slides(tmp_path) == [tmp_path / name for name in sorted(NAMES)]
    deep = find_slides(str(tmp_path), recursive=True)
    assert deep == sorted([*(tmp_path / name for name in NAMES), tmp_path / "sub" / "c.svs"])


def test_a_link_to_a_slide_that_is_gone_is_not_passed_over(tmp_path):
    (tmp_path / "a.svs").symlink_to(tmp_path / "gone.svs")
    assert find_slides(tmp_path) == [tmp_path / "a.svs"]


def test_two_slides_of_one_name(tmp_path):
    touch(tmp_path, "a.b.svs", "a.b.tif")
    with pytest.raises(SlideError, match=r"a\.b\.svs' and '.*a\.b\.tif' are both 'a\.b'"):
        find_slides(tmp_path)
    touch(tmp_path / "x", "1/a.svs", "2/a.svs")
    with pytest.raises(SlideError, match=r"1.a\.svs' and '.*2.a\.svs' are both 'a'"):
        find_slides(tmp_path / "x", recursive=True)


def test_no_slides(tmp_path):
    with pytest.raises(SlideError, match=r"slides in .*but there are none \(its subfolders were"):
        find_slides(tmp_path)
    with pytest.raises(SlideError, match=r"but there are none\. Slides end in \.svs, "):
        find_slides(tmp_path, recursive=True)
    with pytest.raises(SlideError, match=r"folder of slides at .*, but there is none"):
        find_slides(tmp_path / "absent")
    touch(tmp_path, "a.svs")
    with pytest.raises(SlideError, match="but there is a file"):
        find_slides(tmp_path / "a.svs")


def test_a_folder_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(SlideError, match=r"cannot be read .*Permission denied.*permissions"):
        find_slides(tmp_path)


def test_a_folder_of_dicom_files_is_a_slide(tmp_path):
    touch(tmp_path, "1.2.840/1.dcm", "1.2.840/2.dcm", "b/one.dcm", "c.svs", "sub/deeper/3.dcm")
    assert find_slides(tmp_path) == [tmp_path / "1.2.840", tmp_path / "b", tmp_path / "c.svs"]
    assert tmp_path / "sub" / "deeper" in find_slides(tmp_path, recursive=True)
    with pytest.raises(SlideError, match="folder of its own, but got 2 files"):
        find_slides(tmp_path / "1.2.840")
    assert find_slides(tmp_path / "b") == [tmp_path / "b" / "one.dcm"]


def test_parts_of_a_slide_are_no_slides(tmp_path):
    touch(tmp_path, "a.mrxs", "a/Data0000.dat", "a/Slidedat.ini")
    touch(tmp_path, "b.vms", "b.jpg", "b(1,0).jpg", "b_map2.jpg")
    found = [tmp_path / "a.mrxs", tmp_path / "b.vms"]
    assert find_slides(tmp_path, recursive=True) == found


@pytest.mark.parametrize("name", ["a.svs", "a.Tiff", "a b.ome.tif", "é.jpeg", "x.y.z.PNG"])
def test_slide_files(name):
    assert is_slide_file(name)
    assert not is_slide_file("." + name)
    assert not is_slide_file(name + ".part")
