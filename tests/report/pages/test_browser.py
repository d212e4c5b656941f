import re
from pathlib import Path

import pytest

from sgpmil.report.pages.case_page import write_case
from sgpmil.report.pages.case_report import CaseReports

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="Chromium is not at /usr/bin/chromium"),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install '.[dev]'")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def case_page(run_material, tmp_path_factory):
    case = CaseReports(run_material).of("f0 s02")
    return write_case(tmp_path_factory.mktemp("cases"), case)[0]


class Visit:
    """A page in the browser, with all that it complained of and asked for."""

    def __init__(self, browser, path, width=1280, *, javascript=True, dark=False):
        scheme = "dark" if dark else "light"
        self.context = browser.new_context(
            viewport={"width": width, "height": 900},
            java_script_enabled=javascript,
            color_scheme=scheme,
        )
        self.page = self.context.new_page()
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.complaints.append(request.url))
        self.page.goto(path.as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("which", ["run_page", "case_page"])
def test_the_page_loads_from_disk_alone(browser, which, width, request):
    path = request.getfixturevalue(which)
    with Visit(browser, path, width) as visit:
        visit.page.wait_for_load_state("load")
        widths = visit.page.eval_on_selector_all(
            "img", "images => images.map(image => image.naturalWidth)"
        )
        assert len(widths) > 5
        assert min(widths) > 0
        sideways = visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert sideways <= 0
        assert visit.page.locator("h1").count() == 1
        assert visit.page.locator("h2").count() >= 3
        assert visit.complaints == []
        assert {url.split(":", 1)[0] for url in visit.requests} <= {"file", "data"}
        assert [url for url in visit.requests if url.startswith("file")] == [path.as_uri()]


def test_every_link_within_the_page_leads_somewhere(browser, run_page):
    with Visit(browser, run_page) as visit:
        links = visit.page.eval_on_selector_all(
            "nav a", "links => links.map(link => link.getAttribute('href'))"
        )
        assert len(links) == 13
        for link in links:
            assert visit.page.locator(link).count() == 1, link


def test_the_list_of_slides_is_sorted_by_a_click(browser, run_page):
    with Visit(browser, run_page) as visit:
        details = visit.page.locator("section:has(#all-slides) details")
        details.locator("summary").click()
        button = details.locator("th button", has_text="Probability")
        button.click()
        column = details.locator("tbody tr td:nth-child(7)")
        numbers = [float(text) for text in column.all_inner_texts()]
        assert numbers == sorted(numbers)
        button.click()
        numbers = [float(text) for text in column.all_inner_texts()]
        assert numbers == sorted(numbers, reverse=True)
        details.locator("th button", has_text="Slide").click()
        names = details.locator("tbody tr td:nth-child(1)").all_inner_texts()
        assert names == sorted(names)
        assert visit.complaints == []


def test_it_is_read_without_scripts_and_in_the_dark(browser, run_page):
    with Visit(browser, run_page, javascript=False, dark=True) as visit:
        assert visit.page.locator("h2", has_text="Calibration").is_visible()
        ground, ink = (
            re.findall(r"\d+", visit.page.locator("body").evaluate(f"b => getComputedStyle(b).{c}"))
            for c in ("backgroundColor", "color")
        )
        assert max(map(int, ground[:3])) < 60 < 180 < min(map(int, ink[:3]))


@pytest.mark.parametrize("width", [800, 900, 1280])
def test_a_case_is_laid_out_without_overflow(browser, case_page, width):
    with Visit(browser, case_page, width) as visit:
        room = visit.page.locator(".columns > section").first.bounding_box()
        table = visit.page.locator("table.classes").bounding_box()
        assert table["x"] + table["width"] <= room["x"] + room["width"] + 0.5
        whole = visit.page.locator("main > section").bounding_box()
        maps = visit.page.locator("figure img").bounding_box()
        assert maps["width"] == pytest.approx(whole["width"], abs=1)
        for tiles in visit.page.locator("ul.tiles").all():
            tops = {tile.bounding_box()["y"] for tile in tiles.locator("li").all()}
            assert len(tops) == 1  # seven at most, in one row


def test_a_case_prints_on_one_page(browser, case_page, tmp_path):
    with Visit(browser, case_page) as visit:
        visit.page.pdf(path=tmp_path / "case.pdf", prefer_css_page_size=True)
    content = (tmp_path / "case.pdf").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", content)) == 1
