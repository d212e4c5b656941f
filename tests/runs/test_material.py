import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tifffile", reason="pip install '.[slides]'")
pytest.importorskip("shapely", reason="pip install '.[slides]'")

from sgpmil.bags.splits import Fold
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError, ExplanationError, SettingsError, SlideError
from sgpmil.evaluation import InstanceScores, Prediction, PredictionTable
from sgpmil.runs.material import MaterialOptions, find_embeddings, read_material, run_facts
from sgpmil.runs.run import Run
from sgpmil.runs.slide_picture import MissingMaterialWarning
from sgpmil.slides.annotations import open_annotations
from tests.slides.extraction.drawn_files import HEIGHT, WIDTH, write_slide

COORDS = np.array([(0, 0), (256, 0), (0, 256), (256, 256)])


def table(*slide_ids):
    scores = InstanceScores(np.arange(4.0), np.zeros(4), coords=COORDS, patch_size=256)
    predictions = [
        Prediction.from_samples(s, s, i % 2, np.array([[0.4, 0.6]]), scores)
        for i, s in enumerate(slide_ids)
    ]
    return PredictionTable(tuple(predictions), ClassTarget(("normal", "tumour")))


@pytest.fixture
def run(tmp_path):
    features = tmp_path / "features"
    features.mkdir()
    for name in "abc":
        np.save(features / f"{name}.npy", np.ones((4, 2), np.float32))
    folds = (Fold("0", ("c",), (), ("a", "b")), Fold("1", ("a",), (), ("c",)))
    made = Run.create(
        tmp_path / "run", folds, {"model": "abmil"}, data={"folder": features, "labels": None}
    )
    made.folds["0"].write(table("a", "b"))
    return made.path


def draw(folder, **rings):
    folder.mkdir()
    for name, ring in rings.items():
        feature = {
            "type": "Feature",
            "properties": {"classification": {"name": "Tumor"}},
            "geometry": {"type": "Polygon", "coordinates": [ring]},
        }
        content = {"type": "FeatureCollection", "features": [feature]}
        (folder / f"{name}.geojson").write_text(json.dumps(content))
    return open_annotations(folder)


def test_a_run_brings_its_embeddings_and_says_what_is_not_done(run):
    found = read_material(run)
    assert (found.model, found.target.names) == ("abmil", ("normal", "tumour"))
    assert [fold.name for fold in found.folds] == ["0"]
    assert found.unfinished == ("1",)
    assert found.bags is not None
    assert found.bags.slide_ids == ("a", "b")
    assert [p.slide_id for _, p in found.predictions()] == ["a", "b"]
    assert found.sources.picture("a").pixels is None


def test_embeddings_that_moved_are_missed_in_a_sentence_unless_they_were_named(run, tmp_path):
    (tmp_path / "features").rename(tmp_path / "elsewhere")
    found = read_material(run)
    assert found.bags is None
    assert "`features`" in found.bags_missing
    assert read_material(run, features=tmp_path / "elsewhere").bags is not None
    with pytest.raises(BagError):
        read_material(run, features=tmp_path / "nowhere")


def test_embeddings_of_other_slides_are_refused(run, tmp_path):
    (tmp_path / "others").mkdir()
    np.save(tmp_path / "others" / "x.npy", np.ones((4, 2), np.float32))
    with pytest.raises(BagError, match="those of others"):
        read_material(run, features=tmp_path / "others")


def test_slides_are_found_below_the_folder_and_measured(run, tmp_path):
    deep = tmp_path / "slides" / "batch 1"
    deep.mkdir(parents=True)
    write_slide(deep / "a.tiff", mpp=None)
    with pytest.warns(MissingMaterialWarning, match=r"found in .* for 1 slide, shown without"):
        found = read_material(run, slides=tmp_path / "slides", mpp=0.25)
    picture = found.sources.picture("a", longest=200)
    assert picture.pixels is not None
    assert max(picture.pixels.shape) == 200
    assert (picture.size, picture.mpp) == ((WIDTH, HEIGHT), 0.25)
    assert found.sources.open("b") is None


def test_what_a_slide_says_of_its_pixels_counts_more_than_the_option(run, tmp_path):
    (tmp_path / "slides" / "thumbnails").mkdir(parents=True)
    write_slide(tmp_path / "slides" / "a.tiff", mpp=0.5)
    write_slide(tmp_path / "slides" / "b.tiff", mpp=0.5)
    write_slide(tmp_path / "slides" / "thumbnails" / "a.tiff", mpp=8.0)
    found = read_material(run, slides=tmp_path / "slides", mpp=0.25)
    assert found.sources.picture("a").mpp == pytest.approx(0.5)


@pytest.mark.parametrize("mpp", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_pixels_are_refused(run, mpp):
    with pytest.raises(SettingsError, match="`mpp` above 0"):
        read_material(run, mpp=mpp)


def test_damaged_scores_of_one_slide_cost_no_other(run):
    (run / "fold-0" / "attention" / "a.h5").write_bytes(b"not HDF5")
    found = read_material(run)
    assert "a.h5" in found.damaged["a"]
    known = {p.slide_id: p.instances is not None for _, p in found.predictions()}
    assert known == {"a": False, "b": True}


def test_the_folder_of_a_fold_knows_its_run(run):
    found = read_material(run / "fold-0")
    assert found.model == "abmil"
    assert found.bags is not None


def test_slides_of_another_run_are_refused(run, tmp_path):
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "x.tiff")
    with pytest.raises(SlideError, match="such as 'x'"):
        read_material(run, slides=tmp_path / "slides")


def test_annotations_are_outlined_and_label_the_patches(run, tmp_path):
    ring = [[256, 0], [512, 0], [512, 256], [256, 256], [256, 0]]
    found = read_material(run, annotations=draw(tmp_path / "drawn", b=ring))
    picture = found.sources.picture("b", "tumour")
    assert picture.outlined == "tumor"
    assert {tuple(corner) for corner in picture.outlines[0]} == {tuple(corner) for corner in ring}
    labels = {p.slide_id: p.instances.instance_labels.tolist() for _, p in found.predictions()}
    assert labels == {"a": [0, 0, 0, 0], "b": [0, 1, 0, 0]}


def test_a_run_of_which_nothing_is_done_cannot_be_explained(tmp_path):
    Run.create(tmp_path / "run", (Fold("0", ("c",), (), ("a",)),), {"model": "abmil"})
    with pytest.raises(ExplanationError, match="`resume=True`"):
        read_material(tmp_path / "run")


def test_nuclei_are_named_after_slides(run, tmp_path):
    (tmp_path / "nuclei").mkdir()
    with pytest.raises(ExplanationError, match="Name them after the slides"):
        read_material(run, nuclei=tmp_path / "nuclei")
    (tmp_path / "nuclei" / "a.json").write_text("{}")
    with pytest.warns(MissingMaterialWarning, match="No nuclei found in"):
        found = read_material(run, nuclei=tmp_path / "nuclei")
    assert replace(found.sources, mpp=0.5).nuclei == {"a": tmp_path / "nuclei" / "a.json"}


def test_patients_are_read_from_the_columns_that_the_run_used(run, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("name,diagnosis,who\na,normal,anna\nb,tumour,anna\nc,normal,carl\n")
    content = json.loads((run / "run.json").read_text())
    columns = {"slide_column": "name", "label_column": "diagnosis", "case_column": "who"}
    content["data"] |= {"labels": str(table), **columns}
    (run / "run.json").write_text(json.dumps(content))
    # The predictions know the patients of the tested slides; c was only trained on.
    assert run_facts(read_material(run)).patients == {"a": "a", "b": "b", "c": "carl"}
    table.unlink()
    assert run_facts(read_material(run)).patients == {"a": "a", "b": "b"}


def test_a_run_remembers_where_slides_and_annotations_were_named(run, tmp_path):
    slides, drawn = tmp_path / "slides", tmp_path / "drawn"
    slides.mkdir()
    for name in "ab":
        write_slide(slides / f"{name}.tiff")
    draw(drawn, b=[(0, 0), (256, 0), (256, 256), (0, 256), (0, 0)])
    assert not MaterialOptions(run=run).read_material().sources.files
    MaterialOptions(run=run, annotations=drawn, regions=("Tumor",)).read_material()
    assert not Run.open(run).sources  # without its rule, the folder would mean something else
    MaterialOptions(run=run, slides=slides, annotations=drawn).read_material()
    assert Run.open(run).sources == {"slides": str(slides), "annotations": str(drawn)}
    found = MaterialOptions(run=run).read_material()
    assert set(found.sources.files) == {"a", "b"}
    assert found.sources.annotations is not None
    assert found.folds[0].test.predictions[1].instances.instance_labels.tolist() == [1, 0, 0, 0]
    slides.rename(tmp_path / "elsewhere")
    assert not MaterialOptions(run=run).read_material().sources.files
    Run.open(run).sources_path.write_text("{damaged")
    assert not MaterialOptions(run=run).read_material().sources.annotations


def test_the_outline_of_a_run_has_its_slides_without_their_patches(run):
    options = MaterialOptions(run=run)
    outline, whole = options.read_outline(), options.read_material()
    assert outline.slide_ids == whole.slide_ids
    assert all(p.instances is None for _, p in outline.predictions())
    assert any(p.instances is not None for _, p in whole.predictions())
    assert outline.bags is None
    assert whole.bags is not None
    bags, reason = find_embeddings(outline.run, None, outline.slide_ids)
    assert bags is not None
    assert (bags.slide_ids, reason) == (whole.bags.slide_ids, "")
