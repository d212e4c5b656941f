import pytest

pytest.importorskip("cv2", reason="pip install '.[slides]'")

from sgpmil.errors import SlideError
from sgpmil.slides.extraction.jobs import SlideJob, slide_jobs
from tests.slides.extraction.drawn_files import picture
from tests.slides.tissue.drawn_slides import DrawnSlide


def slide(**stated):
    return DrawnSlide(picture(0), **stated)


def test_what_is_said_of_all_slides_counts_where_the_file_is_silent(tmp_path):
    job = SlideJob(tmp_path / "a.svs", unstated_mpp=0.25)
    assert job.resolution(slide()).mpp == 0.25
    assert job.resolution(slide()).source == "given"
    assert job.resolution(slide(mpp=0.5)).mpp == 0.5
    assert job.resolution(slide(objective=20.0)).magnification == 20.0


def test_what_is_said_of_one_slide_counts_most(tmp_path):
    job = SlideJob(tmp_path / "a.svs", mpp=0.25, unstated_mpp=1.0)
    assert job.resolution(slide()).mpp == 0.25
    with pytest.warns(UserWarning, match="was given"):
        assert job.resolution(slide(mpp=0.5)).mpp == 0.25


def test_it_is_never_guessed(tmp_path):
    with pytest.raises(SlideError, match="`slide_mag`"):
        SlideJob(tmp_path / "a.svs").resolution(slide())


def test_slides_of_a_folder_a_file_and_a_table(tmp_path):
    for name in ("b.two.svs", "a.tiff", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    assert [job.slide_id for job in slide_jobs(tmp_path)] == ["a", "b.two"]
    (job,) = slide_jobs(tmp_path / "a.tiff", magnification=40.0)
    assert (job.slide_id, job.unstated_magnification) == ("a", 40.0)
    table = tmp_path / "list.csv"
    table.write_text("wsi,mpp\nb.two.svs,0.25\n")
    (job,) = slide_jobs(tmp_path, slide_list=table, mpp=1.0)
    assert (job.slide_id, job.mpp, job.unstated_mpp) == ("b.two", 0.25, 1.0)
