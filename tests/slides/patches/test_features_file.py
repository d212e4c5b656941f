import re

import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers import trident
from sgpmil.errors import ExtractionError
from sgpmil.slides.patches import FeatureWriter, read_coords, write_features

from .test_coords_file import patches


def grid(count):
    return patches(512 * np.stack([np.arange(count) % 50, np.arange(count) // 50], axis=1))


def embeddings(count, dim=24, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("count", [0, 1, 700])
def test_the_file_is_as_trident_writes_it(tmp_path, dtype, count):
    path, features = tmp_path / "features_uni_v1" / "a.h5", embeddings(count, dtype=dtype)
    write_features(path, features, grid(count), encoder="uni_v1", attributes={"weights": None})
    with h5py.File(path) as file:
        assert sorted(file) == ["coords", "features"]
        assert not file.attrs
        assert file["features"].dtype == dtype
        assert file["features"].maxshape == (None, 24)
        np.testing.assert_array_equal(file["features"][()], features)
        np.testing.assert_array_equal(file["coords"][()], grid(count).coords)
        assert dict(file["features"].attrs) == {
            "name": "TCGA-3C.F6 ä",
            "savetodir": "features_uni_v1",
            "encoder": "uni_v1",
            "weights": "None",
        }
        assert file["coords"].attrs["patch_size_level0"] == 512
    assert read_coords(path).size == 256


@pytest.mark.parametrize("count", [0, 7])
def test_the_package_reads_it(tmp_path, count):
    features = embeddings(count)
    write_features(tmp_path / "a.h5", features, grid(count), encoder="uni_v1")
    header = trident.peek(tmp_path / "a.h5")
    assert (header.num_instances, header.feature_dim) == (count, 24)
    assert (header.encoder, header.magnification, header.patch_size) == ("uni_v1", 20.0, 512)
    bag = trident.read(tmp_path / "a.h5")
    assert torch.equal(bag.features, torch.from_numpy(features.astype(np.float32)))
    assert torch.equal(bag.coords, torch.from_numpy(grid(count).coords))
    assert bag.patch_size == 512


def test_inspect_reads_it(tmp_path, capfd, monkeypatch):
    from sgpmil.cli.main import run

    monkeypatch.setenv("COLUMNS", "200")
    for name, count in (("a.1", 40), ("b", 12), ("no tissue", 0)):
        write_features(tmp_path / f"{name}.h5", embeddings(count), grid(count), encoder="uni_v1")
    with pytest.raises(SystemExit):
        run(["inspect", str(tmp_path)])
    shown = re.sub(r"\x1b\[[0-9;]*m", "", capfd.readouterr().out)
    facts = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in shown.splitlines()
        if line.count("│") == 3
    }
    assert facts["encoder"] == "uni_v1"
    assert facts["feature dimension"] == "24"
    assert facts["magnification"] == "20×"
    assert facts["patch side, level 0"] == "512 px"
    assert facts["empty slides"] == "1: no tissue"


@pytest.mark.parametrize("batch", [1, 64, 1000, 5000])
def test_the_bytes_do_not_depend_on_the_batches(tmp_path, batch):
    # 5000 rows of 300 half-precision numbers are six chunks.
    features, places = embeddings(5000, 300), grid(5000)
    write_features(tmp_path / "f" / "a.h5", features, places, encoder="e")
    writer = FeatureWriter(
        tmp_path / "g" / "f" / "a.h5", places, dim=300, dtype="float16", encoder="e"
    )
    for start in range(0, 5000, batch):
        writer.append(features[start : start + batch].astype(np.float32))
    writer.finish()
    assert (tmp_path / "f" / "a.h5").read_bytes() == (tmp_path / "g" / "f" / "a.h5").read_bytes()
    with h5py.File(tmp_path / "f" / "a.h5") as file:
        np.testing.assert_array_equal(file["features"][()], features)


def test_rows_can_be_appended_as_trident_does(tmp_path):
    write_features(tmp_path / "a.h5", embeddings(10), grid(10), encoder="e")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        for name, rows in (("features", embeddings(5, seed=1)), ("coords", grid(5).coords)):
            dataset = file[name]
            dataset.resize(15, axis=0)
            dataset[-5:] = rows
    bag = trident.read(tmp_path / "a.h5")
    expected = np.concatenate([embeddings(10), embeddings(5, seed=1)]).astype(np.float32)
    np.testing.assert_array_equal(bag.features.numpy(), expected)


def writer_of(tmp_path, count=10):
    return FeatureWriter(
        tmp_path / "a.h5",
        grid(count),
        dim=24,
        dtype="float16",
        encoder="e",
        attributes={"fingerprint": "abc"},
        coords_attributes={"mpp": 0.25},
    )


def test_a_file_appears_when_it_is_whole(tmp_path):
    writer = writer_of(tmp_path)
    writer.append(embeddings(10))
    assert not (tmp_path / "a.h5").exists()
    writer.finish()
    assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["features"].attrs["fingerprint"] == "abc"
        assert file["coords"].attrs["mpp"] == 0.25


def test_a_dropped_file_leaves_nothing_and_the_old_one_stays(tmp_path):
    write_features(tmp_path / "a.h5", embeddings(3), grid(3), encoder="old")
    before = (tmp_path / "a.h5").read_bytes()
    writer = writer_of(tmp_path)
    writer.append(embeddings(4))
    writer.drop()
    assert [file.name for file in tmp_path.iterdir()] == ["a.h5"]
    assert (tmp_path / "a.h5").read_bytes() == before


def test_missing_embeddings_are_refused(tmp_path):
    writer = writer_of(tmp_path)
    writer.append(embeddings(9))
    with pytest.raises(ExtractionError, match="Expected 10 embeddings, but got 9"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (embeddings(11), "at most 10 embeddings of 24 numbers, but got 11 of 24"),
        (embeddings(10, 23), "at most 10 embeddings of 24 numbers, but got 10 of 23"),
        (np.full((10, 24), np.nan, dtype=np.float32), "gave NaN or infinity"),
        (np.full((10, 24), 7e4, dtype=np.float32), "gave numbers beyond float16"),
    ],
)
def test_wrong_embeddings_are_refused(tmp_path, wrong, words):
    writer = writer_of(tmp_path)
    with pytest.raises(ExtractionError, match=words):
        writer.append(wrong)
    writer.drop()
    assert list(tmp_path.iterdir()) == []


def test_at_once_they_are_refused_too(tmp_path):
    with pytest.raises(ExtractionError, match="but got 4 of 24"):
        write_features(tmp_path / "a.h5", embeddings(4), grid(3), encoder="e")
    assert list(tmp_path.iterdir()) == []
