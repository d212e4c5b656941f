import csv
import io
import json
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from sgpmil.explanation.colour_scales import COLOUR_SCALES, colour_range
from sgpmil.explanation.maps import score_map
from sgpmil.explanation.run_explanation import ExplainOptions, explain
from tests.report.explained_run import RING, SIDE
from tests.slides.extraction.drawn_files import HEIGHT, MPP, WIDTH


@pytest.fixture(scope="module")
def explained(options):
    """What `sgpmil explain` says of the same run."""
    return explain(
        ExplainOptions(run=options.run, slides=options.slides, annotations=options.annotations)
    )


def pixels(response):
    assert response.status_code == 200, response.text
    return Image.open(BytesIO(response.content))


def test_the_page_and_its_parts_are_served(client):
    assert "<title>sgpmil viewer</title>" in client.get("/").text
    for file in ("js/main.js", "viewer.css", "icon.svg"):
        assert client.get(f"/static/{file}").status_code == 200


def test_the_run_is_described(client):
    run = client.get("/api/run").json()
    assert run["classes"] == ["normal", "tumour"]
    assert (run["num_slides"], run["has_slides"], run["has_labels"]) == (4, True, True)
    assert [one["name"] for one in run["comparisons"]] == ["other (abmil)"]


def test_the_worklist_comes_in_parts(client, viewing):
    whole = client.get("/api/worklist").json()
    assert whole["num_slides"] == 4
    entropies = [row["entropy"] for row in whole["rows"]]
    assert entropies == sorted(entropies, reverse=True)
    parts = [
        client.get("/api/worklist", params={"limit": 1, "offset": i}).json()["rows"]
        for i in range(5)
    ]
    assert [row["name"] for part in parts for row in part] == [row["name"] for row in whole["rows"]]
    found = client.get("/api/worklist", params={"search": "S2"}).json()
    assert [row["name"] for row in found["rows"]] == ["s2"]


def test_a_slide_says_what_explain_says(client, explained, case):
    answer = client.get(f"/api/slides/{case.number}").json()
    slide = explained.slide(case.slide_id)
    assert answer["frame"] == {"width": WIDTH, "height": HEIGHT, "mpp": MPP, "has_image": True}
    assert answer["class_index"] == slide.class_index
    assert answer["num_patches"] == slide.scores.num_instances
    for layer in slide.layers:
        found = next(one for one in answer["layers"] if one["kind"] == layer.kind)
        ends = colour_range(layer.kind, explained.limits, is_signed=layer.is_signed)
        assert (found["title"], found["unit"]) == (layer.title, layer.unit)
        assert (found["low"], found["high"]) == pytest.approx(ends)
        assert found["most"] == pytest.approx(float(np.nanmax(layer.values)))
    wanted = {kind: [one.patch for one in patches] for kind, patches in slide.key_patches.items()}
    found = {kind: [one["patch"] for one in key] for kind, key in answer["key_patches"].items()}
    assert found == wanted


def test_annotations_are_the_experts_outlines(client, case):
    answer = client.get(f"/api/slides/{case.number}").json()
    assert answer["annotations"]["name"] == "tumor"
    (ring,) = answer["annotations"]["rings"]
    assert {tuple(point) for point in ring} == {tuple(point) for point in RING}


def test_base_tiles_are_the_slide(client, case):
    text = client.get(f"/slides/{case.number}.dzi").text
    assert f'Width="{WIDTH}" Height="{HEIGHT}"' in text
    tile = pixels(client.get(f"/slides/{case.number}_files/11/1_1.jpg"))
    assert (tile.format, tile.size) == ("JPEG", (256, 256))
    assert client.get(f"/slides/{case.number}_files/11/99_0.jpg").status_code == 404


def test_patches_that_are_chosen_by_a_threshold_are_opaque(client, viewing, case):
    address = f"/maps/{case.number}/evidence/1_files/8/0_0.png"
    whole, chosen = (
        np.asarray(pixels(client.get(address, params=query)).convert("RGBA"))[..., 3]
        for query in ({}, {"least": -1e9})
    )
    assert set(np.unique(chosen)) == {0, 255}
    np.testing.assert_array_equal(chosen > 0, whole > 0)
    assert 0 < whole[whole > 0].min() < 255


@pytest.mark.parametrize("kind", ["attention", "attention_std", "evidence", "evidence_std"])
@pytest.mark.parametrize("level", [8, 11])
def test_map_tiles_are_the_maps_of_explain_to_the_pixel(client, explained, case, kind, level):
    slide = explained.slide(case.slide_id)
    layer = next(one for one in slide.layers if one.kind == kind)
    cell = 2 ** (11 - level)
    drawn = score_map(
        slide.scores.coords,
        SIDE,
        layer.values,
        slide_size=(WIDTH, HEIGHT),
        downsample=float(cell),
    ).values
    low, high = colour_range(kind, explained.limits, is_signed=layer.is_signed)
    table = COLOUR_SCALES[kind].table(255)
    column = row = 0 if level == 8 else 2
    address = f"/maps/{case.number}/{kind}/{slide.class_index}_files/{level}/{column}_{row}.png"
    found = np.asarray(pixels(client.get(address)).convert("RGBA"))
    part = drawn[row * 256 : row * 256 + 256, column * 256 : column * 256 + 256]
    assert found.shape[:2] == part.shape
    np.testing.assert_array_equal(found[..., 3] > 0, ~np.isnan(part))
    known = ~np.isnan(part)
    share = np.clip((part[known] - low) / (high - low), 0, 1)
    wanted = table[np.rint(share * 254).astype(int)].astype(int)
    assert np.abs(found[known][:, :3].astype(int) - wanted).max() <= 3


def test_a_threshold_leaves_patches_out_and_counts_them(client, viewing, case):
    values = viewing.scored(case).layer("attention", case.class_index).values
    least = float(np.sort(values)[-5])
    query = {"layer": "attention", "least": least}
    found = client.get(f"/api/slides/{case.number}/selection", params=query).json()
    assert found == {
        "patches": 5,
        "known": 24,
        "area_mm2": pytest.approx(5 * (SIDE * MPP) ** 2 / 1e6),
        "is_exact": True,
    }
    address = f"/maps/{case.number}/attention/1_files/11"
    shown = 0
    for column in range(8):
        for row in range(6):
            tile = client.get(f"{address}/{column}_{row}.png", params={"least": least})
            shown += int((np.asarray(pixels(tile).convert("RGBA"))[..., 3] > 0).sum())
    assert shown == 5 * SIDE * SIDE


def test_a_patch_has_values_with_intervals(client, viewing, case):
    scored = viewing.scored(case)
    x, y = (int(v) for v in scored.coords[7])
    answer = client.get(f"/api/slides/{case.number}/patch", params={"x": x + 9, "y": y + 9}).json()
    assert (answer["patch"], answer["x"], answer["y"], answer["side"]) == (7, x, y, SIDE)
    evidence = next(one for one in answer["values"] if one["kind"] == "evidence")
    mean, sd = (scored.layer(k, case.class_index).values[7] for k in ("evidence", "evidence_std"))
    assert evidence["value"] == pytest.approx(float(mean))
    assert evidence["high"] == pytest.approx(float(mean + 1.96 * sd))
    same = client.get(f"/api/slides/{case.number}/patch", params={"patch": 7}).json()
    assert {**same, "prototype": None} == {**answer, "prototype": None}
    outside = client.get(f"/api/slides/{case.number}/patch", params={"x": 1, "y": 1})
    assert (outside.status_code, outside.json()) == (200, None)
    absent = client.get(f"/api/slides/{case.number}/patch", params={"patch": 24})
    assert absent.status_code == 404


def test_the_picture_of_a_patch_is_cut_from_the_slide(client, viewing, case):
    found = np.asarray(pixels(client.get(f"/patches/{case.number}/7.jpg")), dtype=float)
    x, y = viewing.scored(case).coords[7].tolist()
    with viewing.slides.borrow(case.slide_id) as slide:
        wanted = slide.read_patch(x, y, SIDE, found.shape[0]).astype(float)
    assert np.abs(found - wanted).mean() < 6
    assert client.get(f"/patches/{case.number}/24.jpg").status_code == 404


def test_prototypes_are_those_of_explain(client, viewing, explained, case):
    viewing.knowledge[0].prototypes(case.fold)
    viewing.knowledge[0]._prototypes[case.fold].result()
    answer = client.get(f"/api/slides/{case.number}/prototypes").json()
    wanted = explained.prototypes(case.fold)
    own = wanted.slides[case.slide_id]
    assert [one["index"] for one in answer["prototypes"]] == [one.index for one in wanted.used]
    given = {one["index"]: one["colour"] for one in answer["prototypes"]}
    colours = wanted.colours_on(case.slide_id)
    assert given == {one.index: colours[one.index] for one in wanted.used}
    named = [colour for colour in given.values() if colour != answer["other_colour"]]
    assert len(named) == len(set(named)) > 1
    counts = {one["index"]: one["here"] for one in answer["prototypes"]}
    assert counts == {p.index: int((own.assigned == p.index).sum()) for p in wanted.used}
    for name in ("normal", "tumour"):
        shares = [
            part["share"]
            for one in answer["prototypes"]
            for part in one["class_shares"]
            if part["name"] == name
        ]
        assert sum(shares) == pytest.approx(1)
    tile = client.get(f"/maps/{case.number}/prototype/1_files/11/1_1.png")
    drawn = {tuple(c) for c in np.asarray(pixels(tile).convert("RGB")).reshape(-1, 3).tolist()}
    assert drawn <= {tuple(bytes.fromhex(colour[1:])) for colour in given.values()} | {(0, 0, 0)}
    patch = client.get(f"/api/slides/{case.number}/patch", params={"patch": 3}).json()
    assert patch["prototype"]["index"] == int(own.assigned[3])
    assert patch["prototype"]["colour"] == given[int(own.assigned[3])]


def test_similar_patches_are_elsewhere_and_here(client, case):
    answer = client.get(f"/api/slides/{case.number}/similar", params={"patch": 3}).json()
    assert len(answer["here"]) == 6
    assert {one["name"] for one in answer["here"]} == {"s.1"}
    assert 3 not in {one["patch"] for one in answer["here"]}
    assert {one["name"] for one in answer["elsewhere"]} == {"s 0", "s2", "s3"}


def test_runs_are_compared(client, viewing):
    answer = client.get("/api/compare", params={"other": 1}).json()
    assert answer["num_slides"] == 4
    gaps = [one["difference"] for one in answer["slides"]]
    assert gaps == sorted(gaps, reverse=True)
    number = answer["slides"][0]["other"]["number"]
    other = client.get(f"/api/slides/{number}").json()
    assert other["run"] == "other (abmil)"
    assert "prototype" not in {layer["kind"] for layer in other["layers"]}
    assert client.get("/api/compare", params={"other": 7}).status_code == 404


def test_a_verdict_is_saved_exported_and_not_overwritten_unseen(client, case):
    address = f"/api/slides/{case.number}/reviews"
    body = {
        "reviewer": " Ada ",
        "version": 0,
        "verdict": "disagree",
        "note": "=1+1 <b>",
        "regions": [[[0, 0], [9, 0], [9, 9]]],
    }
    saved = client.put(address, json=body)
    assert saved.status_code == 200, saved.text
    assert (saved.json()["reviewer"], saved.json()["version"]) == ("Ada", 1)
    conflict = client.put(address, json={**body, "note": "other"})
    assert conflict.status_code == 409
    assert conflict.json()["current"]["note"] == "=1+1 <b>"
    rows = list(csv.DictReader(io.StringIO(client.get("/api/reviews.csv").text)))
    assert [(row["slide"], row["verdict"], row["note"]) for row in rows] == [
        ("s.1", "disagree", "'=1+1 <b>")
    ]
    regions = json.loads(client.get("/api/reviews.geojson").text)["features"]
    assert regions[0]["geometry"]["coordinates"] == [[[0, 0], [9, 0], [9, 9], [0, 0]]]
    again = client.put(address, json={**body, "version": 1, "verdict": "agree", "regions": []})
    assert again.status_code == 200
    assert json.loads(client.get("/api/reviews.geojson").text)["features"] == []
    for query in ({"history": True}, {"history": True, "slide": case.number}):
        regions = json.loads(client.get("/api/reviews.geojson", params=query).text)["features"]
        assert [one["properties"]["version"] for one in regions] == [1]
    text = client.get("/api/reviews.csv", params={"history": True}).text
    rows = csv.DictReader(io.StringIO(text))
    assert [(row["version"], row["verdict"], row["regions"]) for row in rows] == [
        ("1", "disagree", "1"),
        ("2", "agree", "0"),
    ]
    agreement = client.get("/api/agreement").json()
    assert (agreement["all"]["agree"], agreement["all"]["disagree"]) == (1, 0)
    listed = client.get("/api/worklist", params={"reviewed": True}).json()
    assert [row["name"] for row in listed["rows"]] == ["s.1"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"verdict": "maybe"},
        {"reviewer": ""},
        {"reviewer": "  "},
        {"reviewer": "x" * 101},
        {"note": "x" * 10_001},
        {"version": -1},
        {"regions": [[[0, 0], [1, 1]]]},
        {"regions": [[[0, 0], [1, 1], [1, "x"]]]},
        {"regions": [[[0, 0]] * 2001]},
        {"other": 1},
    ],
)
def test_a_strange_verdict_is_refused(client, case, wrong):
    body = {"reviewer": "Ben", "version": 0, "verdict": "agree", **wrong}
    assert client.put(f"/api/slides/{case.number}/reviews", json=body).status_code == 422
    assert "Ben" not in client.get("/api/reviews.csv").text


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static/js/../../server.py",
        "/static//etc/passwd",
        "/static/%2fetc%2fpasswd",
        "/static/..\\app.py",
        "/thumbnails/../1.jpg",
        "/thumbnails/%2e%2e%2f1.jpg",
        "/slides/..%2f1.dzi",
        "/maps/0/..%2fx/1.dzi",
        "/api/slides/-1",
        "/api/slides/1e3",
        "/api/slides/99999999999999999999",
        "/api/slides/%00",
        "/patches/0/..%2f..%2f1.jpg",
    ],
)
def test_no_path_leads_out(client, path):
    found = client.get(path)
    assert found.status_code in (404, 405, 422)
    assert "import" not in found.text
    assert "root:" not in found.text


@pytest.mark.parametrize("least", ["nan", "inf", "-inf", "1e999", "x", ""])
def test_thresholds_that_are_no_numbers_are_refused(client, least):
    address = f"/maps/0/attention/1_files/5/0_0.png?least={least}"
    assert client.get(address).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        '{"reviewer": "Ben", "version": 0, "verdict": "agree", "note": "\\ud800"}',
        '{"reviewer": "Ben", "version": NaN, "verdict": "agree"}',
        '{"reviewer": "Ben", "version": 0, "verdict": "agree", "\\ud800": 1}',
        '{"reviewer": "Ben", "version": 0, "verdict": "agree", "regions": [[[Infinity, 1]]]}',
        "NaN",
    ],
)
def test_what_json_cannot_give_back_is_refused(client, case, body):
    headers = {"content-type": "application/json"}
    found = client.put(f"/api/slides/{case.number}/reviews", content=body, headers=headers)
    assert found.status_code == 422
    assert found.json()["detail"][0]["loc"][0] == "body"


@pytest.mark.parametrize(
    "path",
    [
        "/thumbnails/0.jpg",
        "/patches/0/0.jpg",
        "/slides/0_files/8/0_0.jpg",
        "/maps/0/attention/1_files/8/0_0.png",
    ],
)
def test_pictures_do_not_stay_in_the_browser_where_another_run_has_the_same_numbers(client, path):
    found = client.get(path)
    assert found.status_code == 200
    assert found.headers["cache-control"] == "no-store"
