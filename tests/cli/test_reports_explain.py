import json
import shutil

import pytest

pytest.importorskip("openslide", reason="pip install '.[slides]'")
pytest.importorskip("shapely", reason="pip install '.[slides]'")

from sgpmil.bags import read_bags
from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation.predictor import predict
from sgpmil.models import load_model
from sgpmil.runs.prediction_folder import write_prediction_folder
from tests.report.explained_run import (
    CLASSES,
    SLIDES,
    write_annotations,
    write_features,
    write_run,
    write_slides,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explained")
    write_features(folder / "features")
    write_run(folder / "sgpmil", folder / "features")
    write_run(folder / "abmil", folder / "features", "abmil")
    write_slides(folder / "slides", SLIDES[:1])
    write_annotations(folder / "drawn")
    return folder


SOME_SHOWN = pytest.mark.filterwarnings("always::sgpmil.runs.slide_picture.MissingMaterialWarning")
"""Slides without a file are warned of, which is not to stop the command."""


@pytest.fixture
def run(made, tmp_path):
    """A run of one's own, to write into."""
    return shutil.copytree(made / "sgpmil", tmp_path / "run")


@SOME_SHOWN
def test_a_run_is_explained_into_its_folder(sgpmil, made, run):
    words = ("--slides", made / "slides", "--annotations", made / "drawn", "--only", SLIDES[0])
    words += ("--beside", made / "abmil", "--export", "csv,geojson", "--export", "csv")
    code, out, error = sgpmil("explain", run, *words)
    assert code == 0, error
    assert "for 3 slides, shown without" in error
    assert f"Explanation in {run / 'explanation'}" in out
    assert f"Next: sgpmil report {run}" in out
    found = {path.parent.name for path in (run / "explanation").rglob(f"{SLIDES[0]}.*")}
    assert found == {"maps", "patches", "comparison", "tables", "geojson"}
    record = json.loads((run / "explanation" / "explanation.json").read_text())
    assert record["slides"] == str(made / "slides")
    assert list(record["beside"]) == ["abmil"]
    code, out, _ = sgpmil("explain", run, *words)
    assert code == 0
    assert "existing" in out
    code, _, error = sgpmil("explain", run, *words, "--scale", "rank")
    assert code == 2
    assert "--overwrite" in error


@SOME_SHOWN
def test_a_slide_that_fails_is_reported_at_the_end(sgpmil, made, run, tmp_path):
    (tmp_path / "slides").mkdir()
    for name in SLIDES[2:]:
        (tmp_path / "slides" / f"{name}.tiff").write_bytes(b"")
    words = ("--slides", tmp_path / "slides", "--fold", "1", "--prototypes", "none", "--most", "1")
    code, out, _ = sgpmil("explain", run, *words)
    assert code == 1
    last = out.strip().splitlines()[-2]
    assert last.startswith(("s2: ", "s3: "))
    assert "0 bytes" in last
    assert "failed" in out


def test_predictions_of_new_slides_with_the_model_that_made_them(sgpmil, made, tmp_path):
    model, _ = load_model(made / "sgpmil" / "fold-0")
    found = predict(model, read_bags(made / "features"), class_names=CLASSES)
    write_prediction_folder(tmp_path / "new", found.predictions, ClassTarget(CLASSES))
    words = ("--features", made / "features", "--only", SLIDES[3])
    code, out, error = sgpmil("explain", tmp_path / "new", *words)
    assert code == 0, error
    assert "of these predictions no single model is known" in out
    model_words = ("--model", made / "sgpmil" / "fold-0", "--out", tmp_path / "out")
    code, out, error = sgpmil("explain", tmp_path / "new", *words, *model_words)
    assert code == 0, error
    assert (tmp_path / "out" / "prototypes" / "fold-0" / f"label-map-{SLIDES[3]}.png").exists()
    code, _, error = sgpmil("explain", made / "sgpmil", *model_words)
    assert code == 2
    assert "--model is for predictions" in error


def test_a_fold_and_a_deterministic_model(sgpmil, made, tmp_path):
    code, out, error = sgpmil(
        *("explain", made / "abmil" / "fold-1", "--out", tmp_path / "out", "--most", "1"),
        *("--scale", "minmax", "--class", "normal"),
    )
    assert code == 0, error
    assert "abmil has no inducing points" in out
    assert len(list((tmp_path / "out" / "maps").iterdir())) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--export", "svg"), "geojson, csv, parquet, tiff, tiatoolbox"),
        (("--regions", "Tumor"), "--annotations"),
        (("--only", "s9"), "'s9'"),
        (("--fold", "9"), "among 0, 1"),
        (("--class", "cancer"), "among normal, tumour"),
        (("--slides", "nowhere"), "nowhere"),
        (("--nuclei", "nowhere"), "nowhere"),
        (("--beside", "nowhere"), "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(sgpmil, made, tmp_path, words, said):
    code, _, error = sgpmil("explain", made / "sgpmil", *words, "--out", tmp_path / "out")
    assert code == 2
    assert said in " ".join(error.split())
    assert not (tmp_path / "out").exists()
