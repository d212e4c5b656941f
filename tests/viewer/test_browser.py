"""The pages in Debian's Chromium: everything that a pathologist does, and what axe-core finds."""

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sgpmil.viewer.server import ViewOptions, open_viewing
from sgpmil.viewer.vendor import OPENSEADRAGON, VENDOR

from .live_server import live_server

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
LOADED = "window.sgpmilStage?.image && window.sgpmilStage.isLoaded"
LAYERS = ("none", "attention", "attention_std", "evidence", "evidence_std", "novelty", "prototype")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="Chromium is not installed"),
    pytest.mark.skipif(
        not (VENDOR / OPENSEADRAGON.file).exists(),
        reason="OpenSeadragon is missing: python -m sgpmil.viewer.vendor",
    ),
]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install 'sgpmil[dev]'")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


@pytest.fixture(scope="module")
def address(viewing, options):
    for fold in ("0", "1"):
        viewing.knowledge[0].prototypes(fold)
        viewing.knowledge[0]._prototypes[fold].result()
    with live_server(viewing, options) as found:
        yield found


class Visit:
    """A page in the browser, with all that it complained of and asked for."""

    def __init__(self, browser, address, path="/", width=1440, **settings):
        height = 900 if width > 500 else 844
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, reduced_motion="reduce", **settings
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints, self.requests, self.address = [], [], address
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address + path)
        self.page.wait_for_selector("h1")

    def _hear(self, message):
        if message.type == "error":
            self.complaints.append(message.text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def until(self, expression, arg=None):
        """Wait until an expression is true; Playwright's own way needs eval, which is forbidden."""
        for _ in range(400):
            if self.page.evaluate(expression, arg):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {expression}; complaints: {self.complaints}")

    def wait_for_tiles(self):
        self.until(LOADED)

    def query(self):
        from urllib.parse import parse_qsl, urlsplit

        return dict(parse_qsl(urlsplit(self.page.url).query))

    def view(self):
        return self.page.evaluate("window.sgpmilStage.view()")

    def violations(self):
        """What axe-core finds against WCAG 2.2, A and AA."""
        # Playwright runs it in the page's world; the policy of the page holds all the same.
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
        found = self.page.evaluate(
            "tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", tags
        )
        return [
            (one["id"], [node["html"][:120] for node in one["nodes"]])
            for one in found["violations"]
        ]


def check_quiet(visit):
    assert visit.complaints == []
    assert all(url.startswith((visit.address, "data:", "blob:")) for url in visit.requests)
    assert visit.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    # Below the page is nothing; a slide on a wide window is a page of the window's height.
    below = """() => {
      const isFixed = document.querySelector(".slide-page") && innerWidth > 960;
      const end = document.querySelector("main").getBoundingClientRect().bottom + scrollY;
      const height = document.documentElement.scrollHeight;
      return height - Math.max(innerHeight, isFixed ? 0 : Math.ceil(end));
    }"""
    assert visit.page.evaluate(below) <= 0


@contextmanager
def served(options):
    viewing = open_viewing(options)
    with live_server(viewing, options) as address:
        yield address
    viewing.close()


def slide_path(name="s.1", **values):
    from urllib.parse import urlencode

    return f"/?{urlencode({'view': 'slide', 'name': name, **values})}"


def test_a_slide_is_opened_from_the_worklist_and_zoomed(browser, address):
    with Visit(browser, address) as visit:
        page = visit.page
        page.wait_for_selector("a.slide-link")
        assert page.locator("tbody tr").count() == 4
        page.locator("a.slide-link", has_text="s.1").click()
        visit.wait_for_tiles()
        before = visit.view()["zoom"]
        page.get_by_role("button", name="Zoom in").click()
        visit.until("zoom => window.sgpmilStage.view().zoom > 1.4 * zoom", arg=before)
        visit.wait_for_tiles()
        assert any("_files/" in url and url.endswith(".jpg") for url in visit.requests)
        assert page.locator(".scale-bar .length").inner_text().endswith("µm")
        box = page.locator(".openseadragon-canvas").first.bounding_box()
        page.mouse.move(box["x"] + 400, box["y"] + 300)
        page.mouse.wheel(0, -400)
        visit.until("zoom => window.sgpmilStage.view().zoom > 1.75 * zoom", arg=before)
        visit.until("new URLSearchParams(location.search).has('zoom')")
        check_quiet(visit)


def test_each_layer_is_drawn_and_its_legend_has_units(browser, address):
    with Visit(browser, address, slide_path()) as visit:
        page = visit.page
        visit.wait_for_tiles()
        kinds = page.eval_on_selector_all("input[name=layer]", "all => all.map(one => one.value)")
        assert [kind for kind in kinds if not kind.startswith("single")] == [
            kind for kind in LAYERS if kind in kinds
        ]
        assert {"attention", "attention_std", "evidence", "evidence_std", "prototype"} <= set(kinds)
        for kind in kinds:
            page.locator(f"input[value={kind}]").check()
            if kind == "none":
                visit.until("window.sgpmilStage.viewer.world.getItemCount() === 1")
                continue
            visit.until(
                "kind => window.sgpmilStage.mapImage?.source.getTileUrl(9, 0, 0).includes(kind)",
                arg=f"/{kind}/",
            )
            visit.wait_for_tiles()
            assert any(f"/{kind}/" in url for url in visit.requests), kind
            assert visit.query()["layer"] == kind
            if kind == "prototype":
                page.wait_for_selector(".swatches li:has-text('patch')")
            else:
                assert page.locator(".legend figcaption").inner_text()
                assert len(page.locator(".ticks span").all_inner_texts()) == 3
        page.locator("input[type=range]").first.fill("0.3")
        assert page.evaluate("window.sgpmilStage.mapImage.getOpacity()") == pytest.approx(0.3)
        assert page.locator(".outlines polygon:not(.halo)").count() == 1
        page.get_by_label("Opacity of lines").fill("0.5")
        assert page.locator(".outlines").get_attribute("opacity") == "0.5"
        page.keyboard.press("a")
        assert page.locator(".outlines polygon").count() == 0
        check_quiet(visit)


def test_the_picture_shows_the_chosen_map_alone(browser, address):
    """Layers and thresholds change faster than maps load, on a slow line as well."""
    with Visit(browser, address, slide_path(layer="evidence")) as visit:
        page = visit.page
        visit.wait_for_tiles()
        maps = """() => {
          const {world} = window.sgpmilStage.viewer;
          const items = Array.from({length: world.getItemCount()}, (_, i) => world.getItemAt(i));
          return items.slice(1).map(item => item.source.getTileUrl(0, 0, 0));
        }"""
        page.route("**/maps/**", lambda _: None)  # answered when the route is taken away
        added = "count => window.sgpmilStage.viewer.world.getItemCount() === count"
        for key, layer in (("2", "/attention/"), ("3", "/attention_std/")):
            page.keyboard.press(key)
            visit.until(f"layer => ({maps})().some(url => url.includes(layer))", arg=layer)
            visit.until(added, arg=3)  # the slide, the evidence that is whole, and the new map
        page.keyboard.press("1")
        visit.until(added, arg=1)
        page.unroute("**/maps/**")
        page.keyboard.press("4")
        visit.until(f"() => ({maps})().length === 1 && ({maps})()[0].includes('/evidence/')")
        visit.wait_for_tiles()
        check_quiet(visit)


def test_a_map_lies_on_its_patches_to_the_pixel(browser, address, viewing, case):
    """Draw the attention alone, fully opaque, and look at the pixels of the page itself."""
    with Visit(browser, address, slide_path(layer="attention", opacity=1, least=0)) as visit:
        page = visit.page
        visit.wait_for_tiles()
        page.evaluate("window.sgpmilStage.show({x: 1024, y: 768, zoom: 0.5})")
        page.evaluate("window.sgpmilStage.image.setOpacity(0)")
        visit.until("Math.abs(window.sgpmilStage.view().zoom - 0.5) < 1e-3")
        visit.wait_for_tiles()
        places = [(252, 700), (260, 700), (1788, 700), (1796, 700)]
        places += [(900, 252), (900, 260), (900, 1276), (900, 1284)]
        filled = """places => {
          const {viewer, image, OSD} = window.sgpmilStage;
          const canvas = viewer.drawer.canvas;
          const ratio = canvas.width / canvas.clientWidth;
          return places.map(([x, y]) => {
            const at = image.imageToViewerElementCoordinates(new OSD.Point(x, y));
            const place = [Math.round(at.x * ratio), Math.round(at.y * ratio)];
            return canvas.getContext("2d").getImageData(...place, 1, 1).data[3] > 128;
          });
        }"""
        visit.until(f"() => ({filled})([[1024, 768]])[0]")  # the frame is drawn
        found = page.evaluate(filled, places)
        # The tissue, hence all patches, lie from (256, 256) to (1792, 1280).
        assert found == [False, True, True, False, False, True, True, False]


def test_the_threshold_counts_patches_and_area(browser, address, viewing, case):
    with Visit(browser, address, slide_path(layer="attention")) as visit:
        page = visit.page
        visit.wait_for_tiles()
        slider = page.get_by_label("Threshold")
        slider.fill("100")
        visit.until("document.querySelector('.selection').textContent.startsWith('≥')")
        values = viewing.scored(case).layer("attention", case.class_index).values
        visit.until("new URLSearchParams(location.search).has('least')")
        least = float(visit.query()["least"])
        middle, step = (values.min() + values.max()) / 2, np.ptp(values) / 200
        assert middle - step < least <= middle + 1e-6
        count = int((values.astype(float) >= least).sum())
        visit.until(
            "text => document.querySelector('.selection').textContent.includes(text)",
            arg=f"{count} of 24 patches",
        )
        text = page.locator(".selection").inner_text()
        area = float(f"{count * (256 * 0.5) ** 2 / 1e6:.3g}")
        assert f"≥ {least:.15g}: " in text
        assert f"{area:g} mm²" in text
        check_quiet(visit)


def test_a_patch_is_clicked_and_a_similar_one_is_gone_to(browser, address):
    with Visit(browser, address, slide_path()) as visit:
        page = visit.page
        visit.wait_for_tiles()
        at = page.evaluate(
            """() => {
              const {image, OSD} = window.sgpmilStage;
              const point = image.imageToViewerElementCoordinates(new OSD.Point(384, 384));
              const box = document.querySelector('.stage').getBoundingClientRect();
              return [box.x + point.x, box.y + point.y];
            }"""
        )
        page.mouse.click(*at)
        page.wait_for_selector("h3:has-text('Patch 0')")
        assert page.locator(".values tbody tr").count() >= 2
        assert " to " in page.locator(".values tbody tr td").nth(1).inner_text()
        assert page.locator(".marks rect").count() == 2
        page.wait_for_selector("h3:has-text('Most similar in other slides')")
        page.keyboard.press("2")
        visit.until("new URLSearchParams(location.search).get('layer') === 'attention'")
        target = page.locator("h3:has-text('other slides') + ul a").first
        name = target.get_attribute("title").split(",")[0]
        assert name != "s.1"
        target.click()
        visit.until("name => document.title.startsWith(name)", arg=name)
        visit.wait_for_tiles()
        page.wait_for_selector(".marks rect")
        assert (visit.query()["name"], visit.query()["layer"]) == (name, "attention")
        page.wait_for_selector("h3:has-text('Patch')")
        page.evaluate("window.sgpmilStage.show({x: 0, y: 0, zoom: 0.5})")  # glass
        page.keyboard.press("c")
        page.wait_for_selector("h3:has-text('Highest attention')")
        assert "patch" not in visit.query()
        page.locator(".tiles button").first.click()
        page.wait_for_selector("h3:has-text('Patch')")
        page.locator("button.as-link", has_text="prototype").click()
        page.wait_for_selector("details.prototype[open] h4")
        check_quiet(visit)


def test_slides_are_filtered_and_searched(browser, address):
    with Visit(browser, address) as visit:
        page = visit.page
        page.wait_for_selector("a.slide-link")
        page.get_by_label("Search by slide or patient").fill("s2")
        visit.until("document.querySelectorAll('tbody tr').length === 1")
        assert visit.query()["search"] == "s2"
        page.get_by_label("Search by slide or patient").fill("")
        visit.until("document.querySelectorAll('tbody tr').length === 4")
        page.locator("label:has(> span:text-is('Label')) select").select_option("tumour")
        visit.until("document.querySelectorAll('tbody tr').length === 2")
        page.reload()
        page.wait_for_selector("a.slide-link")
        assert page.locator("tbody tr").count() == 2
        page.locator("label:has(> span:text-is('First')) select").select_option("name")
        visit.until("document.querySelector('a.slide-link').textContent === 's.1'")
        check_quiet(visit)


def test_two_models_are_compared_side_by_side(browser, address):
    with Visit(browser, address, "/?view=compare") as visit:
        page = visit.page
        page.wait_for_selector("tbody tr")
        assert page.locator("tbody tr").count() == 4
        page.locator("tbody a").first.click()
        visit.until(
            "window.sgpmilStages?.length === 2 && window.sgpmilStages.every(one => one.isLoaded)"
        )
        page.evaluate("window.sgpmilStages[0].show({x: 700, y: 600, zoom: 1.1})")
        together = """() => {
          const [one, other] = window.sgpmilStages.map(stage => stage.view());
          return Math.abs(one.zoom - other.zoom) < .02
            && Math.abs(one.x - other.x) < 3 && Math.abs(one.y - other.y) < 3;
        }"""
        visit.until("Math.abs(window.sgpmilStages[1].view().zoom - 1.1) < .02")
        visit.until(together)
        for side, steps in ((0, -300), (1, 300)):
            box = page.locator(".half .osd").nth(side).bounding_box()
            page.mouse.move(box["x"] + 80, box["y"] + 60)
            before = page.evaluate("window.sgpmilStages[0].view().zoom")
            page.mouse.wheel(0, steps)
            visit.until("z => window.sgpmilStages[0].view().zoom !== z", arg=before)
            visit.until(together)
        page.keyboard.press("2")
        page.keyboard.press("]")
        visit.until("window.sgpmilStages.every(one => Math.abs(one.opacity - 0.7) < 1e-6)")
        page.keyboard.press(".")
        counts = "[...document.querySelectorAll('.side output')].map(one => one.textContent)"
        visit.until(f"{counts}.filter(text => / of 24 patches/.test(text)).length === 2")
        assert page.locator(".side .scale").count() == 2
        check_quiet(visit)
        if AXE.exists():
            assert visit.violations() == []


@pytest.mark.parametrize("width", [1440, 768, 390])
def test_two_slides_are_in_view_beside_their_layers(browser, address, width):
    with Visit(browser, address, "/?view=compare", width) as visit:
        page = visit.page
        page.locator("tbody a").first.click()
        visit.until("window.sgpmilStages?.length === 2")
        page.get_by_label("Threshold").focus()
        places = """() => {
          const stages = [...document.querySelectorAll(".stage")];
          const slider = [...document.querySelectorAll(".layers input[type=range]")][1];
          return [...stages, slider].map(one => one.getBoundingClientRect())
            .map(box => [box.top, box.bottom, box.height]);
        }"""
        one, other, slider = page.evaluate(places)
        height = page.viewport_size["height"]
        for top, bottom, tall in (one, other):
            assert top >= 0
            assert bottom <= height
            assert tall > 150
        assert 0 < slider[0] < slider[1] <= height
        if width < 960:
            assert slider[0] >= max(one[1], other[1])
        visit.until("window.sgpmilStages.every(one => one.isLoaded)")
        check_quiet(visit)


def test_the_run_that_is_compared_with_is_kept(browser, viewed, options):
    other = viewed / "other"
    three = replace(options, beside=(other, other))
    with served(three) as address, Visit(browser, address, "/?view=compare") as visit:
        page = visit.page
        page.locator("select").select_option("2")
        visit.until("new URLSearchParams(location.search).get('other') === '2'")
        for leave in (
            lambda: page.keyboard.press("Escape"),
            lambda: page.locator("a.back").click(),
        ):
            page.wait_for_selector("th:has-text('(abmil) 3')")
            page.locator("tbody a").first.click()
            visit.until("window.sgpmilStages?.length === 2")
            visit.until("document.querySelector('.scale')")
            leave()
            # The page that is left has a select of its own, that of the class.
            visit.until("!new URLSearchParams(location.search).has('name')")
            visit.until("document.querySelector('label.field select')?.value === '2'")
            assert visit.query() == {"view": "compare", "other": "2"}
        check_quiet(visit)


def test_a_run_alone_says_why_nothing_is_compared(browser, options):
    with served(replace(options, beside=())) as address, Visit(browser, address) as visit:
        visit.page.locator("nav a", has_text="Compare").click()
        visit.page.wait_for_selector("text=Each slide was tested by one fold only")
        assert "--beside" in visit.page.locator("main").inner_text()
        check_quiet(visit)


def test_only_predictions_of_one_slide_are_compared(browser, address, case):
    with Visit(browser, address, f"/?view=compare&name={case.name}&with=6") as visit:
        visit.page.wait_for_selector("text=There is no prediction of s.1 by 6.")
        check_quiet(visit)


def test_a_verdict_is_saved_and_exported(browser, address, viewing):
    with Visit(browser, address, slide_path("s3", tab="review")) as visit:
        page = visit.page
        visit.wait_for_tiles()
        nasty = "<img src=x onerror=alert(1)>"
        page.get_by_label("Your name").fill(nasty)
        page.get_by_label("Disagree").check()
        page.get_by_label("Note").fill("<script>alert(2)</script> =1+1")
        page.get_by_role("button", name="Draw a region").click()
        box = page.locator(".stage").bounding_box()
        for x, y in ((200, 200), (420, 210), (300, 400)):
            page.mouse.click(box["x"] + x, box["y"] + y)
            page.wait_for_timeout(350)  # two quick clicks are a double click, which zooms
        page.get_by_role("button", name="End the region").click()
        assert page.locator(".region-list li").count() == 1
        unsaved = """() => {
          const event = new Event("beforeunload", {cancelable: true});
          dispatchEvent(event);
          return event.defaultPrevented;
        }"""
        assert page.evaluate(unsaved)
        page.get_by_role("button", name="Save the verdict").dblclick()
        page.wait_for_selector("text=Saved (version 1)")
        number = viewing.cohort.named("s3").number
        path = f"{address}/api/slides/{number}/reviews"
        assert visit.requests.count(path) == 2  # the verdicts of before were read, one was saved
        assert not page.evaluate(unsaved)
        with page.expect_download() as csv:
            page.locator("a", has_text="CSV").click()
        assert nasty in Path(csv.value.path()).read_text()
        with page.expect_download() as regions:
            page.locator("a", has_text="GeoJSON").click()
        found = json.loads(Path(regions.value.path()).read_text())["features"]
        assert len(found) == 1
        assert len(found[0]["geometry"]["coordinates"][0]) == 4
        page.reload()
        visit.wait_for_tiles()
        page.wait_for_selector(".region-list li")
        assert page.get_by_label("Note").input_value() == "<script>alert(2)</script> =1+1"
        check_quiet(visit)
        ring = [[0, 0], [9, 0], [9, 9]]
        body = {"reviewer": nasty, "version": 1, "verdict": "agree", "regions": [ring, ring]}
        other = visit.context.request.put(path, data=body, headers={"x-sgpmil": "1"})
        assert other.ok, other.text()
        page.get_by_role("button", name="Save the verdict").click()
        page.wait_for_selector("text=It says “agree” and has 2 regions")
        page.get_by_role("button", name="Save the verdict").click()
        page.wait_for_selector("text=Saved (version 3)")
        visit.complaints.clear()  # of the version that was refused
        page.goto(address + "/?view=reviews")
        page.wait_for_selector("th:has-text('onerror')")
        with page.expect_download() as history:
            page.locator("p:has-text('that were replaced') a", has_text="GeoJSON").click()
        found = json.loads(Path(history.value.path()).read_text())["features"]
        own = [one["properties"] for one in found if one["properties"]["slide"] == "s3"]
        assert [one["version"] for one in own] == [1, 2, 2, 3]
        check_quiet(visit)
        if AXE.exists():
            assert visit.violations() == []


def test_a_verdict_that_was_begun_is_not_lost(browser, address):
    with Visit(browser, address, slide_path("s2", tab="review")) as visit:
        page = visit.page
        visit.wait_for_tiles()
        page.get_by_label("Note").fill("begun")
        page.get_by_label("Unsure").check()
        page.get_by_role("button", name="Add what is in view").click()
        page.get_by_label("Your name").fill("Cleo")
        page.get_by_label("Your name").blur()
        assert page.get_by_label("Note").input_value() == "begun"
        page.keyboard.press("n")
        visit.until("!document.title.startsWith('s2')")
        visit.wait_for_tiles()  # a page that is not yet open hears no key
        page.keyboard.press("Escape")
        page.locator("a.slide-link", has_text="s2").click()
        page.get_by_role("tab", name="Verdict").click()
        page.wait_for_selector("text=not saved yet")
        assert page.get_by_label("Note").input_value() == "begun"
        assert page.get_by_label("Your name").input_value() == "Cleo"
        assert page.get_by_label("Unsure").is_checked()
        assert page.locator(".region-list li").count() == 1
        check_quiet(visit)


def test_shares_are_never_rounded_to_none_or_all(browser, address):
    with Visit(browser, address) as visit:
        shares = [0, 0.004, 0.5, 0.999, 1]
        words = "async shares => { const { percent } = await import('/static/js/dom.js');"
        found = visit.page.evaluate(words + " return shares.map((one) => percent(one)); }", shares)
        assert found == ["0 %", "<1 %", "50 %", ">99 %", "100 %"]


def test_the_highest_threshold_keeps_the_highest_patch(browser, address, case):
    with Visit(browser, address, slide_path(layer="attention")) as visit:
        visit.wait_for_tiles()
        slider = visit.page.get_by_label("Threshold")
        slider.focus()
        slider.press("End")
        visit.page.wait_for_selector("output:has-text('≥')")
        assert "0 of" not in visit.page.locator("output.selection").inner_text().split(": ")[1]


def test_another_class_has_no_threshold_of_the_first(browser, address):
    with Visit(browser, address, slide_path(layer="evidence")) as visit:
        page = visit.page
        visit.wait_for_tiles()
        page.get_by_label("Threshold").fill("150")
        visit.until("new URLSearchParams(location.search).has('least')")
        classes = page.get_by_label("Class of evidence")
        classes.select_option("0" if classes.input_value() == "1" else "1")
        page.wait_for_selector("output:has-text('All: 24 of 24')")
        assert "least" not in visit.query()
        assert page.get_by_label("Threshold").input_value() == "0"
        page.locator("input[value=attention]").check()  # which is of no class
        page.get_by_label("Threshold").fill("150")
        visit.until("new URLSearchParams(location.search).has('least')")
        page.get_by_label("Class of evidence").select_option("1")
        visit.until("new URLSearchParams(location.search).get('class') === '1'")
        assert "least" in visit.query()
        check_quiet(visit)


def test_the_slide_stays_in_the_window(browser, address):
    """Hidden words of the tiles in the panel, which scrolls, do not lengthen the page."""
    with Visit(browser, address, slide_path()) as visit:
        visit.wait_for_tiles()
        visit.page.wait_for_selector(".tiles .hidden", state="attached")
        for key in ("End", "Space"):
            visit.page.keyboard.press(key)
        visit.page.evaluate("scrollTo(0, 9999)")
        assert visit.page.evaluate("scrollY") == 0
        check_quiet(visit)


def test_the_focus_is_not_behind_the_slide(browser, address):
    with Visit(browser, address, slide_path(), 390) as visit:
        page = visit.page
        visit.wait_for_tiles()
        page.keyboard.press("r")
        visit.until("document.activeElement.matches('.review input')")
        place = """() => {
          const box = document.activeElement.getBoundingClientRect();
          const stage = document.querySelector(".stage-side").getBoundingClientRect();
          const isStage = document.activeElement.closest(".stage-side, header") !== null;
          return [isStage, box.top - stage.bottom, innerHeight - box.top];
        }"""
        for _ in range(12):
            is_stage, above, below = page.evaluate(place)
            if not is_stage:
                assert above >= 0
                assert below > 20  # a panel is higher than what the slide leaves
            page.keyboard.press("Shift+Tab")
        check_quiet(visit)


def test_the_help_sheet_begins_at_its_top(browser, address):
    with Visit(browser, address, "/", 390) as visit:
        visit.page.keyboard.press("?")
        visit.page.wait_for_selector("dialog[open]")
        assert visit.page.evaluate("document.getElementById('help').scrollTop") == 0
        box = visit.page.locator("#help-title").bounding_box()
        assert 0 <= box["y"] < 844
        check_quiet(visit)


def test_the_open_prototype_is_in_the_address(browser, address):
    with Visit(browser, address, slide_path(tab="prototypes")) as visit:
        page = visit.page
        cards = page.locator("details.prototype")
        cards.nth(1).locator("summary").click()
        visit.until("new URLSearchParams(location.search).has('prototype')")
        first = visit.query()["prototype"]
        assert f"Prototype {first}" in cards.nth(1).inner_text()
        cards.nth(0).locator("summary").click()
        visit.until(
            "one => new URLSearchParams(location.search).get('prototype') !== one", arg=first
        )
        chosen = visit.query()["prototype"]
        assert page.locator("details.prototype[open]").count() == 1
        page.reload()
        page.wait_for_selector(f"details.prototype[open]:has-text('Prototype {chosen}')")
        assert visit.query()["prototype"] == chosen
        page.locator("details.prototype[open] summary").click()
        visit.until("!new URLSearchParams(location.search).has('prototype')")
        check_quiet(visit)


def test_numbers_of_a_column_have_as_many_decimals(browser, address):
    with Visit(browser, address) as visit:
        words = "async values => { const { decimals } = await import('/static/js/dom.js');"
        values = [0.6, 0.69, 0, 0.004, None]
        found = visit.page.evaluate(words + " return values.map((one) => decimals(one)); }", values)
        assert found == ["0.60", "0.69", "0.00", "<0.01", "–"]
        visit.page.wait_for_selector("td .number")
        numbers = visit.page.locator("td .number").all_inner_texts()
        assert all(len(one.split(".")[1]) == 2 for one in numbers)
        assert "nats" in visit.page.locator("thead").inner_text()


def test_the_address_brings_the_same_view_back(browser, address):
    path = slide_path(layer="evidence_std", opacity="0.4", x="900", y="700", zoom="0.8", patch="7")
    with Visit(browser, address, path) as visit:
        visit.wait_for_tiles()
        view = visit.view()
        assert view["zoom"] == pytest.approx(0.8, rel=0.01)
        assert (view["x"], view["y"]) == pytest.approx((900, 700), abs=3)
        assert visit.page.locator("input[value=evidence_std]").is_checked()
        assert visit.page.evaluate("window.sgpmilStage.opacity") == pytest.approx(0.4)
        visit.page.wait_for_selector("h3:has-text('Patch 7')")
        check_quiet(visit)


def test_everything_is_reached_by_keys_alone(browser, address):
    with Visit(browser, address) as visit:
        page, press = visit.page, visit.page.keyboard.press
        page.wait_for_selector("a.slide-link")
        press("?")
        page.wait_for_selector("dialog[open]")
        press("Escape")
        page.wait_for_selector("dialog:not([open])", state="attached")
        press("j")
        press("j")
        press("Enter")
        visit.wait_for_tiles()
        before = visit.view()
        press("+")
        visit.until("z => window.sgpmilStage.view().zoom > 1.4 * z", arg=before["zoom"])
        press("ArrowRight")
        visit.until("x => window.sgpmilStage.view().x > x + 20", arg=before["x"])
        press("2")
        visit.until("document.querySelector('input[value=attention]').checked")
        press("]")
        visit.until("Math.abs(window.sgpmilStage.opacity - 0.7) < 1e-6")
        press(".")
        visit.until("document.querySelector('.selection').textContent.startsWith('≥')")
        press("0")
        press("c")
        page.wait_for_selector("h3:has-text('Patch ')")
        press("k")
        name = visit.query()["name"]
        press("n")
        visit.until("name => new URLSearchParams(location.search).get('name') !== name", arg=name)
        visit.wait_for_tiles()
        press("r")
        visit.until("document.activeElement.matches('.review input')")
        page.keyboard.type("Keyboard")
        for _ in range(12):
            if page.evaluate("document.activeElement.value") == "agree":
                break
            press("Tab")
        press("Space")
        page.locator("button[type=submit]").focus()
        press("Enter")
        page.wait_for_selector("text=Saved (version 1)")
        page.get_by_label("Note").focus()
        press("Escape")  # leaves the field
        assert visit.query()["view"] == "slide"
        name = visit.query()["name"]
        press(".")
        press("Escape")
        visit.until("name => document.activeElement.textContent === name", arg=name)
        # Later than the threshold would be noted.
        page.evaluate("new Promise(done => setTimeout(done, 200))")
        assert visit.query() == {}
        check_quiet(visit)


def test_the_header_of_the_worklist_stays_in_view(browser, address):
    with Visit(browser, address) as visit:
        page = visit.page
        page.wait_for_selector("a.slide-link")
        page.set_viewport_size({"width": 1440, "height": 300})
        page.evaluate("scrollTo(0, 380)")
        visit.until("scrollY > 300")
        cells = "[...document.querySelectorAll('thead tr > *')]"
        visit.until(f"{cells}.every(one => Math.abs(one.getBoundingClientRect().top) < 1)")


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is missing: vendor.py --axe")
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("path", ["/", slide_path(patch="3"), slide_path(tab="prototypes")])
def test_axe_finds_no_violation(browser, address, path, width):
    with Visit(browser, address, path, width) as visit:
        visit.page.wait_for_load_state("networkidle")
        if "slide" in path:
            visit.wait_for_tiles()
        for scheme in ("light", "dark"):
            visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            assert visit.violations() == []
        heads = "[...document.querySelectorAll('.values tbody th')].map(one => one.offsetWidth)"
        assert all(head > 80 or head == 0 for head in visit.page.evaluate(heads))
        check_quiet(visit)
        if path == "/":
            visit.page.keyboard.press("?")
            assert visit.violations() == []


def test_names_that_are_scripts_do_not_run(browser, tmp_path_factory):
    import numpy as np

    from sgpmil.bags.splits import Fold
    from sgpmil.bags.target import ClassTarget
    from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
    from sgpmil.runs.run import Run

    folder = tmp_path_factory.mktemp("nasty")
    name = "<img src=x onerror=alert(1)>&\"'"
    classes = ("<script>alert(2)<\\script>", "javascript:alert(3)")
    scores = InstanceScores(np.full(9, 1 / 9), np.full(9, 0.01))
    row = Prediction.from_samples(name, "<b>case</b>", 0, np.array([[0.6, 0.4]]), scores)
    fold = Fold("0", ("t",), (), (name,))
    run = Run.create(folder / "run", (fold,), {"model": "<i>m</i>"}, data={"folder": None})
    run.folds["0"].write(PredictionTable((row,), ClassTarget(classes)))
    with served(ViewOptions(run=run.path)) as address, Visit(browser, address) as visit:
        page = visit.page
        page.wait_for_selector("a.slide-link")
        assert page.locator("a.slide-link").inner_text() == name
        page.locator("a.slide-link").click()
        visit.wait_for_tiles()
        assert page.locator(".panel h1").inner_text() == name
        assert classes[0] in page.locator(".panel").inner_text()
        assert page.locator("main img[src=x], main script, main b, main i").count() == 0
        check_quiet(visit)
