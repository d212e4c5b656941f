"""Damaged and hostile files as a user meets them: in the commands that read them."""

import json
import os
import zipfile

import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags import read_bags
from sgpmil.bags.target import ClassTarget
from sgpmil.errors import BagError, SgpmilError
from tests.faults.fuzzing import _fit as fit_last
from tests.faults.fuzzing import _released as write_released
from tests.faults.fuzzing import inflate_zip

pytestmark = pytest.mark.filterwarnings("always")  # warnings are printed, as for users


def attributes(**values):
    def damage(path):
        with h5py.File(path, "r+") as file:
            for name, value in values.items():
                (file["coords"] if name in file["coords"].attrs else file).attrs[name] = value

    return damage


def external_storage(path):
    secret = path.parent.parent / "secret"
    secret.write_bytes(bytes(range(96)))
    with h5py.File(path, "r+") as file:
        del file["features"]
        file.create_dataset("features", (6, 4), "f4", external=[(str(secret), 0, 96)])


def external_link(path):
    with h5py.File(path.with_name("000.slide.h5")) as other:
        assert "features" in other
    with h5py.File(path, "r+") as file:
        del file["features"]
        file["features"] = h5py.ExternalLink("000.slide.h5", "features")


def linked_group(path):
    """A link on the way to the data set, which a check of the last step misses."""
    with h5py.File(path, "r+") as file:
        del file["features"]
        file["other"] = h5py.ExternalLink("000.slide.h5", "/")
        file["features"] = h5py.SoftLink("/other/features")


def missing_source(path):
    layout = h5py.VirtualLayout((6, 4), "f4")
    layout[:] = h5py.VirtualSource("gone.h5", "features", (6, 4))
    with h5py.File(path, "r+") as file:
        del file["features"]
        file.create_virtual_dataset("features", layout)


def unwritten(path):
    with h5py.File(path, "r+") as file:
        del file["features"]
        file.create_dataset("features", (10**7, 1024), "f4", chunks=(1, 1024))


def features_of(array):
    def damage(path):
        with h5py.File(path, "r+") as file:
            del file["features"]
            file["features"] = array

    return damage


def coordinates_of(values):
    def damage(path):
        with h5py.File(path, "r+") as file:
            kept = dict(file["coords"].attrs)
            del file["coords"]
            file["coords"] = np.resize(values, (6, 2))
            file["coords"].attrs.update(kept)

    return damage


def labels_of(array):
    def damage(path):
        with h5py.File(path, "r+") as file:
            file["instance_labels"] = array

    return damage


def geometry_of_clam(**values):
    def damage(path):
        with h5py.File(path, "r+") as file:
            features, coords = file["features"][()], file["coords"][()]
        with h5py.File(path, "w") as file:
            file["features"], file["coords"] = features, coords
            file["coords"].attrs.update(values)

    return damage


def geometry_of_stamp(**values):
    def damage(path):
        with h5py.File(path, "r+") as file:
            features, coords = file["features"][()], file["coords"][()]
        with h5py.File(path, "w") as file:
            file["feats"], file["coords"] = features, coords
            file.attrs.update({"unit": "um", **values})

    return damage


def tensor(make):
    def damage(path):
        path.unlink()
        torch.save(make(), path.with_suffix(".pt"))

    return damage


def bad_name_in_the_archive(path):
    tensor(lambda: torch.ones(6, 4))(path)
    path = path.with_suffix(".pt")
    content = bytearray(path.read_bytes())
    entry = content.find(b"PK\x01\x02")
    content[entry + 9] |= 0x08  # names are UTF-8
    content[entry + 47] = 0xFF
    path.write_bytes(content)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "infinite patch side": attributes(patch_size_level0=np.inf),
    "patch side of nothing": attributes(patch_size_level0=0),
    "negative patch side": attributes(patch_size_level0=-256),
    "huge patch side": attributes(patch_size_level0=1e308),
    "coordinates beyond whole numbers": coordinates_of([2.0**64, 0.0]),
    "infinite coordinates": coordinates_of([np.inf, 0.0]),
    "infinite features": features_of(np.full((6, 4), np.inf, np.float32)),
    "wider features": features_of(np.ones((6, 5), np.float32)),
    "features of no width": features_of(np.ones((6, 0), np.float32)),
    "transposed features": features_of(np.ones((4, 6), np.float32)),
    "downsample of nothing": geometry_of_clam(patch_size=256, downsample=0),
    "downsample that is no number": geometry_of_clam(patch_size=256, downsample=np.nan),
    "infinite pixels": geometry_of_stamp(mpp=np.inf),
    "negative pixels": geometry_of_stamp(mpp=-0.5),
    "huge instance labels": labels_of(np.full(6, 1e300)),
    "instance labels of 64 bits": labels_of(np.full(6, 2**64 - 1, np.uint64)),
    "content of another file": external_storage,
    "link to another file": external_link,
    "link through another file": linked_group,
    "source that is gone": missing_source,
    "forty gigabytes in a kilobyte": unwritten,
    "no features": lambda path: path.write_bytes(b""),
    "half a file": lambda path: path.write_bytes(path.read_bytes()[:700]),
    "name that is no text": bad_name_in_the_archive,
    "quantised": tensor(lambda: torch.quantize_per_tensor(torch.ones(6, 4), 0.1, 0, torch.qint8)),
    "without data": tensor(lambda: torch.empty(6, 4, device="meta")),
    "nested": tensor(lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)])),
    "sparse": tensor(lambda: torch.ones(6, 4).to_sparse()),
    "one number that claims to be many": tensor(lambda: torch.zeros(1).expand(2**40, 4)),
    "a program": tensor(lambda: os.system),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_bag_never_stops_the_others(slides, sgpmil, tmp_path, damage):
    folder, labels = slides
    bad = "003.slide"
    if damage.startswith(("name", "quant", "without", "nested", "sparse", "one", "a program")):
        # A folder has files of one kind: tensors.
        for path in folder.glob("*.h5"):
            with h5py.File(path) as file:
                torch.save(torch.from_numpy(file["features"][()]), path.with_suffix(".pt"))
            if path.stem != bad:
                path.unlink()
        (folder / f"{bad}.pt").unlink()
    DAMAGES[damage](folder / f"{bad}.h5")

    code, out, error = sgpmil("inspect", folder, "--labels", labels)
    assert code == 1, error
    assert bad in out
    assert "Not ready" in out
    code, out, error = sgpmil("pack", folder, tmp_path / "strict", "--labels", labels)
    assert code == 2
    assert bad in error
    assert error.count("\n") == 1, "one sentence"
    assert not (tmp_path / "strict").exists()
    code, out, error = sgpmil("pack", folder, tmp_path / "store", "--labels", labels, "--skip-bad")
    assert code == 0, error
    assert bad in out + error, "left out in silence"
    packed = read_bags(tmp_path / "store")
    assert len(packed) == 19
    assert bad not in packed.slide_ids
    with pytest.raises(BagError, match=bad):
        [bag.features.sum() for bag in read_bags(folder)]


def test_a_pipe_named_as_a_bag_is_not_waited_for(slides, sgpmil):
    folder, labels = slides
    pipe(folder / "003.slide.h5")
    code, out, error = sgpmil("inspect", folder, "--labels", labels)
    assert code == 1, error
    assert "003.slide" in out + error


@pytest.mark.slow
def test_training_leaves_damaged_bags_out_by_name(slides, sgpmil, tmp_path):
    folder, labels = slides
    for number, damage in enumerate(("infinite patch side", "content of another file")):
        DAMAGES[damage](folder / f"{number:03d}.slide.h5")
    words = ("--features", folder, "--labels", labels, "--run", tmp_path / "run")
    words += ("--set", "data.folds=2", "--epochs", 1, "--model", "abmil")
    code, _, error = sgpmil("train", *words)
    assert code == 2
    assert "'000.slide', '001.slide'" in error
    assert not (tmp_path / "run").exists()
    code, out, error = sgpmil("train", *words, "--skip-bad")
    assert code == 0, error
    assert "18 slides" in out
    assert "'000.slide', '001.slide'" in error


# -- tables, recipes, annotations, checkpoints ----------------------------------------------------


def workbook(path, cells):
    import openpyxl

    book = openpyxl.Workbook()
    for row in cells:
        book.active.append(row)
    book.save(path)


def change_member(path, name, change):
    with zipfile.ZipFile(path) as archive:
        members = {one: archive.read(one) for one in archive.namelist()}
    members[name] = change(members[name])
    with zipfile.ZipFile(path, "w") as archive:
        for one, content in members.items():
            archive.writestr(one, content)


def bad_deflate(path):
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("xl/worksheets/sheet1.xml").header_offset
    content[place + 60 : place + 90] = b"\xff" * 30
    path.write_bytes(content)


TABLES = {
    "deflate": bad_deflate,
    "xml": lambda p: change_member(p, "xl/worksheets/sheet1.xml", lambda xml: xml[:-40]),
    "no sheet": lambda p: change_member(
        p, "xl/workbook.xml", lambda xml: xml[: xml.index(b"<sheets>")] + b"<sheets/></workbook>"
    ),
    "row of a billion": lambda p: change_member(
        p, "xl/worksheets/sheet1.xml", lambda xml: xml.replace(b'r="2"', b'r="1000000000"')
    ),
    "no archive": lambda p: p.write_bytes(b"slide_id,label"),
}


@pytest.mark.parametrize("damage", TABLES)
def test_damaged_workbooks_are_one_sentence(slides, sgpmil, tmp_path, damage):
    folder, labels = slides
    path = tmp_path / "labels.xlsx"
    workbook(path, [line.split(",") for line in labels.read_text().splitlines()])
    TABLES[damage](path)
    code, _, error = sgpmil("inspect", folder, "--labels", path)
    assert code == 2
    assert str(path) in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("cell", ["\x00", "a\x00b", "\x1b[31mred"])
def test_control_characters_in_a_name_are_refused_and_never_reach_the_terminal(
    slides, sgpmil, tmp_path, cell
):
    folder, labels = slides
    labels.write_bytes(labels.read_bytes() + f"case,{cell},tumor\n".encode())
    code, out, error = sgpmil("inspect", folder, "--labels", labels)
    assert code == 2
    assert not {"\x00", "\x1b"} & set(out + error)
    assert str(labels) in error or "labels" in error


RECIPES = {
    "date": "b: 2020-13-45",
    "bomb": "\n".join(
        ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    ),
    "endless": "a: &a [*a]",
    "code": "c: !!python/object/apply:os.system [exit]",
    "deep": "a: " + "[" * 5000,
    "bytes": b"\xff\xfe\x00",
    "long": "# " + "x" * 5_000_000,
    "merged": "a: &a {k: 1}\n"
    + "".join(
        f"a{n}: &a{n} {{<<: [{','.join(['*a' + (str(n - 1) if n else '')] * 10)}]}}\n"
        for n in range(8)
    ),
    "text many times": "x: &a " + "y" * 200_000 + "\nb: [" + ",".join(["*a"] * 2000) + "]",
    "sixties": "training: {epochs: 1" + ":59" * 20_000 + "}",
    "sixties with a point": "training: {learning-rate: 1" + ":59" * 20_000 + ".5}",
    "digits": "training: {epochs: 0x" + "f" * 20_000 + "}",
}


@pytest.mark.parametrize("damage", RECIPES)
def test_damaged_recipes_are_one_sentence(sgpmil, tmp_path, damage):
    path = tmp_path / "recipe.yaml"
    content = RECIPES[damage]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, _, error = sgpmil("train", "--recipe", path, "--run", tmp_path / "run")
    assert code == 2
    assert error.count("\n") == 1
    assert str(path) in error
    assert not (tmp_path / "run").exists()


def test_a_setting_on_the_command_line_may_be_a_bomb_too(slides, sgpmil, tmp_path):
    bomb = (
        "[&a [x,x,x,x,x,x,x,x,x,x], "
        + ", ".join(
            f"&{'b' * n} [{', '.join(['*' + ('b' * (n - 1) or 'a')] * 10)}]" for n in range(1, 9)
        )
        + "]"
    )
    words = ("--features", slides[0], "--labels", slides[1], "--run", tmp_path / "run")
    code, _, error = sgpmil("train", *words, "--set", f"model.settings.hidden_dims={bomb}")
    assert code == 2
    assert error.count("\n") == 1


@pytest.mark.parametrize("value", ["1" + ":59" * 20_000, "0x" + "f" * 20_000, "2020-13-45"])
def test_an_endless_number_on_the_command_line_is_one_sentence(slides, sgpmil, tmp_path, value):
    words = ("--features", slides[0], "--labels", slides[1], "--run", tmp_path / "run")
    code, _, error = sgpmil("train", *words, "--set", f"training.epochs={value}")
    assert code == 2
    assert error.count("\n") == 1
    assert len(error) < 600


@pytest.mark.parametrize("name", ["seed", "epochs", "bags_per_step"])
@pytest.mark.parametrize("is_option", [False, True])
def test_a_number_that_no_library_takes_is_one_sentence(slides, sgpmil, tmp_path, name, is_option):
    words = ["--features", slides[0], "--labels", slides[1], "--run", tmp_path / "run"]
    if is_option and name == "seed":
        words += ["--seed", 10**22]
    else:
        path = tmp_path / "recipe.yaml"
        path.write_text(f"training: {{{name}: {10**22}}}")
        words += ["--recipe", path]
    code, _, error = sgpmil("train", *words)
    assert code == 2
    assert error.count("\n") == 1
    assert name in error
    assert not (tmp_path / "run").exists()


DRAWINGS = {
    "a number for coordinates": {"coordinates": 5},
    "text": {"coordinates": [[["a", "b"]] * 4]},
    "far away": {"coordinates": [[[0, 0], [1e300, 0], [0, 1e300], [0, 0]]]},
    "a scribble": {"coordinates": [np.random.default_rng(0).uniform(0, 1e4, (4000, 2)).tolist()]},
}


@pytest.mark.parametrize("kind", DRAWINGS)
def test_damaged_outlines_are_one_sentence(tmp_path, kind):
    pytest.importorskip("shapely", reason="pip install '.[slides]'")
    from sgpmil.errors import AnnotationError
    from sgpmil.slides.annotations.folder import read_annotations

    path = tmp_path / "a.geojson"
    geometry = {"type": "Polygon", **DRAWINGS[kind]}
    path.write_text(json.dumps({"type": "Feature", "geometry": geometry, "properties": {}}))
    with pytest.raises(AnnotationError, match=r"a\.geojson"):
        read_annotations(path)


@pytest.mark.parametrize("change", [{"settings": None}, {"target": 5}, {"model": ["sgpmil"]}])
def test_a_damaged_description_of_a_model_is_one_sentence(sgpmil, slides, tmp_path, change):
    from sgpmil.models import build_model, save_model

    save_model(
        build_model("abmil", in_dim=4, num_classes=2), tmp_path / "m" / "checkpoint.safetensors"
    )
    path = tmp_path / "m" / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, _, error = sgpmil("predict", tmp_path / "m", slides[0], "--out", tmp_path / "p")
    assert code == 2, error
    assert error.count("\n") == 1
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("part", ["optimiser", "model", "epoch", "best_score", "state", "betas"])
def test_a_checkpoint_without_a_part_is_not_resumed_from(tmp_path, part):
    from sgpmil.errors import CheckpointError

    fit_last(tmp_path, 1, False)
    path = tmp_path / "last.ckpt"
    content = torch.load(path, weights_only=True)
    if part == "state":
        content["optimiser"]["state"].popitem()[1].pop("exp_avg")
        content["optimiser"]["state"][0].pop("step")
    elif part == "betas":  # taken from the settings, so nothing is lost
        for group in content["optimiser"]["param_groups"]:
            group["betas"] = "x"
            group["rate_factor"] = {}
        torch.save(content, path)
        fit_last(tmp_path, 2, True)
        return
    else:
        content.pop(part)
    torch.save(content, path)
    with pytest.raises(CheckpointError, match=r"last\.ckpt"):
        fit_last(tmp_path, 2, True)


@pytest.mark.parametrize("what", ["bag", "released", "last", "encoder", "prototypes"])
def test_an_archive_that_unfolds_to_fill_the_memory_is_refused(tmp_path, what):
    from sgpmil.bags.readers.torch_files import load_array
    from sgpmil.explanation.prototypes import read_prototypes
    from sgpmil.models.released import read_released_checkpoint
    from sgpmil.slides.encoders.checkpoints import read_weights
    from sgpmil.training.fold_files import FoldFiles

    read = {
        "bag": load_array,
        "released": read_released_checkpoint,
        "last": lambda path: FoldFiles(path.parent, 0).read_last(),
        "encoder": read_weights,
        "prototypes": read_prototypes,
    }[what]
    path = tmp_path / ("last.ckpt" if what == "last" else "a.pt")
    if what == "prototypes":
        np.savez(path.with_suffix(".npz"), summary=np.ones(50))
        path = path.with_suffix(".npz")
    else:
        torch.save({"a": torch.ones(50)}, path)
    inflate_zip(path, 2**29)
    with pytest.raises(SgpmilError, match=r"at most 100 times its size on disk.*0\.5 GiB") as error:
        read(path)
    assert path.name in str(error.value)


@pytest.mark.parametrize("what", ["rows", "text", "groups"])
def test_a_table_that_unfolds_to_fill_the_memory_is_refused(tmp_path, sgpmil, what):
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, long = (5_000_000, 1) if what != "text" else (1_000, 400_000)
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), ["a" * long])
    numbers = {name: pa.array(np.full(count, 0.5)) for name in ("p_0", "p_1")}
    table = pa.table({"slide_id": names, **numbers})
    path = tmp_path / "predictions.parquet"
    rows = 1_000_000 if what == "groups" else None
    pq.write_table(table, path, compression="zstd", row_group_size=rows)
    for place in (path, tmp_path):
        code, _, error = sgpmil("evaluate", place)
        assert code == 2
        assert "at most 100 times its size on disk" in error
        assert error.count("\n") == 1


def test_columns_that_are_no_numbers_and_no_text_are_left_alone(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sgpmil.runs.prediction_files import read_predictions

    columns = {"slide_id": ["a", "b"], "label": [0, 1], "p_0": [0.9, 0.2], "p_1": [0.1, 0.8]}
    more = {"notes": [["x"], []], "bytes": [b"x", b"y"], "a.b": ["1", "2"]}
    pq.write_table(pa.table({**columns, **more}), tmp_path / "a.parquet")
    table = read_predictions(tmp_path / "a.parquet")
    assert table.probs.tolist() == [[0.9, 0.1], [0.2, 0.8]]


def test_one_number_that_claims_to_be_a_model_is_refused(tmp_path):
    from sgpmil.models.released import read_released_checkpoint

    path = write_released(tmp_path)
    content = torch.load(path, weights_only=True)
    assert read_released_checkpoint(path).in_dim == 4
    content["state_dict"]["mlp.0.weight"] = torch.zeros(1).expand(2**20, 2**20)
    torch.save(content, path)
    with pytest.raises(SgpmilError, match=r"mlp\.0\.weight of .* not all stored"):
        read_released_checkpoint(path)
    content["state_dict"]["mlp.0.weight"] = 3
    torch.save(content, path)
    with pytest.raises(SgpmilError, match=r"released\.ckpt"):
        read_released_checkpoint(path)


def test_an_endless_dictionary_of_weights_comes_to_an_end(tmp_path):
    from sgpmil.slides.encoders.checkpoints import read_weights

    endless = {"fc.weight": torch.ones(2, 2)}
    endless["model"] = endless
    torch.save(endless, tmp_path / "a.pt")
    assert read_weights(tmp_path / "a.pt")["fc.weight"].shape == (2, 2)


# -- slides that are lost ------------------------------------------------------------------------


@pytest.mark.slow
def test_slides_in_no_part_of_a_fold_are_counted_and_named(slides, sgpmil, tmp_path):
    folder, labels = slides
    code, _, error = sgpmil("splits", labels, "--folds", 2, "--out", tmp_path / "splits")
    assert code == 0, error
    lost = {f"{number:03d}.slide" for number in (0, 5, 6, 11)}
    for path in (tmp_path / "splits").glob("*.csv"):
        rows = [row.split(",") for row in path.read_text().splitlines()]
        kept = [["" if cell in lost else cell for cell in row] for row in rows]
        path.write_text("\n".join(",".join(row) for row in kept if any(row)))
    code, out, error = sgpmil("splits", labels, "--check", tmp_path / "splits")
    assert "4" in out + error
    assert "000.slide" in out + error
    words = ("--features", folder, "--labels", labels, "--splits", tmp_path / "splits")
    words += ("--run", tmp_path / "run", "--epochs", 1, "--model", "abmil")
    code, out, error = sgpmil("train", *words)
    assert code == 0, error
    assert "4 slides are in no part of any fold" in out + error
    assert "000.slide" in out + error
    from sgpmil.runs import Run

    unused = Run.open(tmp_path / "run").unused_slides
    assert {frozenset(names) for names in unused.values()} == {frozenset(lost)}
    code, out, error = sgpmil("report", tmp_path / "run", "--bootstrap", 0)
    assert code == 0, error
    page = (tmp_path / "run" / "report.html").read_text()
    assert "000.slide" in page


def store_of(slides, sgpmil, place):
    folder, labels = slides
    code, _, error = sgpmil("pack", folder, place, "--labels", labels)
    assert code == 0, error
    return place


def test_a_store_with_a_name_twice_is_refused(slides, sgpmil, tmp_path):
    store = store_of(slides, sgpmil, tmp_path / "store")
    path = store / "index.json"
    path.write_text(path.read_text().replace("001.slide", "000.slide"))
    code, _, error = sgpmil("inspect", store)
    assert code == 2
    assert "000.slide" in error


@pytest.mark.parametrize("side", [10**30, 2**40, 0, -1])
def test_a_store_with_an_impossible_side_of_patches_is_refused(slides, sgpmil, tmp_path, side):
    store = store_of(slides, sgpmil, tmp_path / "store")
    path = store / "index.json"
    content = json.loads(path.read_text())
    content["slides"][2]["patch_size"] = side
    path.write_text(json.dumps(content))
    code, _, error = sgpmil("inspect", store)
    assert code == 2
    assert "002.slide" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_predictions_of_a_store_with_a_number_that_is_none_name_the_cause(
    slides, sgpmil, tmp_path, number
):
    from sgpmil.models import build_model, save_model

    store = store_of(slides, sgpmil, tmp_path / "store")
    features = np.load(store / "features.npy", mmap_mode="r+")
    features[8] = number  # of the second slide
    features.flush()
    model = build_model("abmil", in_dim=4, target=ClassTarget(("normal", "tumor")))
    save_model(model, tmp_path / "m" / "checkpoint.safetensors")
    code, _, error = sgpmil("predict", tmp_path / "m", store, "--out", tmp_path / "p")
    assert code == 2
    assert "Expected finite features in '001.slide'" in error
    assert error.count("\n") == 1


def test_probabilities_of_a_model_that_are_not_finite_name_it():
    from sgpmil.bags import BagDataset
    from sgpmil.errors import PredictionError
    from sgpmil.evaluation.predictor import predict
    from sgpmil.models import build_model

    model = build_model("abmil", in_dim=4, num_classes=2)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    bags = BagDataset.from_arrays([np.ones((3, 4), np.float32)], slide_ids=["a"])
    with pytest.raises(PredictionError, match="'a', but the model gives NaN"):
        predict(model, bags)


def test_bags_of_two_widths_as_often_are_not_left_out(tmp_path):
    for number, width in enumerate((4, 4, 5, 5)):
        np.save(tmp_path / f"{number}.npy", np.ones((3, width), np.float32))
    with pytest.raises(BagError, match="one number of features, but got 4 in 2 slides"):
        read_bags(tmp_path, on_bad="skip")


def test_a_store_with_a_number_that_is_none_is_not_ready(slides, sgpmil, tmp_path):
    store = store_of(slides, sgpmil, tmp_path / "store")
    features = np.load(store / "features.npy", mmap_mode="r+")
    features[8] = np.nan  # of the second slide
    features.flush()
    code, out, error = sgpmil("inspect", store, "--labels", slides[1])
    assert code == 1, error
    assert "001.slide" in out
    assert "Ready" not in out
    assert len(read_bags(store, on_bad="skip")) == 19
