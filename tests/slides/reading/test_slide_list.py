import pytest

from sgpmil.errors import SlideError
from sgpmil.slides.reading import ListedSlide, read_slide_list


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
