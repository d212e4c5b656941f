"""Damaged and hostile descriptions of runs and models, as a user meets them: in the commands."""

import json
import os
import shutil

import h5py
import pytest
import torch

import sgpmil as package
from sgpmil.bags.files import read_json, read_text, regular_file
from sgpmil.bags.splits import make_kfold
from sgpmil.errors import CheckpointError, SgpmilError
from sgpmil.training.cross_validation import cross_validate
from tests.faults.commands import run_command, write_features

pytestmark = [
    pytest.mark.filterwarnings("always"),  # warnings are printed, as for users
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes"),
]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run, and the model that was exported from it."""
    folder = tmp_path_factory.mktemp("written")
    write_features(folder)
    bags = package.read_bags(folder / "features", labels=folder / "labels.csv")
    sizes = {"hidden_dims": (8,), "gp_dim": 4, "num_inducing": 5, "num_samples": 4}
    cross_validate(
        bags,
        make_kfold(bags.label_table(), num_folds=2, seed=0),
        model="sgpmil",
        model_settings={**sizes, "prediction_samples": 16, "prediction_error": 0.0},
        training={"epochs": 1, "device": "cpu"},
        run=folder / "run",
        data={"folder": str(folder / "features"), "labels": str(folder / "labels.csv")},
    )
    assert run_command(["export", folder / "run", "--to", folder / "exported"]).code == 0
    (folder / "run" / "sources.json").write_text("{}")
    return folder


@pytest.fixture
def place(written, tmp_path):
    shutil.copytree(written, tmp_path / "place")
    return tmp_path / "place"


def predict(place, model="run"):
    return ["predict", place / model, place / "features", "--out", place / "p"]


def evaluate(place):
    return ["evaluate", place / "run", "--bootstrap", 0]


def explain(place):
    words = ("--most", 1, "--fold", 0, "--score", "attention", "--out", place / "e")
    return ["explain", place / "run", *words]


def exported(place):
    return predict(place, "exported")


def checked(words):
    """Run a command; return its exit code and what it said, a sentence where it refused."""
    ended = run_command(words)
    assert ended.code in (0, 2), ended.said
    assert ended.code == 0 or ended.said.count("\n") == 1, ended.said
    return ended.code, ended.said


def replaced_by_a_pipe(path):
    path.unlink()
    os.mkfifo(path)


FILES = [
    ("run/run.json", predict, 2),
    ("run/run.json", evaluate, 2),
    ("run/run.json", explain, 2),
    # What a run has seen is unknown then; it predicts all the same.
    ("run/slides.json", predict, 0),
    ("run/sources.json", evaluate, 0),
    ("run/fold-0/checkpoint.json", predict, 2),
    ("run/fold-0/checkpoint.safetensors", predict, 2),
    ("run/fold-0/predictions.parquet", evaluate, 2),
    ("exported/config.json", exported, 2),
    ("exported/slides.json", exported, 0),
    ("exported/model.safetensors", exported, 2),
]


@pytest.mark.parametrize(("name", "command", "code"), FILES)
def test_a_pipe_is_not_waited_for(place, name, command, code):
    replaced_by_a_pipe(place / name)
    found, said = checked(command(place))
    assert found == code, said
    assert code == 0 or str(place / name) in said


NESTED = [entry for entry in FILES if entry[0].endswith(".json") and "sources" not in entry[0]]


@pytest.mark.parametrize(("name", "command", "code"), NESTED)
def test_deep_nesting_is_no_error_of_python(place, name, command, code):
    (place / name).write_text("[" * 200_000)
    found, said = checked(command(place))
    assert found == code, said
    assert code == 0 or str(place / name) in said


@pytest.mark.parametrize("content", ["[" * 200_000, None])
def test_sources_that_cannot_be_read_are_named_again(place, content):
    from sgpmil.runs import Run

    path = place / "run" / "sources.json"
    replaced_by_a_pipe(path) if content is None else path.write_text(content)
    run = Run.open(place / "run")
    assert run.sources == {}
    run.remember_sources(slides=place)
    assert run.sources == {"slides": str(place)}


def test_nuclei_in_a_pipe_are_named_at_once_and_at_every_later_time(place):
    (place / "nuclei").mkdir()
    for number in range(12):
        os.mkfifo(place / "nuclei" / f"s{number}.json")
    for words in (["--nuclei", place / "nuclei"], []):
        ended = run_command([*explain(place), "--overwrite", *words])
        assert ended.code == 0, ended.said  # all but the prototypes is explained
        assert "no regular file" in ended.said
        assert str(place / "nuclei") in ended.said


def test_a_recipe_and_splits_may_be_pipes(place):
    os.mkfifo(place / "recipe.yaml")
    code, said = checked(["train", "--recipe", place / "recipe.yaml", "--run", place / "new"])
    assert code == 2
    assert str(place / "recipe.yaml") in said
    os.mkfifo(place / "splits.json")
    code, said = checked(["splits", place / "labels.csv", "--check", place / "splits.json"])
    assert code == 2
    assert str(place / "splits.json") in said


def test_what_a_resume_reads_may_be_pipes(tmp_path):
    from sgpmil.training.fold_files import FoldFiles

    files = FoldFiles(tmp_path, seed=0)
    os.mkfifo(tmp_path / "last.ckpt")
    with pytest.raises(CheckpointError, match=r"last\.ckpt"):
        files.read_last()
    os.mkfifo(tmp_path / "metrics.csv")
    files.start_metrics(3)
    assert (tmp_path / "metrics.csv").read_text().startswith("epoch,")


def test_verdicts_in_a_pipe_are_refused(tmp_path):
    from sgpmil.viewer.reviews import ReviewError, Reviews

    os.mkfifo(tmp_path / "reviews.sqlite")
    with pytest.raises(ReviewError, match="no regular file"):
        Reviews(tmp_path / "reviews.sqlite", read_only=True).all()


def test_a_store_whose_coordinates_are_a_pipe_is_refused(place):
    store = place / "store"
    words = ["pack", place / "features", store, "--labels", place / "labels.csv"]
    assert checked(words)[0] == 0
    replaced_by_a_pipe(store / "coords.npy")
    code, said = checked(["inspect", store])
    assert code == 2
    assert str(store / "coords.npy") in said


def test_small_files_are_read_with_limits(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf[1]")
    assert read_json(path) == [1]
    with pytest.raises(ValueError, match="more than 5 bytes"):
        read_text(path, most_bytes=5)
    for text in ("[" * 200_000, "[" * 100 + "]" * 100, '{"a":' * 900 + "1" + "}" * 900):
        path.write_text(text)
        with pytest.raises(ValueError, match="nested too deeply"):
            read_json(path)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        regular_file(tmp_path)


def test_no_module_reads_json_in_another_way():
    """Those of the encoders and outlines look for a regular file themselves."""
    root = os.path.dirname(package.__file__)
    own = {"bags/files.py", "slides/annotations/region_files.py"}
    own |= {f"slides/encoders/{name}.py" for name in ("own_models", "checkpoints")}
    found = set()
    for folder, _, names in os.walk(root):
        for name in (one for one in names if one.endswith(".py")):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = file.read()
            if "json.load(" in text or any(
                "json.loads" in line and "read_" in line for line in text.splitlines()
            ):
                found.add(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/"))
    assert found <= own


# -- values -------------------------------------------------------------------------------------


def change(path, *way, to):
    content = inner = json.loads(path.read_text())
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = to
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("data", "labels"), 5),
        (("data", "folder"), {"a": 1}),
        (("folds",), []),
        (("folds",), ["0", "0"]),
        (("settings", "training"), None),
        (("settings", "model_settings"), 5),
        (("settings", "training", "seed"), {}),
        (("created",), 5),
        (("versions",), {"torch": []}),
    ],
)
def test_a_run_of_impossible_values_is_one_sentence(place, way, value):
    change(place / "run" / "run.json", *way, to=value)
    for command in (predict, evaluate, explain):
        code, said = checked(command(place))
        assert code == 2
        assert str(place / "run" / "run.json") in said


@pytest.mark.parametrize("file", ["exported/config.json", "run/fold-0/checkpoint.json"])
@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("format_version",), float("inf")),
        (("shares", "training"), ""),
        (("shares", "drawn"), [0.5, 0.25, 0.25]),
        (("shares", "expected"), [float("nan"), 2.0]),
        (("settings", "num_samples"), 10**8),
        (("settings", "num_samples"), 2**70),
        (("settings", "prediction_samples"), 10**9),
        (("settings", "prediction_samples"), 1e9),
        (("settings", "noise_seed"), 2**70),
        (("settings", "hidden_dims"), [10**9]),
    ],
)
def test_a_model_of_impossible_values_is_one_sentence(place, file, way, value):
    first = ("folds", 0) if file.startswith("exported") and way != ("format_version",) else ()
    change(place / file, *first, *way, to=value)
    with pytest.raises(SgpmilError) as caught:
        package.load((place / file).parent)
    assert "\n" not in str(caught.value)
    assert str((place / file).parent) in str(caught.value)


@pytest.mark.parametrize("file", ["exported/config.json", "run/fold-0/checkpoint.json"])
def test_an_unknown_origin_of_features_is_none(place, file):
    first = ("folds", 0) if file.startswith("exported") else ()
    change(place / file, *first, "details", "features", to={"patch_sizes": [float("inf")]})
    assert not package.load((place / file).parent)[0].origin


def test_slides_that_are_no_names_are_left_out(place):
    change(place / "exported" / "slides.json", "train", to=[None, {}, "0123456789abcdef"])
    model = package.load(place / "exported")
    assert model.seen.train == {"0123456789abcdef"}
    model.predict(package.read_bags(place / "features"), warn=False)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("\n1,", "\nabc,"),
        lambda text: text.replace("\n1,", "\n\0,"),
        lambda text: b"\xff\xfe" + text.encode(),
        lambda text: "a,b\n1,2\n",
        lambda text: text + "2," + "9" * 200_000,
    ],
)
def test_damaged_curves_do_not_stop_a_resume(tmp_path, damage):
    from sgpmil.training.fold_files import FoldFiles, read_metrics

    files = FoldFiles(tmp_path, seed=0)
    files.start_metrics(0)
    path = tmp_path / "metrics.csv"
    columns = path.read_text().strip().split(",")
    for epoch in range(3):
        files.add_metrics(dict.fromkeys(columns, 0.5) | {"epoch": epoch})
    whole = read_metrics(tmp_path)
    assert [row["epoch"] for row in whole] == ["0", "1", "2"]
    content = damage(path.read_text())
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    kept = read_metrics(tmp_path)
    assert all(row in whole for row in kept)
    files.start_metrics(2)
    files.add_metrics(dict.fromkeys(columns, 0.5) | {"epoch": 2})
    assert read_metrics(tmp_path)[-1]["epoch"] == "2"


# -- what is printed ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["escapes", "bytes"])
def test_an_attribute_cannot_command_the_terminal(place, capfd, kind):
    for path in (place / "features").iterdir():
        with h5py.File(path, "r+") as file:
            if kind == "escapes":
                file["features"].attrs["encoder"] = "uni\x1b[31mRED\x1b]0;title\x07"
            else:
                text = h5py.string_dtype("utf-8")
                file["features"].attrs.create("encoder", b"uni\xff\xfe\x80", dtype=text)
    from sgpmil.cli.main import run

    capfd.readouterr()
    with pytest.raises(SystemExit):
        run(["inspect", str(place / "features")])
    out, error = capfd.readouterr()
    assert not {"\x1b", "\x07"} & set(out + error)
    out.encode("utf-8")
    assert ("uni\\x1b[31mRED" if kind == "escapes" else "uni\\udcff") in out


def test_colours_of_the_console_stay():
    import io

    from rich.table import Table

    from sgpmil.terminal import HarmlessConsole

    console = HarmlessConsole(file=io.StringIO(), force_terminal=True, color_system="standard")
    table = Table("name", title="slides")
    table.add_row("a\x1b[32mb", style="red")
    console.print(table)
    said = console.file.getvalue()
    assert "\x1b[31m" in said
    assert "\x1b[32m" not in said
    assert r"a\x1b" in said


# -- models that are larger than their weights ----------------------------------------------------


@pytest.mark.parametrize("name", package.list_models())
def test_every_model_is_built_without_its_numbers(name):
    """Otherwise a description of a few bytes could ask for terabytes."""
    from sgpmil.models import build_model

    with torch.device("meta"):
        shell = build_model(name, in_dim=8, num_classes=2)
    whole = build_model(name, in_dim=8, num_classes=2)
    sizes = {key: value.shape for key, value in whole.state_dict().items()}
    assert {key: value.shape for key, value in shell.state_dict().items()} == sizes
