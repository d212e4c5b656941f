"""Slides of hostile names through everything that writes a file for each slide."""

import csv
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("shapely", reason="pip install '.[slides]'")

from sgpmil.bags import BagDataset, make_kfold, read_bags, read_labels, read_splits
from sgpmil.bags.files import file_name, identifier_of
from sgpmil.bags.labels import clean_slide_id
from sgpmil.bags.packing import pack_bags
from sgpmil.bags.target import ClassTarget
from sgpmil.bags.torchmil_sets import from_torchmil, to_torchmil
from sgpmil.errors import BagError, PredictionError
from sgpmil.evaluation.prediction import InstanceScores, Prediction, SlideName
from sgpmil.explanation.run_explanation import ExplainOptions
from sgpmil.models import load_model
from sgpmil.report.explanation_files import write_explanation
from sgpmil.report.pages.run_report import ReportOptions
from sgpmil.report.report_files import write_report
from sgpmil.runs import Run, prediction_folder
from sgpmil.runs.prediction_files import read_predictions
from sgpmil.runs.prediction_folder import write_prediction_folder
from sgpmil.training.cross_validation import cross_validate
from tests.faults.hostile_names import PATHS, REFUSED, STRANGE

NAMES = (*PATHS, "/absolute/path", *STRANGE)


def bags_of(names, **changes):
    labels = [number % 2 for number in range(len(names))]
    rng = np.random.default_rng(0)
    given = {
        "slide_ids": names,
        "class_names": ["=a", "b"],
        "coords": [256 * np.arange(10).reshape(5, 2)] * len(names),
        "patch_size": 256,
        **changes,
    }
    features = [rng.normal(size=(5, 4)).astype(np.float32) + label for label in labels]
    return BagDataset.from_arrays(features, labels, **given)


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def deep(tmp_path):
    """A folder to write to, far enough below one in which strange files would be seen."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    yield tmp_path / "a" / "b" / "c" / "out"
    outside = {path for path in files_in(tmp_path) if "out" not in path.parts}
    assert not outside
    assert not Path("/absolute").exists()


def test_names_of_files_stay_apart_on_every_system_and_are_read_back():
    found = {name: file_name(name) for name in NAMES}
    assert {identifier_of(file): name for name, file in found.items()} == {n: n for n in NAMES}
    for name in found.values():
        assert not set(name) & set('<>:"/\\|?*')
        assert not name.startswith(".")
        assert not name.endswith((".", " "))
        assert name.partition(".")[0].casefold() not in ("con", "aux", "nul", "com1", "lpt9")
    # macOS takes both spellings of é for one name.
    as_macos = [unicodedata.normalize("NFD", name) for name in found.values()]
    assert len(set(as_macos)) == len(NAMES)


def test_names_that_differ_in_their_case_are_refused_where_a_disk_does_not_tell_them_apart(
    tmp_path, monkeypatch
):
    slides = [SlideName(name, name, 0) for name in ("Slide", "slide")]
    scores = InstanceScores(np.ones(3), np.zeros(3))
    found = [
        replace(one, instances=scores)
        for one in Prediction.from_batch(slides, np.full((2, 3, 2), 0.5, np.float32))
    ]
    target = ClassTarget(("a", "b"))
    folder = write_prediction_folder(tmp_path / "linux", found, target)
    assert folder.slide_ids == ("Slide", "slide")
    # As if on Windows or macOS.
    monkeypatch.setattr(prediction_folder, "file_name", lambda name: file_name(name).casefold())
    with pytest.raises(PredictionError, match="differ in their case alone"):
        write_prediction_folder(tmp_path / "windows", found, target)


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_names_that_no_file_can_have_are_refused_where_they_enter(tmp_path, name):
    with pytest.raises(BagError, match="can be file names"):
        bags_of(["good", name])
    slides = [SlideName("good", "a", 0), SlideName(name, "b", 1)]
    found = Prediction.from_batch(slides, np.full((2, 3, 2), 0.5, np.float32))
    with pytest.raises(PredictionError, match=r"Expected (a name|names)") as refused:
        write_prediction_folder(tmp_path / "p", found, ClassTarget(("a", "b")))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", [*PATHS, "/absolute/path"])
def test_bags_cannot_have_the_names_of_paths(name):
    with pytest.raises(BagError, match="can be file names"):
        bags_of(["good", name])


@pytest.mark.parametrize("name", [*REFUSED[:2], "n" * 300])
def test_tables_of_other_systems_are_refused_for_such_names(tmp_path, name):
    path = tmp_path / "predictions.csv"
    with path.open("w", newline="") as file:
        rows = [("slide_id", "label", "prob_a", "prob_b"), ("s", "a", 0.5, 0.5)]
        csv.writer(file).writerows([*rows, (name, "b", 0.5, 0.5)])
    with pytest.raises(PredictionError, match=r"predictions\.csv"):
        read_predictions(path)


@pytest.mark.slow
def test_bags_of_strange_names_are_trained_packed_predicted_and_handed_on(deep):
    bags = bags_of(STRANGE)
    folds = make_kfold(bags.label_table(), num_folds=2, val_fraction=0.2, seed=0)
    small = {"hidden_dim": 4, "attention_dim": 3}
    training = {"epochs": 1, "device": "cpu"}
    place = deep / "run"
    cross_validate(bags, folds, model="abmil", model_settings=small, training=training, run=place)
    run = Run.open(place)
    tested = {slide: fold for fold in run.folds.values() for slide in fold.predictions.slide_ids}
    assert sorted(tested) == sorted(STRANGE)
    assert all(fold.instance_scores(slide) is not None for slide, fold in tested.items())
    # Split files may name slides with their suffix or folder, so both are taken off.
    assert [set(fold.test) for fold in run.splits.values()] == [
        {clean_slide_id(slide) for slide in fold.test} for fold in folds
    ]
    load_model(run.folds["0"].checkpoint)

    pack_bags(bags, deep / "store")
    assert set(read_bags(deep / "store").slide_ids) == set(STRANGE)

    opened = to_torchmil(bags, deep / "torchmil", fold=folds[0], bag_keys=["X", "Y"])
    again = from_torchmil(opened)
    assert set(again.slide_ids) == set(STRANGE)
    for found, bag in zip(again.subset(STRANGE), bags, strict=True):
        np.testing.assert_array_equal(found.features, bag.features)
    table = read_labels(deep / "torchmil" / "labels.csv")
    assert len(table) == len(STRANGE)
    assert {row.label for row in table} == {"=a", "b"}
    (fold,) = read_splits(deep / "torchmil" / "splits.csv", table)
    assert len(fold.train) + len(fold.val) + len(fold.test) == len(STRANGE)
    for path in deep.rglob("*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            cells = [cell for row in csv.reader(file) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "@"))], path


@pytest.mark.slow
def test_predictions_of_hostile_names_are_explained_and_reported_inside_their_folder(deep):
    names = (*PATHS, str(deep.parent / "absolute"), "con", "=1+1", "<img src=x onerror=alert(1)>")
    slides = [SlideName(name, f"case {name}", n % 2) for n, name in enumerate(names)]
    rng = np.random.default_rng(0)
    found = Prediction.from_batch(slides, rng.dirichlet((1, 1), (len(names), 6)).astype(np.float32))
    coords = 256 * np.stack(np.meshgrid(range(3), range(3)), -1).reshape(-1, 2)
    scores = InstanceScores(np.full(9, 1 / 9), np.zeros(9), coords=coords, patch_size=256)
    rows = [replace(one, instances=scores) for one in found]
    write_prediction_folder(deep / "p", rows, ClassTarget(("a", "b")))
    assert read_predictions(deep / "p").slide_ids == names

    kinds = ("geojson", "csv", "parquet", "tiff", "tiatoolbox")
    options = ExplainOptions(run=deep / "p", export=kinds, score=("attention",))
    done = write_explanation(options)
    assert {slide.status for slide in done.slides} == {"done"}
    folders = [path for path in done.folder.path.iterdir() if path.is_dir()]
    assert {path.name for path in folders} >= {"maps", "patches", "geojson", "tables", "tiff"}
    for folder in folders:
        suffixes = {path.suffix for path in folder.iterdir()}
        for suffix in suffixes:
            files = [path.name for path in folder.iterdir() if path.suffix == suffix]
            stems = {identifier_of(name.removesuffix(suffix)) for name in files}
            assert {stem.removesuffix(".ome") for stem in stems} == set(names), folder

    written = write_report(ReportOptions(run=deep / "p", case=names[:2] + names[-2:], bootstrap=0))
    assert len(written.cases) == 4
    page = written.page.read_text()
    assert "<img src=x onerror" not in page
