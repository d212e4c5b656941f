"""Damaged and hostile files of every format, each made by a seed, and a judge of what they do.

An input is a good file that a mutator changed. `attempt` hands it to the package as a command
would. The outcome must be a right result or an `SgpmilError`.
"""

import json
import os
import resource
import shutil
import tempfile
import traceback
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from sgpmil.errors import SgpmilError

MOST_SECONDS = 120
"""Seconds after which an input counts as a hang; the slowest takes a few on a busy machine."""
MOST_MEMORY = 2 * 2**30

_PIPES, _NESTED = 0.03, 0.07
"""Shares of inputs that are a pipe, and of JSON that is nested deeply."""

HOSTILE = (
    *(
        None,
        True,
        -1,
        0,
        10**8,
        2**31,
        2**63,
        2**70,
        10**30,
        1.5,
        -0.0,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *("", " ", "\x00", "../../x", "/etc/passwd", "=1+1", "a" * 5000, "\ud800", "[/red]", "𝕏"),
    *([], {}, [[]], [None], {"a": {"a": {}}}, [1e308] * 3, "2020-13-45", "NaN", "1e400"),
)
"""Values that a field may hold instead of its own."""


@dataclass(frozen=True)
class Format:
    """A format: good files of it, the file that is damaged, and what reads it."""

    name: str
    write: Callable[[Path], Path]
    attempt: Callable[[Path], None]
    change: Callable[[Path, np.random.Generator], None] | None = None
    """A mutator that knows the format; the bytes of many inputs are changed all the same."""


# -- mutators ---------------------------------------------------------------------------------


def change_bytes(path: Path, rng: np.random.Generator) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(int(rng.integers(1, 4))):
        size = max(1, len(content))
        start = int(rng.integers(size))
        length = int(rng.integers(1, max(2, min(64, size))))
        match int(rng.integers(7)):
            case 0:
                del content[start:]
            case 1:
                for _ in range(int(rng.integers(1, 8))):
                    place = int(rng.integers(size))
                    if place < len(content):
                        content[place] ^= 1 << int(rng.integers(8))
            case 2:
                content[start : start + length] = bytes(length)
            case 3:
                content[start : start + length] = b"\xff" * length
            case 4:
                content[start:start] = rng.bytes(length)
            case 5:
                del content[start : start + length]
            case 6:
                other = int(rng.integers(size))
                content[start : start + length] = content[other : other + length]
    path.write_bytes(bytes(content))


def hostile(rng: np.random.Generator) -> Any:
    return HOSTILE[int(rng.integers(len(HOSTILE)))]


def change_value(content: Any, rng: np.random.Generator) -> Any:
    """Replace one value, at any depth, by a hostile one."""
    if isinstance(content, dict) and content and rng.random() < 0.85:
        key = sorted(content, key=str)[int(rng.integers(len(content)))]
        kind = rng.random()
        if kind < 0.1:
            return {k: v for k, v in content.items() if k != key}
        if kind < 0.15:
            return {**content, str(hostile(rng)): 1}
        return {**content, key: change_value(content[key], rng)}
    if isinstance(content, list) and content and rng.random() < 0.85:
        place = int(rng.integers(len(content)))
        if rng.random() < 0.15:
            return [*content, content[place]]
        return [*content[:place], change_value(content[place], rng), *content[place + 1 :]]
    return hostile(rng)


def change_leaf(content: Any, rng: np.random.Generator) -> Any:
    """Replace one value that holds no others, each as likely, by a hostile one."""

    def places(value: Any) -> list[tuple[Any, ...]]:
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        parts = [(key, places(v) if isinstance(v, dict | list) else [()]) for key, v in inner]
        return [(key, *rest) for key, found in parts for rest in found]

    found = places(content) if isinstance(content, dict | list) else []
    if not found:
        return hostile(rng)
    *way, last = found[int(rng.integers(len(found)))]
    inner = content
    for key in way:
        inner = inner[key]
    inner[last] = hostile(rng)
    return content


def change_json(path: Path, rng: np.random.Generator) -> None:
    content = json.loads(path.read_text())
    change = change_leaf if rng.random() < 0.5 else change_value
    for _ in range(int(rng.integers(1, 3))):
        content = change(content, rng)
    path.write_text(json.dumps(content), encoding="utf-8", errors="surrogatepass")


def nest(path: Path, rng: np.random.Generator) -> None:
    """Put lists and objects into each other, as the whole of a JSON text or in place of a value."""
    depth = int(rng.choice((70, 900, 200_000)))
    start, end = (("[", "]"), ('{"a":', "}"))[int(rng.integers(2))]
    nested = start * depth + "1" + end * depth
    if rng.random() < 0.5:
        path.write_text(nested if rng.random() < 0.5 else start * depth)
        return
    marked = json.dumps(_with_mark(json.loads(path.read_text()), rng))
    path.write_text(marked.replace(json.dumps(_MARK), nested))


_MARK = "a value to replace"


def _with_mark(content: Any, rng: np.random.Generator) -> Any:
    if isinstance(content, dict) and content:
        key = sorted(content)[int(rng.integers(len(content)))]
        return {**content, key: _with_mark(content[key], rng)}
    if isinstance(content, list) and content and rng.random() < 0.5:
        return [_with_mark(content[0], rng), *content[1:]]
    return _MARK


def make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def change_yaml(path: Path, rng: np.random.Generator) -> None:
    import yaml

    content = yaml.safe_load(path.read_text())
    text = json.dumps(change_value(content, rng))
    lines = text if rng.random() < 0.5 else f"{path.read_text()}\n{text.strip('{}')}: {text}\n"
    extras = (
        *("a: &a [*a]", "b: 2020-13-45", "c: !!python/object:os.system x", "? [1]\n: 2", "\t"),
        "\n".join(
            ["b0: &b0 {k: 1}"]
            + [f"b{n}: &b{n} {{<<: [{', '.join([f'*b{n - 1}'] * 10)}]}}" for n in range(1, 9)]
        ),
        "training: {epochs: 1" + ":59" * 20_000 + "}",
        "training: {seed: " + "9" * 90 + "}",
    )
    if rng.random() < 0.3:
        extra = extras[int(rng.integers(len(extras)))]
        lines = f"{lines}\n{extra}" if rng.random() < 0.5 else extra
    path.write_text(lines, encoding="utf-8", errors="surrogatepass")


def change_hdf5(path: Path, rng: np.random.Generator) -> None:
    with h5py.File(path, "r+") as file:
        names = sorted(file)
        name = names[int(rng.integers(len(names)))]
        place = file[name] if rng.random() < 0.9 else file
        shapes = ((0,), (0, 4), (3,), (1, 5, 4), (2, 5, 4), (5, 0), (1, 1), (), (7, 4))
        shape = shapes[int(rng.integers(len(shapes)))]
        match int(rng.integers(9)):
            case 0 | 1 | 2:
                keys = [*place.attrs, "patch_size", "patch_size_level0", "mpp", "encoder", "unit"]
                value = hostile(rng)
                value = json.dumps(value) if isinstance(value, list | dict) else value
                value = 10**18 if isinstance(value, int) and value > 2**63 else value
                try:
                    place.attrs[keys[int(rng.integers(len(keys)))]] = (
                        h5py.Empty("f") if value is None else value
                    )
                except (ValueError, TypeError, UnicodeEncodeError):
                    place.attrs["encoder"] = "x"
            case 3:
                del file[name]
            case 4:
                kinds = ("f2", "f8", "i8", "u8", "S3", "?", "c8", ">f4", "f4")
                kind = np.dtype(kinds[int(rng.integers(len(kinds)))])
                del file[name]
                file[name] = np.zeros(shape, kind)
            case 5:
                del file[name]
                values = np.array([np.nan, np.inf, 1e300, -1e18, 2.0**63])
                file[name] = np.resize(values, shape)
            case 6:
                del file[name]
                file.create_dataset(name, shape=(10**9, 1024), chunks=(1, 1024), dtype="f4")
            case 7:
                del file[name]
                targets = (
                    h5py.ExternalLink("/etc/passwd", "x"),
                    h5py.ExternalLink(path.name, "coords"),
                    h5py.SoftLink("/" + name),
                    h5py.SoftLink("/nothing"),
                )
                file[name] = targets[int(rng.integers(len(targets)))]
            case 8:
                del file[name]
                file.create_group(name)


def change_zip(path: Path, rng: np.random.Generator) -> None:
    """Change the bytes of a member of an archive, and pack it again; or make it a bomb."""
    if rng.random() < 0.1:
        inflate_zip(path)
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(members)[int(rng.integers(len(members)))]
    inner = path.with_name("inner.tmp")
    inner.write_bytes(members[name])
    change_bytes(inner, rng)
    members[name] = inner.read_bytes()
    inner.unlink()
    method = zipfile.ZIP_DEFLATED if rng.random() < 0.3 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", method) as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def inflate_zip(path: Path, num_bytes: int = 2**32 - 2**20) -> None:
    """Make a member of an archive, the largest, unfold to zeros, which take hardly any room.

    The compressed zeros are a block again and again; the check sum, wrong, is compared too late.
    """
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    largest = max(members, key=lambda name: len(members[name]))
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    members[largest] = block * (num_bytes // 2**20) + packer.flush(zlib.Z_FINISH)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        entry = archive.getinfo(largest)
        entry.compress_type, entry.file_size = zipfile.ZIP_DEFLATED, num_bytes
    with path.open("r+b") as file:  # the header before the member, too
        file.seek(entry.header_offset + 8)
        file.write(zipfile.ZIP_DEFLATED.to_bytes(2, "little"))
        file.seek(entry.header_offset + 22)
        file.write(num_bytes.to_bytes(4, "little"))


def change_parquet(path: Path, rng: np.random.Generator) -> None:
    """Repeat a row without end, or change the values of a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    kind = int(rng.integers(4))
    if kind == 0:
        rows = pa.array(np.zeros(int(rng.choice([10, 10**6, 10**7])), np.int64))
        table = (
            pa.table({n: table[n].combine_chunks().dictionary_encode() for n in table.schema.names})
            .take(rows)
            .replace_schema_metadata(table.schema.metadata)
        )
    else:
        place = int(rng.integers(table.num_columns))
        values = {
            1: pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(len(table), np.int32)), pa.array(["a" * 10**7])
            ),
            2: pa.array([[1.0] * 3] * len(table)),
            3: pa.array([[None, float("nan"), -1.0, 1e308][int(rng.integers(4))]] * len(table)),
        }[kind]
        table = table.set_column(place, table.schema.names[place], values)
    pq.write_table(table, path, compression="zstd")


def change_text(path: Path, rng: np.random.Generator) -> None:
    """Replace, repeat or remove cells and lines of a text."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for _ in range(int(rng.integers(1, 4))):
        if not lines:
            break
        place = int(rng.integers(len(lines)))
        kind = int(rng.integers(4))
        if kind == 0:
            lines[place] = lines[place] + str(hostile(rng))
        elif kind == 1:
            cells = lines[place].split(",")
            cells[int(rng.integers(len(cells)))] = str(hostile(rng))
            lines[place] = ",".join(cells)
        elif kind == 2:
            lines.insert(place, lines[place])
        else:
            del lines[place]
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")


def change_tiff(path: Path, rng: np.random.Generator) -> None:
    """Change the value of one tag of a page: width, height, tile sizes, offsets, and so on."""
    import tifffile

    with tifffile.TiffFile(path) as content:
        pages = list(content.pages)
        page = pages[int(rng.integers(len(pages)))]
        tags = list(page.tags)
        tag = tags[int(rng.integers(len(tags)))]
        place, size = tag.valueoffset, min(8, tag.count * 4)
    values = (0, 1, 2, 255, 2**15, 10**6, 2**31 - 1, 2**32 - 1)
    data = bytearray(path.read_bytes())
    data[place : place + 4] = int(values[int(rng.integers(len(values)))]).to_bytes(4, "little")
    if size > 4 and rng.random() < 0.3:
        data[place + 4 : place + 8] = rng.bytes(4)
    path.write_bytes(bytes(data))


# -- bags, tables, splits, stores --------------------------------------------------------------


def _features(rng_seed: int = 0) -> np.ndarray:
    return np.random.default_rng(rng_seed).normal(size=(5, 4)).astype(np.float32)


def _write_h5(path: Path, name: str = "features", **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset(name, data=_features(), chunks=(2, 4))
        file["coords"] = 256 * np.arange(10).reshape(5, 2)
        for key, value in attributes.items():
            (file if name == "feats" else file["coords"]).attrs[key] = value
    return path


def _beside(kind: str) -> Callable[[Path], Path]:
    """Return a writer of two bags, of which the one called 'bad' is damaged."""
    import torch

    def write(folder: Path) -> Path:
        for name in ("good", "bad"):
            path = folder / f"{name}{kind[kind.index('.') :]}"
            match kind.partition(".")[0]:
                case "trident":
                    _write_h5(path, patch_size=256, patch_size_level0=256, target_magnification=20)
                case "clam":
                    _write_h5(path, patch_size=256, downsample=2)
                case "stamp":
                    _write_h5(path, "feats", mpp=0.5, unit="um", tile_size_um=256.0)
                case "npy":
                    np.save(path, _features())
                case "npz":
                    coords = np.arange(10).reshape(5, 2)
                    np.savez(path, features=_features(), coords=coords, patch_size=256)
                case "pt":
                    torch.save(torch.from_numpy(_features()), path)
                case "old":
                    torch.save(
                        torch.from_numpy(_features()), path, _use_new_zipfile_serialization=False
                    )
                case "flow":
                    torch.save(torch.from_numpy(_features()), path)
                    np.savez(folder / f"{name}.index.npz", np.arange(10).reshape(5, 2))
        return folder / f"bad{kind[kind.index('.') :]}"

    return write


def _read_bags(path: Path) -> None:
    from sgpmil.bags import inspect_folder, read_bags

    found = inspect_folder(path.parent)
    listed = {u.slide_id for u in found.unreadable} | set(found.empty) | set(found.non_finite)
    assert found.num_slides - len(listed) == 2 - ("bad" in listed)
    if len(found.feature_dims) > 1:
        return
    bags = read_bags(path.parent, on_bad="skip")
    assert "good" in bags.slide_ids, "the damaged bag took the good one along"
    assert ("bad" in bags.slide_ids) == ("bad" not in listed), "lost in silence"
    for bag in bags:
        assert np.isfinite(bag.features.numpy()).all()


def _labels(path: Path) -> Path:
    rows = [("case_id", "slide_id", "label")]
    rows += [(f"case-{i}", f"slide-{i}.svs", ("normal", "tumor")[i % 2]) for i in range(6)]
    path.write_text("\n".join(",".join(row) for row in rows))
    return path


def _workbook(folder: Path) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    for line in _labels(folder / "labels.csv").read_text().splitlines():
        book.active.append(line.split(","))
    book.save(folder / "labels.xlsx")
    return folder / "labels.xlsx"


def _read_labels(path: Path) -> None:
    from sgpmil.bags import make_kfold, read_labels

    table = read_labels(path)
    make_kfold(table, num_folds=2)


def _splits(folder: Path) -> Path:
    path = folder / "splits_0.csv"
    path.write_text("train,val,test\nslide-0,slide-2,slide-4\nslide-1,slide-3,slide-5\n")
    return path


def _stamp_splits(folder: Path) -> Path:
    parts = {"train_patients": ["case-0", "case-1"], "test_patients": ["case-2", "case-3"]}
    (folder / "splits.json").write_text(json.dumps({"splits": [parts]}))
    return folder / "splits.json"


def _read_splits(path: Path) -> None:
    from sgpmil.bags import check_folds, read_labels, read_splits

    table = read_labels(_labels(path.parent / "own.csv"))
    check_folds(read_splits(path, table), table)


def _store(folder: Path) -> Path:
    from sgpmil.bags import BagDataset
    from sgpmil.bags.packing import pack_bags

    bags = BagDataset.from_arrays(
        [_features(i) for i in range(4)],
        [0, 1, 0, 1],
        coords=[np.arange(10).reshape(5, 2)] * 4,
        patch_size=256,
    )
    pack_bags(bags, folder / "store")
    return folder / "store"


def _store_part(name: str) -> Callable[[Path], Path]:
    return lambda folder: _store(folder) / name


def _read_store(path: Path) -> None:
    from sgpmil.bags import inspect_folder, read_bags

    found = inspect_folder(path.parent)
    bags = read_bags(path.parent, on_bad="skip")
    assert found.num_slides == 4 >= len(bags)
    assert len(bags) == 4 - len(found.non_finite) - len(found.unreadable), "lost in silence"


def _packed_npz(folder: Path) -> Path:
    np.savez(
        folder / "bags.npz",
        features=np.concatenate([_features(i) for i in range(4)]),
        offsets=np.arange(0, 25, 5),
        labels=np.array([0, 1, 0, 1]),
        slide_ids=np.array(list("abcd")),
    )
    return folder / "bags.npz"


def _read_packed(path: Path) -> None:
    from sgpmil.bags import read_bags

    for bag in read_bags(path):
        assert np.isfinite(bag.features.numpy()).all()


# -- recipes, checkpoints, predictions ---------------------------------------------------------


def _recipe(folder: Path) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(
        "data:\n  features: bags\n  labels: labels.csv\n  folds: 3\nmodel:\n  name: sgpmil\n"
        "  settings:\n    num_inducing: 8\n    kernel: rbf\ntraining:\n  epochs: 2\n"
        "  learning-rate: 1.0e-3\n  precision: 32\n"
    )
    return path


def _read_recipe(path: Path) -> None:
    from sgpmil.experiments.recipe import load_recipe

    load_recipe(path)


_SIZES = {"hidden_dims": (4,), "gp_dim": 3, "num_inducing": 4, "num_samples": 2}


def _checkpoint(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        import torch

        from sgpmil.models.checkpoint import save_model
        from sgpmil.models.registry import build_model

        torch.manual_seed(0)
        save_model(
            build_model("sgpmil", in_dim=4, num_classes=2, **_SIZES),
            folder / "checkpoint.safetensors",
        )
        return folder / name

    return write


def _read_checkpoint(path: Path) -> None:
    from sgpmil.models.checkpoint import load_model

    load_model(path.parent)


def _bags() -> Any:
    from sgpmil.bags import BagDataset

    return BagDataset.from_arrays([_features(i) for i in range(4)], [0, 1, 0, 1])


def _fit(folder: Path, epochs: int, resume: bool) -> None:
    from sgpmil.training.fit import fit

    settings = {"epochs": epochs, "device": "cpu", "select": "last", "patience": 0}
    fit(
        _bags(),
        model="sgpmil",
        model_settings=_SIZES,
        training=settings,
        folder=folder,
        resume=resume,
    )


def _last(folder: Path) -> Path:
    _fit(folder, 1, False)
    return folder / "last.ckpt"


def _resume(path: Path) -> None:
    _fit(path.parent, 2, True)


def change_state(path: Path, rng: np.random.Generator) -> None:
    """Change an entry of a checkpoint that torch wrote; or make it a bomb."""
    import torch

    if rng.random() < 0.1:
        inflate_zip(path)
        return
    content = torch.load(path, weights_only=True)

    def changed(value: Any) -> Any:
        if isinstance(value, dict) and value and rng.random() < 0.9:
            key = list(value)[int(rng.integers(len(value)))]
            if rng.random() < 0.2:
                return {k: v for k, v in value.items() if k != key}
            return {**value, key: changed(value[key])}
        if isinstance(value, list) and value and rng.random() < 0.9:
            return [changed(value[0]), *value[1:]]
        if isinstance(value, torch.Tensor) and rng.random() < 0.7:
            ways = (value[:0] if value.ndim else value, value.double(), value.reshape(-1))
            return ways[int(rng.integers(len(ways)))]
        return hostile(rng)

    torch.save(changed(content), path)


def _weights(suffix: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        import torch
        from safetensors.torch import save_file

        state = {"module.fc.weight": torch.ones(3, 4), "module.fc.bias": torch.ones(3)}
        path = folder / f"weights{suffix}"
        if suffix == ".safetensors":
            save_file(state, path)
        else:
            torch.save({"state_dict": state, "epoch": 3}, path)
        return path

    return write


def _released(folder: Path) -> Path:
    """Write what the released code wrote, by its names."""
    import torch

    from sgpmil.models.registry import build_model
    from sgpmil.models.released import _NAMES

    state = build_model("sgpmil", in_dim=4, num_classes=2, preset="released", **_SIZES).state_dict()
    theirs = {name: state[ours] for name, ours in _NAMES.items()}
    theirs |= {name: value for name, value in state.items() if name.startswith("mlp.0.")}
    torch.save({"state_dict": theirs}, folder / "released.ckpt")
    return folder / "released.ckpt"


def _read_released(path: Path) -> None:
    from sgpmil.models.released import read_released_checkpoint

    read_released_checkpoint(path)


def _read_weights(path: Path) -> None:
    import torch

    from sgpmil.slides.encoders.checkpoints import load_weights, read_weights

    network = torch.nn.ModuleDict({"fc": torch.nn.Linear(4, 3)})
    load_weights(network, read_weights(path), "a network")


def _predictions(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        from sgpmil.bags.target import ClassTarget
        from sgpmil.evaluation.prediction import InstanceScores, Prediction, SlideName
        from sgpmil.evaluation.prediction_table import PredictionTable
        from sgpmil.runs.prediction_files import write_predictions_csv
        from sgpmil.runs.prediction_folder import write_prediction_folder

        rng = np.random.default_rng(0)
        slides = [SlideName(f"s{i}", f"c{i}", i % 2) for i in range(6)]
        found = Prediction.from_batch(slides, rng.dirichlet((1, 1), (6, 3)).astype(np.float32))
        scores = InstanceScores(
            np.ones(5), np.ones(5), coords=np.arange(10).reshape(5, 2), patch_size=256
        )
        from dataclasses import replace

        table = PredictionTable(
            tuple(replace(one, instances=scores) for one in found), ClassTarget(("a", "b"))
        )
        write_prediction_folder(folder / "p", table.predictions, table.target)
        write_predictions_csv(folder / "p" / "predictions.csv", table)
        return folder / "p" / name

    return write


def _read_predictions(path: Path) -> None:
    from sgpmil.evaluation.metrics import METRICS
    from sgpmil.runs.prediction_files import read_predictions
    from sgpmil.runs.prediction_folder import read_prediction_folder

    whole = path.suffix == ".csv"
    table = (
        read_predictions(path)
        if whole
        else read_prediction_folder(path.parents[path.suffix == ".h5"])
    )
    METRICS["auc"].quick(table)


def _run_json(folder: Path) -> Path:
    from sgpmil.bags import Fold
    from sgpmil.runs.run import Run

    settings = {"model": "sgpmil", "training": {"seed": 0}, "model_settings": {"num_samples": 2}}
    Run.create(
        folder / "run",
        [Fold("0", ("a",), (), ("b",))],
        settings,
        data={"folder": "bags"},
        slides={"a": "1-2", "b": "3-4"},
    )
    return folder / "run" / "run.json"


def _read_run(path: Path) -> None:
    from sgpmil.runs.run import Run

    run = Run.open(path.parent)
    places = [fold.path for fold in run.folds.values()]
    assert all(place.resolve().parent == path.parent.resolve() for place in places)
    _ = (run.unfinished, run.model, run.provenance, run.splits, run.unused_slides)


def _run(name: str) -> Callable[[Path], Path]:
    """Return a writer of a run of two folds with all that its commands need."""

    def write(folder: Path) -> Path:
        from tests.faults.commands import run_command, write_run

        write_run(folder)
        sources = dict.fromkeys(("slides", "annotations", "nuclei"), str(folder / "gone"))
        (folder / "run" / "sources.json").write_text(json.dumps(sources))
        if name.startswith("exported"):
            run_command(["export", folder / "run", "--to", folder / "exported"])
        return folder / name

    return write


def _use_run(path: Path) -> None:
    """Use a run in all commands that read it; without the pictures, which take long."""
    from sgpmil.report.pages.provenance import environment_section, settings_section, train_command
    from sgpmil.runs.material import MaterialOptions, run_facts

    folder = next(place for place in path.parents if place.name == "run").parent
    run = folder / "run"
    _use_command("evaluate", run, "--bootstrap", 0)
    _use_command("predict", run, folder / "features", "--out", folder / "p")
    _use_command("predict", run / "fold-0", folder / "features", "--out", folder / "q")
    _use_command("lipschitz", run)
    _use_command("export", run, "--to", folder / "x")
    material = MaterialOptions(run=run).read_material()
    run_facts(material)
    assert material.run is not None
    train_command(material.run, material.target)
    environment_section(material)
    settings_section(material)


def _use_command(*words: object) -> None:
    """Run a command; what it refuses is an error."""
    from tests.faults.commands import run_command

    ended = run_command(words)
    assert not {chr(27), chr(0)} & set(ended.said), "a command to the terminal"
    if ended.code:
        raise SgpmilError(ended.said.strip())


def _use_exported(path: Path) -> None:
    place = path.parents[1]
    _use_command("predict", path.parent, place / "features", "--out", place / "p")


def _explain(path: Path) -> None:
    place = path.parents[1]
    chosen = ("--most", 1, "--fold", 0, "--score", "attention", "--out", place / "e")
    _use_command("explain", place / "run", *chosen)


def _read_curves(path: Path) -> None:
    from sgpmil.training.fold_files import FoldFiles

    files = FoldFiles(path.parent, 0)
    files.start_metrics(2)
    files.add_metrics(dict.fromkeys(path.read_text().splitlines()[0].split(","), 2))


def _nuclei(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        cells = [
            {"centroid": [8.0 * i, 5.0], "type": 1 + i % 3, "bbox": [[0, 0]]} for i in range(6)
        ]
        ring = [[0, 0], [8, 0], [8, 8], [0, 8], [0, 0]]
        content = {
            "hovernet": {"mag": 40, "nuc": dict(zip("123456", cells, strict=True))},
            "cellvit": {"type_map": {"1": "Neoplastic"}, "cells": cells},
            "geojson": [
                {
                    "type": "Feature",
                    "geometry": {"type": "Polygon", "coordinates": [ring]},
                    "properties": {"classification": {"name": "Neoplastic"}},
                }
            ],
        }[kind]
        (folder / "s1.json").write_text(json.dumps(content))
        return folder / "s1.json"

    return write


def _read_nuclei(path: Path) -> None:
    from sgpmil.explanation.prototypes.nuclei import nuclei_in_patches, read_nuclei

    nuclei = read_nuclei(path, magnification=40.0)
    nuclei_in_patches(nuclei, 256 * np.arange(10).reshape(5, 2), 256)


# -- annotations and slides --------------------------------------------------------------------


def _geojson(folder: Path) -> Path:
    ring = [[0, 0], [40, 0], [40, 40], [0, 40], [0, 0]]
    features = [
        {
            "type": "Feature",
            "geometry": {"type": kind, "coordinates": [ring] if kind == "Polygon" else [[ring]]},
            "properties": {"classification": {"name": "Tumor"}},
        }
        for kind in ("Polygon", "MultiPolygon")
    ]
    path = folder / "a.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    return path


def _asap(folder: Path) -> Path:
    corners = "".join(
        f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>'
        for i, (x, y) in enumerate([(0, 0), (40, 0), (40, 40), (0, 40)])
    )
    path = folder / "a.xml"
    path.write_text(
        '<ASAP_Annotations><Annotations><Annotation Name="1" Type="Polygon" PartOfGroup="Tumor">'
        f"<Coordinates>{corners}</Coordinates></Annotation></Annotations></ASAP_Annotations>"
    )
    return path


def _mask(folder: Path) -> Path:
    import tifffile

    image = np.zeros((64, 64), np.uint8)
    image[8:40, 8:40] = 1
    tifffile.imwrite(folder / "a_mask.tif", image, compression="deflate", tile=(16, 16))
    return folder / "a_mask.tif"


def _read_annotations(path: Path) -> None:
    from sgpmil.slides.annotations.folder import read_annotations
    from sgpmil.slides.annotations.mask import rasterise

    rasterise(read_annotations(path), 4, (16, 16))


def _slide(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        rng = np.random.default_rng(0)
        image = rng.integers(0, 255, (256, 320, 3), np.uint8)
        path = folder / name
        if path.suffix in (".png", ".jpg"):
            from PIL import Image

            Image.fromarray(image).save(path)
            return path
        import tifffile

        aperio = (
            "Aperio Image Library v1\n320x256 |AppMag = 20|MPP = 0.5" if "svs" in name else None
        )
        with tifffile.TiffWriter(path, ome="ome" in name) as file:
            options = {"tile": (64, 64), "photometric": "rgb", "compression": "deflate"}
            if "ome" in name:
                file.write(image, subifds=1, **options)
                file.write(image[::4, ::4], subfiletype=1, **options)
            else:
                file.write(image, description=aperio, metadata=None, **options)
                file.write(image[::4, ::4], subfiletype=1, metadata=None, **options)
        return path

    return write


def _read_slide(path: Path) -> None:
    from sgpmil.slides.reading import open_slide

    slide = open_slide(path)
    try:
        for level in range(len(slide.levels)):
            slide.read(0, 0, 64, 64, level=level)
        slide.read_patch(10, 10, 128, 64)
        width, height = slide.size
        slide.read(width - 8, height - 8, 64, 64)
    finally:
        slide.close()


FORMATS = (
    *(
        Format(f"bag {kind}", _beside(kind), _read_bags, change)
        for kind, change in (
            ("trident.h5", change_hdf5),
            ("clam.h5", change_hdf5),
            ("stamp.h5", change_hdf5),
            ("npy.npy", None),
            ("npz.npz", change_zip),
            ("pt.pt", change_zip),
            ("old.pt", None),
            ("flow.pt", change_zip),
        )
    ),
    Format("packed npz", _packed_npz, _read_packed, change_zip),
    Format("store index", _store_part("index.json"), _read_store, change_json),
    Format("store features", _store_part("features.npy"), _read_store),
    Format("store coordinates", _store_part("coords.npy"), _read_store),
    Format("table csv", lambda folder: _labels(folder / "labels.csv"), _read_labels, change_text),
    Format("table xlsx", _workbook, _read_labels, change_zip),
    Format("splits csv", _splits, _read_splits, change_text),
    Format("splits json", _stamp_splits, _read_splits, change_json),
    Format("recipe", _recipe, _read_recipe, change_yaml),
    Format("checkpoint json", _checkpoint("checkpoint.json"), _read_checkpoint, change_json),
    Format("checkpoint weights", _checkpoint("checkpoint.safetensors"), _read_checkpoint),
    Format("last checkpoint", _last, _resume, change_state),
    Format("released checkpoint", _released, _read_released, change_state),
    Format("encoder weights pt", _weights(".pt"), _read_weights, change_state),
    Format("encoder weights safetensors", _weights(".safetensors"), _read_weights),
    Format(
        "predictions parquet",
        _predictions("predictions.parquet"),
        _read_predictions,
        change_parquet,
    ),
    Format("predictions csv", _predictions("predictions.csv"), _read_predictions, change_text),
    Format("instance scores", _predictions("attention/s0.h5"), _read_predictions, change_hdf5),
    Format("run", _run_json, _read_run, change_json),
    Format("annotations geojson", _geojson, _read_annotations, change_json),
    Format("annotations xml", _asap, _read_annotations, change_text),
    Format("annotations mask", _mask, _read_annotations, change_tiff),
    Format("slide tiff", _slide("a.tiff"), _read_slide, change_tiff),
    Format("slide svs", _slide("a.svs"), _read_slide, change_tiff),
    Format("slide ome", _slide("a.ome.tiff"), _read_slide, change_tiff),
    Format("slide png", _slide("a.png"), _read_slide),
    Format("slide jpg", _slide("a.jpg"), _read_slide),
    *(
        Format(f"run's {Path(name).name}", _run(f"run/{name}"), _use_run, change_json)
        for name in ("run.json", "slides.json", "sources.json", "fold-0/checkpoint.json")
    ),
    Format("run's metrics.csv", _run("run/fold-0/metrics.csv"), _read_curves, change_text),
    *(
        Format(f"exported {name}", _run(f"exported/{name}"), _use_exported, change_json)
        for name in ("config.json", "slides.json")
    ),
    *(
        Format(f"nuclei {kind}", _nuclei(kind), _read_nuclei, change_json)
        for kind in ("hovernet", "cellvit", "geojson")
    ),
)


# -- the judge ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What an input did: `read`, `refused`, `traceback`, `hang`, `crash`, `memory`, `outside`."""

    format: str
    seed: int
    kind: str
    text: str = ""

    @property
    def is_fault(self) -> bool:
        return self.kind not in ("read", "refused")


def make_input(chosen: Format, template: Path, folder: Path, seed: int) -> Path:
    """Copy the good files of a format into a folder, and damage one of them."""
    shutil.copytree(template / "files", folder)
    path = folder / (template / "path").read_text()
    rng = np.random.default_rng([seed, FORMATS.index(chosen)])
    kind = rng.random()
    # In a folder of bags, a pipe is none of them; the labels name the slide that is missing.
    if kind < _PIPES and not chosen.name.startswith(("bag ", "store features", "store index")):
        make_pipe(path)
    elif chosen.change is change_json and kind < _PIPES + _NESTED:
        nest(path, rng)
    elif chosen.change is None or rng.random() < 0.4:
        change_bytes(path, rng)
    else:
        chosen.change(path, rng)
    return path


def _peak_memory(*, reset: bool = False) -> int:
    """Return the peak of this process since the last reset; 0 where the system does not say."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        return 0


def judge(chosen: Format, template: Path, seed: int) -> Outcome:
    """Make an input, hand it to the package and judge the outcome."""
    place = Path(tempfile.mkdtemp(dir=template.parent))
    try:
        path = make_input(chosen, template, place / "in", seed)
        before = _peak_memory(reset=True)
        kind, text = "read", ""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                chosen.attempt(path)
        except SgpmilError as error:
            kind, text = "refused", str(error)
            if "\n" in text or len(text) > 2000:
                kind = "traceback"  # no sentence
        except Exception:  # noqa: BLE001 (what is looked for)
            kind, text = "traceback", traceback.format_exc()
        if _peak_memory() - before > MOST_MEMORY:
            kind, text = "memory", f"{(_peak_memory() - before) / 2**30:.1f} GiB"
        outside = [entry for entry in place.iterdir() if entry.name != "in"]
        if outside:
            kind, text = "outside", str(outside[0])
        return Outcome(chosen.name, seed, kind, text)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _work(pipe: Any, work: Path) -> None:
    import torch

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["HDF5_USE_FILE_LOCKING"] = "FALSE"
    by_name = {one.name: one for one in FORMATS}
    while (asked := pipe.recv()) is not None:
        name, seed = asked
        pipe.send(judge(by_name[name], work / name.replace(" ", "-"), seed))


def write_templates(work: Path, formats: Iterable[Format] = FORMATS) -> None:
    """Write the good files of formats, and check that they are read."""
    for chosen in formats:
        template = work / chosen.name.replace(" ", "-")
        (template / "files").mkdir(parents=True)
        path = chosen.write(template / "files")
        (template / "path").write_text(str(path.relative_to(template / "files")))
        copy = template / "copy"
        shutil.copytree(template / "files", copy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chosen.attempt(copy / path.relative_to(template / "files"))
        shutil.rmtree(copy)


def run_inputs(work: Path, inputs: Iterable[tuple[str, int]]) -> Iterator[Outcome]:
    """Judge inputs in a process of their own, which may crash or hang.

    Args:
        work: Folder of `write_templates`.
        inputs: Name of the format and seed of each.
    """
    context = get_context("spawn")
    process = pipe = None
    try:
        for name, seed in inputs:
            if process is None:
                pipe, other = context.Pipe()
                process = context.Process(target=_work, args=(other, work), daemon=True)
                process.start()
                other.close()
            try:
                pipe.send((name, seed))
                if pipe.poll(MOST_SECONDS):
                    yield pipe.recv()
                    continue
                kind = "hang"
            except (EOFError, OSError):
                kind = "crash"
            process.kill()
            process.join()
            yield Outcome(name, seed, kind, f"exit code {process.exitcode}")
            process = None
    finally:
        if process is not None:
            process.kill()
            process.join()


def summary(outcomes: Iterable[Outcome]) -> dict[str, Counter[str]]:
    """Count the outcomes of each format."""
    found: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.format, Counter())[outcome.kind] += 1
    return found
