import csv
import json
import shutil
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("shapely", reason="pip install '.[slides]'")

import tifffile

from sgpmil.errors import ExplanationError
from sgpmil.explanation import ExplainOptions, run_explanation
from sgpmil.report import ReportOptions, write_explanation, write_report
from sgpmil.report.figures.prototype_sheet import read_pictures
from sgpmil.runs.material import read_material
from sgpmil.slides.annotations import open_annotations
from sgpmil.slides.reading import open_slide
from tests.explanation.prototypes.explained import PATCHES
from tests.report.explained_run import (
    CLASSES,
    SIDE,
    SLIDES,
    write_annotations,
    write_features,
    write_run,
    write_slides,
)
from tests.slides.extraction.drawn_files import HEIGHT, MPP, WIDTH

pytestmark = pytest.mark.slow


class Progress:
    def __init__(self):
        self.counted = []

    def begin(self, text, total):
        self.counted.append([text, total, 0])

    def advance(self):
        self.counted[-1][2] += 1


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run with slides of two of its four test slides, and annotations."""
    folder = tmp_path_factory.mktemp("explained")
    write_features(folder / "features")
    write_run(folder / "sgpmil", folder / "features")
    write_run(folder / "abmil", folder / "features", "abmil")
    write_slides(folder / "slides", SLIDES[:2])
    write_annotations(folder / "drawn")
    return folder


@pytest.fixture(scope="module")
def material(place):
    with pytest.warns(UserWarning, match="for 2 slides, shown without"):
        return read_material(
            place / "sgpmil",
            slides=place / "slides",
            annotations=open_annotations(place / "drawn"),
        )


@pytest.fixture(scope="module")
def bare(place):
    """The same without slides, which draws faster."""
    return read_material(place / "sgpmil", annotations=open_annotations(place / "drawn"))


def explain(material, out, **options):
    progress = Progress()
    chosen = ExplainOptions(run=material.path, out=out, **options)
    return write_explanation(chosen, material, progress), progress


def files(out):
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_everything_once(place, material, tmp_path):
    out = tmp_path / "out"
    kinds = ("geojson", "csv", "parquet", "tiff", "tiatoolbox")
    done, progress = explain(
        material,
        out,
        beside=(place / "abmil",),
        only=SLIDES[1:3],
        export=kinds,
        prototypes="kernel",
    )
    assert [slide.status for slide in done.slides] == ["done", "done"]
    folds = {SLIDES[1]: "0", SLIDES[2]: "1"}
    expected = {"explanation.json", "limits.json", "slides.csv"}
    for slide, fold in folds.items():
        expected |= {
            f"maps/{slide}.png",
            f"patches/{slide}.png",
            f"patches/{slide}.csv",
            f"comparison/{slide}.png",
            f"prototypes/fold-{fold}/prototypes.png",
            f"prototypes/fold-{fold}/prototypes.csv",
            f"prototypes/fold-{fold}/prototypes.npz",
            f"prototypes/fold-{fold}/label-map-{slide}.png",
            f"geojson/{slide}.geojson",
            f"tables/{slide}.csv",
            f"tables/{slide}.parquet",
            f"tiff/{slide}.ome.tiff",
            f"tiatoolbox/{slide}.geojson",
        }
    assert files(out) == expected
    # Prototypes are counted over all test slides of the fold, whichever are drawn.
    counted = rows_of(out / "prototypes" / "fold-0" / "prototypes.csv")
    assert sum(int(row["patches"]) for row in counted) == 48
    assert sum(int(row["positive_patches"]) for row in counted) == 4
    assert [(text, total, seen) for text, total, seen in progress.counted] == [
        ("Prototypes of fold 0", 2, 2),
        ("Slides of fold 0", 1, 1),
        ("Prototypes of fold 1", 2, 2),
        ("Slides of fold 1", 1, 1),
    ]
    # The map that is exported covers the slide, pixel on pixel.
    with tifffile.TiffFile(out / "tiff" / f"{SLIDES[1]}.ome.tiff") as file:
        exported = file.asarray()
    scores = next(p for _, p in material.predictions() if p.slide_id == SLIDES[1]).instances
    factor = WIDTH / exported.shape[2]
    assert exported.shape[1] * factor == HEIGHT
    column, row = ((scores.coords + SIDE / 2) / factor).astype(int).T
    np.testing.assert_allclose(exported[0, row, column], scores.attention_mean, rtol=1e-6)
    assert np.isnan(exported[0, 0, 0])
    features = json.loads((out / "geojson" / f"{SLIDES[1]}.geojson").read_text())["features"]
    assert {f["properties"]["classification"]["name"].split()[0] for f in features} == {"prototype"}
    assert material.sources.picture(SLIDES[1], "tumour").mpp == pytest.approx(MPP)


def test_geojson_is_counted_from_what_the_viewer_takes_as_origin(bare, tmp_path):
    explain(
        bare,
        tmp_path,
        prototypes="none",
        only=SLIDES[:1],
        export=("geojson",),
        geojson_origin=(10, -20),
    )
    features = json.loads((tmp_path / "geojson" / f"{SLIDES[0]}.geojson").read_text())["features"]
    corners = [np.min(f["geometry"]["coordinates"][0], axis=0) for f in features]
    scores = next(p for _, p in bare.predictions() if p.slide_id == SLIDES[0]).instances
    np.testing.assert_array_equal(corners, scores.coords - [10, -20])


def test_slides_are_listed_the_least_certain_first(bare, tmp_path):
    explain(bare, tmp_path, prototypes="none", only=SLIDES[:1])
    rows = rows_of(tmp_path / "slides.csv")
    assert {row["slide_id"] for row in rows} == set(SLIDES)
    entropies = [float(row["entropy"]) for row in rows]
    assert entropies == sorted(entropies, reverse=True)
    known = {p.slide_id: p for _, p in bare.predictions()}
    for row in rows:
        prediction = known[row["slide_id"]]
        attention, labels = (
            prediction.instances.attention_mean,
            prediction.instances.instance_labels,
        )
        top = sorted(range(24), key=lambda k: -attention[k])[:10]
        assert int(row["positive_in_top_10"]) == sum(labels[k] == 1 for k in top)
        assert int(row["positive_patches"]) == (4 if prediction.label else 0)
        right = prediction.probs.argmax() == prediction.label
        assert row["correct"] == ("true" if right else "false")


def test_the_most_uncertain_are_taken(bare, tmp_path):
    done, _ = explain(bare, tmp_path, prototypes="none", most=2)
    least = [row["slide_id"] for row in rows_of(tmp_path / "slides.csv")][:2]
    assert {slide.slide_id for slide in done.slides} == set(least)
    assert {path.stem for path in (tmp_path / "maps").iterdir()} == set(least)


def test_it_goes_on_where_it_stopped(bare, tmp_path):
    first, _ = explain(bare, tmp_path, only=SLIDES[2:3], export=("csv",))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")}
    lost = tmp_path / "maps" / f"{SLIDES[2]}.png"
    lost.unlink()
    again, progress = explain(bare, tmp_path, only=SLIDES[2:4], export=("csv",))
    assert Counter(o.status for o in again.slides) == {"done": 2}
    assert {o.slide_id: o.written for o in again.slides}[SLIDES[2]] == 1
    for path, when in written.items():
        if path != lost and path.name != "prototypes.png":
            assert path.stat().st_mtime_ns == when
    kept, progress = explain(bare, tmp_path, only=SLIDES[2:4], export=("csv",))
    assert [o.status for o in kept.slides] == ["kept", "kept"]
    assert [text for text, *_ in progress.counted] == ["Slides of fold 1"]  # no prototypes anew
    assert first.folder == kept.folder


def test_other_settings_are_refused_and_replaced_when_asked(bare, tmp_path):
    explain(bare, tmp_path, prototypes="none", only=SLIDES[3:])
    before = (tmp_path / "maps" / f"{SLIDES[3]}.png").read_bytes()
    for changed in ({"scale": "rank"}, {"class_name": "normal"}, {"mpp": 0.25}):
        with pytest.raises(ExplanationError, match="other settings"):
            explain(bare, tmp_path, **{"prototypes": "none", "only": SLIDES[3:], **changed})
    other = replace(bare, folds=bare.folds[1:])
    with pytest.raises(ExplanationError, match="the run has changed"):
        explain(other, tmp_path, prototypes="none", only=SLIDES[3:])
    explain(bare, tmp_path, prototypes="none", only=SLIDES[3:], scale="rank", overwrite=True)
    assert (tmp_path / "maps" / f"{SLIDES[3]}.png").read_bytes() != before


def test_a_damaged_slide_does_not_stop_the_others(place, material, tmp_path):
    whole = material.sources.files[SLIDES[0]].read_bytes()
    damaged = tmp_path / f"{SLIDES[0]}.tiff"
    damaged.write_bytes(whole[: len(whole) // 2])
    sources = replace(material.sources, files={**material.sources.files, SLIDES[0]: damaged})
    done, _ = explain(
        replace(material, sources=sources), tmp_path / "out", prototypes="none", only=SLIDES[:2]
    )
    found = {slide.slide_id: slide for slide in done.slides}
    assert found[SLIDES[1]].status == "done"
    assert found[SLIDES[0]].status == "failed"
    assert str(damaged) in found[SLIDES[0]].reason
    # What does not need the slide is there all the same.
    assert (tmp_path / "out" / "patches" / f"{SLIDES[0]}.csv").exists()
    assert not (tmp_path / "out" / "maps" / f"{SLIDES[0]}.png").exists()
    assert not list((tmp_path / "out").rglob("*.tmp"))


def test_scores_that_are_no_numbers_spoil_one_slide_alone(bare, tmp_path):
    first, *others = bare.folds[1].test.predictions
    scores = first.instances
    bad = replace(
        first, instances=replace(scores, attention_mean=np.full_like(scores.attention_mean, np.inf))
    )
    test = replace(bare.folds[1].test, predictions=(bad, *others))
    spoilt = replace(bare, folds=(bare.folds[0], replace(bare.folds[1], test=test)))
    done, _ = explain(spoilt, tmp_path, prototypes="none", fold=("1",))
    found = {slide.slide_id: slide for slide in done.slides}
    assert "finite" in found[first.slide_id].reason
    assert found[others[0].slide_id].status == "done"


def test_damaged_embeddings_count_in_no_prototype_and_are_named(bare, tmp_path):
    features = write_features(tmp_path / "features")
    (features / f"{SLIDES[1]}.h5").unlink()
    found = read_material(bare.path, features=features)
    whole = (features / f"{SLIDES[2]}.h5").read_bytes()
    (features / f"{SLIDES[2]}.h5").write_bytes(whole[: len(whole) // 2])
    done, _ = explain(found, tmp_path / "out", only=(SLIDES[0], SLIDES[2]))
    assert [slide.status for slide in done.slides] == ["done"] * 2
    missing, damaged = done.notes
    assert missing.startswith("Without embeddings, and in no prototype: 1 slide, ")
    assert f"'{SLIDES[1]}'" in missing
    assert damaged.startswith(f"'{SLIDES[2]}' counts in no prototype: ")
    maps = {path.name for path in (tmp_path / "out" / "prototypes").rglob("label-map-*")}
    assert maps == {f"label-map-{SLIDES[0]}.png"}


def test_prototypes_are_patches_of_the_folds_training_slides(bare, tmp_path):
    explain(bare, tmp_path, only=SLIDES[:1])
    rows = rows_of(tmp_path / "prototypes" / "fold-0" / "prototypes.csv")
    assert len(rows) == 5
    for row in rows:
        assert row["origin_slide"] in SLIDES[2:]  # fold 0 tests the first two
        scores = next(
            p.instances for _, p in bare.predictions() if p.slide_id == row["origin_slide"]
        )
        place = (int(row["origin_x"]), int(row["origin_y"]))
        assert place == tuple(scores.coords[int(row["origin_row"])])
    assert sum(float(row["share"]) for row in rows) == pytest.approx(1, abs=1e-5)


def test_training_slides_are_opened_where_they_lie_beside_the_tested(place, tmp_path):
    write_slides(tmp_path / "slides")
    material = read_material(place / "sgpmil" / "fold-0", slides=tmp_path / "slides")
    assert set(material.sources.files) == set(SLIDES[:2])
    explanation = run_explanation.explain(ExplainOptions(run=material.path), material)
    found = explanation.prototypes("0")
    pictures, problems = read_pictures(found.used, material.sources.open)
    assert problems == ()
    for prototype in found.used:
        assert prototype.origin.slide_id in SLIDES[2:]
        assert prototype.origin.side == SIDE
        with open_slide(tmp_path / "slides" / f"{prototype.origin.slide_id}.tiff") as slide:
            expected = slide.read_patch(*prototype.origin.corner, SIDE, 128)
        np.testing.assert_array_equal(pictures[prototype.origin], expected)


def test_patches_that_were_never_chosen_are_a_note(bare, tmp_path):
    from sgpmil.models import build_model, save_model

    sizes = {
        "hidden_dims": (8,),
        "gp_dim": 4,
        "num_inducing": 5,
        "num_samples": 8,
        "prediction_samples": 16,
        "prediction_error": 0.0,
    }
    untrained = build_model("sgpmil", in_dim=4, num_classes=2, **{**PATCHES, **sizes})
    save_model(untrained, tmp_path / "model" / "checkpoint.safetensors", class_names=CLASSES)
    fold = replace(bare.folds[0], checkpoint=tmp_path / "model")
    done, _ = explain(replace(bare, folds=(fold,)), tmp_path / "out", only=SLIDES[:1])
    assert [slide.status for slide in done.slides] == ["done"]
    (note,) = done.notes
    assert note.startswith("There are no prototypes of fold 0: Expected a trained model")
    assert not (tmp_path / "out" / "prototypes").exists()


def test_models_without_prototypes_say_so(place, tmp_path):
    done, _ = explain(read_material(place / "abmil"), tmp_path, only=SLIDES[:1])
    assert done.notes == ("There are no prototypes: abmil has no inducing points.",)
    assert not (tmp_path / "prototypes").exists()
    assert not [row for row in rows_of(tmp_path / "patches" / "s 0.csv") if row["kind"] == "unsure"]


def test_without_embeddings_there_are_maps_and_a_reason(bare, tmp_path):
    lost = replace(bare, bags=None, bags_missing="They are lost.")
    done, _ = explain(lost, tmp_path, only=SLIDES[:1])
    assert done.notes == ("There are no prototypes: They are lost.",)
    assert (tmp_path / "maps" / f"{SLIDES[0]}.png").exists()


def test_without_coordinates_there_are_no_maps(bare, tmp_path):
    def nowhere(fold):
        predictions = tuple(
            replace(p, instances=replace(p.instances, coords=None)) for p in fold.test.predictions
        )
        return replace(fold, test=replace(fold.test, predictions=predictions))

    lost = replace(bare, folds=tuple(nowhere(fold) for fold in bare.folds))
    done, _ = explain(lost, tmp_path, only=SLIDES[:1], prototypes="none", export=("csv",))
    assert done.slides[0].status == "done"
    assert "no maps of these slides, and nothing is exported of them (csv)." in done.notes[0]
    assert files(tmp_path) == {
        "explanation.json",
        "limits.json",
        "slides.csv",
        f"patches/{SLIDES[0]}.png",
        f"patches/{SLIDES[0]}.csv",
    }


def test_a_slide_that_two_folds_tested_has_files_of_each(bare, tmp_path):
    twice = replace(bare.folds[1], test=bare.folds[0].test)
    both = replace(bare, folds=(bare.folds[0], twice))
    explain(both, tmp_path, prototypes="none", only=SLIDES[:1])
    names = {path.name for path in (tmp_path / "maps").iterdir()}
    assert names == {f"{SLIDES[0]}.fold-0.png", f"{SLIDES[0]}.fold-1.png"}


def test_what_is_not_there_is_refused(bare, tmp_path):
    with pytest.raises(ExplanationError, match="'s9'"):
        explain(bare, tmp_path, only=("s9",))
    with pytest.raises(ExplanationError, match="among 0, 1"):
        explain(bare, tmp_path, fold=("7",))
    with pytest.raises(ExplanationError, match="among normal, tumour"):
        explain(bare, tmp_path, class_name="cancer")
    without = [
        replace(
            fold,
            test=replace(
                fold.test,
                predictions=tuple(replace(p, instances=None) for p in fold.test.predictions),
            ),
        )
        for fold in bare.folds
    ]
    with pytest.raises(ExplanationError, match="scores of the instances"):
        explain(replace(bare, folds=tuple(without)), tmp_path)
    assert not files(tmp_path)


def prototypes_of(material, monkeypatch, **options):
    """Give the prototypes of fold 0, and whether they were computed."""
    computed = []
    find = run_explanation.explain_prototypes

    def note(*arguments, **settings):
        computed.append(1)
        return find(*arguments, **settings)

    monkeypatch.setattr(run_explanation, "explain_prototypes", note)
    explanation = run_explanation.explain(
        ExplainOptions(run=material.path, **options), material, Progress()
    )
    found = explanation.prototypes("0")
    monkeypatch.undo()
    return explanation, found, bool(computed)


def test_what_was_explained_is_read_again_where_nothing_differs(bare, tmp_path, monkeypatch):
    fresh, expected, is_computed = prototypes_of(bare, monkeypatch, out=tmp_path)
    assert is_computed
    explain(bare, tmp_path)
    again, found, is_computed = prototypes_of(bare, monkeypatch, out=tmp_path)
    assert not is_computed
    assert repr(found.prototypes) == repr(expected.prototypes)
    for slide_id, own in expected.slides.items():
        np.testing.assert_array_equal(found.slides[slide_id].assigned, own.assigned)
    assert again.limits == fresh.limits
    # Every setting that prototypes depend on makes them anew, and so do other predictions.
    for changed in ({"prototypes": "cosine"}, {"min_coverage": 0.1}, {"features": tmp_path}):
        assert prototypes_of(bare, monkeypatch, out=tmp_path, **changed)[2]
    first = bare.folds[0]
    rows = tuple(replace(p, std=p.std + 0.01) for p in first.test.predictions)
    other = replace(first, test=replace(first.test, predictions=rows))
    assert prototypes_of(replace(bare, folds=(other, *bare.folds[1:])), monkeypatch, out=tmp_path)[
        2
    ]
    # A damaged file is not used.
    (tmp_path / "prototypes" / "fold-0" / "prototypes.npz").write_bytes(b"broken")
    assert prototypes_of(bare, monkeypatch, out=tmp_path)[2]


def test_the_report_reads_what_was_explained(place, tmp_path, monkeypatch):
    run = shutil.copytree(place / "sgpmil", tmp_path / "run")
    options = ReportOptions(run=run, bootstrap=0, out=tmp_path / "page.html", overwrite=True)
    computed = write_report(options).page.read_text(encoding="utf-8")
    write_explanation(ExplainOptions(run=run, most=1))
    # Whether prototypes can be computed no longer matters.
    monkeypatch.setattr(run_explanation, "explain_prototypes", None)
    read = write_report(options).page.read_text(encoding="utf-8")
    section = computed[computed.index('id="prototypes"') : computed.index('id="slides"')]
    assert section in read
    assert "The prototypes of the sheet." in section
