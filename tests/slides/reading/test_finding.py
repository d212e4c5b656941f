from pathlib import Path

import pytest

from sgpmil.errors import SlideError
from sgpmil.slides.reading import ListedSlide, find_slides, is_slide_file, read_slide_list

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


@pytest.fixture
def slides(tmp_path):
    folder = tmp_path / "slides"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.svs", "TCGA-1.2.tif", "mit Leer ö.png", "sub/d.ndpi", "001.svs"):
        (folder / name).touch()
    return folder


def write(folder, text):
    path = folder.parent / "list.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_names_and_what_their_files_do_not_say(slides):
    path = write(
        slides, "case,wsi,MPP,mag\nx,a.svs,0.5,\ny,TCGA-1.2.tif,,40\n\nz,mit Leer ö.png,.25,40\n"
    )
    assert read_slide_list(path, slides) == (
        ListedSlide(slides / "a.svs", 0.5, None),
        ListedSlide(slides / "TCGA-1.2.tif", None, 40.0),
        ListedSlide(slides / "mit Leer ö.png", 0.25, 40.0),
    )


@pytest.mark.parametrize("column", ["wsi", "slide", "filename", "Filename"])
def test_names_of_columns(slides, column):
    path = write(slides, f"{column};magnification\n001.svs;20\nsub/d.ndpi;NaN\n")
    expected = (
        ListedSlide(slides / "001.svs", None, 20.0),
        ListedSlide(slides / "sub/d.ndpi", None, None),
    )
    assert read_slide_list(path, slides) == expected


def test_relative_to_the_table(slides):
    path = write(slides, "wsi\nslides/a.svs\n")
    assert read_slide_list(path) == (ListedSlide(slides / "a.svs"),)


def test_missing_slides_are_named(slides):
    names = "\n".join(f"gone{number}.svs" for number in range(7))
    with pytest.raises(SlideError) as caught:
        read_slide_list(write(slides, f"wsi\na.svs\n{names}\n"), slides)
    assert "7 of 8 are not there: 'gone0.svs', 'gone1.svs', " in str(caught.value)
    assert "'gone4.svs' and 2 more" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name\na.svs\n", r"column 'wsi' .*columns 'name'\. Name it 'wsi'"),
        ("wsi,mpp\n", "it lists none"),
        ("wsi,mpp\na.svs,0.5\na.svs,0.5\n", "several rows of 'a.svs'"),
        ("wsi\na.svs\n./a.svs\n", "are both 'a'"),
        ("wsi,mpp\n001.svs,.5\n,0.5\n", "row 2 has none"),
        ("wsi,mpp\n001.svs,.5\na.svs,0.5 um\n", "as mpp .*'0.5 um' in row 2"),
        ("wsi,mpp\na.svs,0\n", "got '0' in row 1"),
        ("wsi,mag\na.svs,-20\n", "as mag .*got '-20'"),
        ("wsi,mag\na.svs,inf\n", "got 'inf'"),
        ("", "empty"),
    ],
)
def test_bad_lists(slides, text, words):
    with pytest.raises(SlideError, match=words):
        read_slide_list(write(slides, text), slides)


def test_files_that_are_no_slides(slides):
    (slides / "notes.txt").touch()
    with pytest.raises(SlideError, match=r"Expected slide files .*got 'notes\.txt'"):
        read_slide_list(write(slides, "wsi\nnotes.txt\n"), slides)
    with pytest.raises(SlideError, match="no such file"):
        read_slide_list(slides / "absent.csv")
