import csv
import re
from urllib.parse import unquote

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

pytest.importorskip("shapely", reason="pip install '.[slides]'")

from sgpmil.report.pages.run_report import RunReport
from tests.report.pages.reported_run import ReadPage, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return write_run(folder / "run", folder / "features", folder / "slides")


def test_a_run_becomes_a_page_and_cases(sgpmil, run, tmp_path):
    out = tmp_path / "out" / "page.html"
    slides = run.parent / "slides"
    arguments = ("report", run, "--out", out, "--bootstrap", 20, "--slides", slides)
    code, said, _ = sgpmil(*arguments, "--mpp", 0.5, "--case", "f0 s00", "--case", "f1 s03")
    assert code == 0
    assert "page.html" in said
    assert "Case reports of 2 slides" in said
    page = ReadPage(out.read_text(encoding="utf-8"))
    assert page.problems == []
    written = sorted(file.name for file in (out.parent / "cases").iterdir())
    assert written == [
        f"{slide}.{kind}" for slide in ("f0 s00", "f1 s03") for kind in ("html", "pdf")
    ]
    # What is needed to write it again stands on it.
    command = f"sgpmil report {run} --out {out} --slides {slides} --mpp 0.5 --bootstrap 20"
    assert f"{command} --overwrite" in page.text

    code, _, err = sgpmil(*arguments)
    assert code == 2
    assert "exists already. Replace it with --overwrite" in err


def linked_cases(page):
    text = page.read_text(encoding="utf-8")
    return {unquote(link) for link in re.findall(r'href="cases/([^"]+)\.html"', text)}


def test_cases_are_added_to_a_page(sgpmil, tmp_path):
    path = tmp_path / "new.csv"
    names = ["a", "b & c", "d#e", "f"]
    rows = [f"{name},{i % 2},0.{2 + i},0.{8 - i}" for i, name in enumerate(names)]
    path.write_text("\n".join(["slide_id,label,p_0,p_1", *rows]))
    out = tmp_path / "report.html"
    report = ("report", path, "--out", out, "--bootstrap", 0)
    assert sgpmil(*report)[0] == 0
    before = out.read_text(encoding="utf-8")
    assert linked_cases(out) == set()

    code, said, _ = sgpmil(*report, "--case", "b & c", "--case", "a")
    assert code == 0
    assert "Case reports of 2 slides" in said
    assert "is else as it was" in said
    assert linked_cases(out) == {"a", "b & c"}
    # Without the links, it is the page that it was.
    text = re.sub(r'<p class="cases">.*?</p>', "", out.read_text(encoding="utf-8"), flags=re.DOTALL)
    plain = re.sub(r'<a href="cases/[^"]*">(.*?)</a>', r"\1", text)
    assert plain == before.replace('<p class="cases" hidden></p>', "")

    first = tmp_path / "cases" / "a.pdf"
    first.write_text("mine")
    code, said, _ = sgpmil(*report, "--case", "a", "--case", "f")
    assert code == 0
    assert "a has a case report already" in said
    assert first.read_text() == "mine"
    assert linked_cases(out) == {"a", "b & c", "f"}

    # A slide whose report was cut short is written whole.
    (tmp_path / "cases" / "f.pdf").unlink()
    assert sgpmil(*report, "--case", "f")[0] == 0
    assert (tmp_path / "cases" / "f.pdf").exists()

    # All of it is written again: the page, and every case report that is there.
    code, said, _ = sgpmil(*report, "--case", "d#e", "--overwrite")
    assert code == 0
    assert "Case reports of 4 slides" in said
    assert first.read_bytes().startswith(b"%PDF")
    assert linked_cases(out) == set(names)


def test_all_cases(sgpmil, tmp_path):
    path = tmp_path / "new.csv"
    names = ["a", "b & c", "d#e"]
    rows = [f"{name},{i % 2},0.{2 + i},0.{8 - i}" for i, name in enumerate(names)]
    path.write_text("\n".join(["slide_id,label,p_0,p_1", *rows]))
    out = tmp_path / "report.html"
    code, said, _ = sgpmil("report", path, "--out", out, "--bootstrap", 0, "--cases", "all")
    assert code == 0
    assert "Case reports of 3 slides" in said
    written = {file.name for file in (tmp_path / "cases").iterdir()}
    assert written == {f"{name}.{kind}" for name in names for kind in ("html", "pdf")}
    links = re.findall(r'href="(cases/[^"]+)"', out.read_text(encoding="utf-8"))
    assert {unquote(link) for link in links} == {f"cases/{name}.html" for name in names}


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, "1 of its checks is a warning: look at it first."), (2, "2 of its checks are warnings")],
)
def test_warnings_are_counted(sgpmil, tmp_path, monkeypatch, count, said):
    monkeypatch.setattr(RunReport, "num_warnings", count)
    path = tmp_path / "new.csv"
    path.write_text("slide_id,label,p_0,p_1\na,0,0.6,0.4\nb,1,0.3,0.7\n")
    code, out, _ = sgpmil("report", path, "--bootstrap", 0)
    assert code == 0
    assert said in " ".join(out.split())


def test_predictions_of_another_system(sgpmil, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 30)
    p = np.clip(0.3 * labels + rng.uniform(0, 0.7, 30), 0, 1).round(6)
    path = tmp_path / "other.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "label", "p_0", "p_1"])
        writer.writerows(
            [f"a/{i:04d}", y, f"{1 - q:.6f}", f"{q:.6f}"]
            for i, (y, q) in enumerate(zip(labels, p, strict=True))
        )
    code, said, _ = sgpmil("report", path, "--case", "a/0003")
    assert code == 0
    assert "Case reports of 1 slide, HTML" in said
    page = ReadPage((tmp_path / "other-report.html").read_text(encoding="utf-8"))
    assert f"The AUC is {roc_auc_score(labels, p):.3f} (95% interval " in page.text
    assert "no prototypes" in page.text
    assert (tmp_path / "cases" / "a%2F0003.pdf").exists()
    case = ReadPage((tmp_path / "cases" / "a%2F0003.html").read_text(encoding="utf-8"))
    assert "There are no scores of patches, so there are no maps." in case.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--case", "nowhere"), "but got 'nowhere'. Its slides are"),
        (("--case", "F0 S01.svs"), "but got 'F0 S01.svs'. Did you mean 'f0 s01'?"),
        (("--case", "f0 s0l"), "Did you mean 'f0 s"),
        (("--mpp", "0"), "Expected --mpp above 0"),
        (("--coverage", "90"), "Expected --coverage between 0 and 1, but got 90"),
        (("--bootstrap", "-1"), "Expected --bootstrap of at least 0"),
        (("--regions", "tumor"), "--regions and --mask-downsample are about --annotations"),
        (("--slides", "missing"), "missing"),
        (("--cases", "some"), "some"),
    ],
)
def test_mistakes_are_one_sentence(sgpmil, run, tmp_path, options, said):
    code, _, err = sgpmil("report", run, "--out", tmp_path / "r.html", *options)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert not (tmp_path / "r.html").exists()


def test_a_place_without_a_run(sgpmil, tmp_path):
    code, _, err = sgpmil("report", tmp_path)
    assert code == 2
    assert "Expected a run or predictions" in err
