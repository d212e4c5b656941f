import pickle
import re
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from sgpmil.bags.readers.hdf5 import TRIDENT
from sgpmil.errors import ExtractionError
from sgpmil.slides.patches import (
    ExtractionFolder,
    FeatureWriter,
    Patches,
    PatchSettings,
    read_coords,
    write_coords,
)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (PatchSettings(), "20x_256px_0px_overlap"),
        (PatchSettings(magnification=2.5), "2.5x_256px_0px_overlap"),
        (PatchSettings(magnification=1.25, size=224, overlap=32), "1.25x_224px_32px_overlap"),
        (PatchSettings(magnification=40.0, size=512), "40x_512px_0px_overlap"),
        (PatchSettings(magnification=None, mpp=0.5), "0.5mpp_256px_0px_overlap"),
        (PatchSettings(magnification=None, mpp=1.0), "1mpp_256px_0px_overlap"),
    ],
)
def test_names_of_the_patches_folder(settings, name):
    assert ExtractionFolder.of("job", settings).patches_folder == Path("job") / name


@pytest.mark.parametrize("slide", ["a", "TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF", "Präparat 1.2 (b)"])
def test_where_the_files_of_a_slide_are(slide):
    folder = ExtractionFolder.of("job", PatchSettings())
    files = {
        "contours_geojson/{}.geojson": folder.contours(slide),
        "contours/{}.png": folder.preview(slide),
        "20x_256px_0px_overlap/patches/{}_patches.h5": folder.coords(slide),
        "20x_256px_0px_overlap/features_uni_v1/{}.h5": folder.features("uni_v1", slide),
    }
    for expected, found in files.items():
        assert found == Path("job") / expected.format(slide)
    assert folder.contours(slide).parent == folder.contours_folder
    assert folder.preview(slide).parent == folder.previews_folder
    assert folder.coords(slide).parent == folder.coords_folder
    assert folder.features("uni_v1", slide).parent == folder.features_folder("uni_v1")


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        ("h0-mini", "features_h0-mini"),
        ("hf-hub:MahmoodLab/UNI", "features_hf-hub-MahmoodLab-UNI"),
        ("../../elsewhere", "features_..-..-elsewhere"),
        ("resnet50.a1_in1k", "features_resnet50.a1_in1k"),
    ],
)
def test_an_encoder_of_any_name_has_one_folder(encoder, name):
    folder = ExtractionFolder.of("job", PatchSettings())
    assert folder.features_folder(encoder) == folder.patches_folder / name


def test_travels_to_other_processes():
    folder = ExtractionFolder.of("job", PatchSettings())
    assert pickle.loads(pickle.dumps(folder)) == folder  # noqa: S301


COORDS = np.array([[0, 0], [512, 0], [0, 512]], dtype=np.int64)


def patches(coords=COORDS, **changed):
    values = {
        "coords": coords,
        "size": 256,
        "side": 512,
        "overlap": 0,
        "level0_magnification": 40.0,
        "target_magnification": 20.0,
        "slide_size": (3000, 2000),
        "slide_id": "TCGA-3C.F6 ä",
    }
    return Patches(**(values | changed))


def same(first, second):
    np.testing.assert_array_equal(first.coords, second.coords)
    assert first.coords.dtype == second.coords.dtype == np.int64
    for name in Patches.__slots__:
        if name != "coords":
            assert getattr(first, name) == getattr(second, name), name


def test_coordinates_are_as_trident_writes_them(tmp_path):
    write_coords(
        tmp_path / "patches" / "a_patches.h5",
        patches(),
        attributes={"mpp": 0.25, "tissue": {"b": 1, "a": None}, "unknown": None},
    )
    with h5py.File(tmp_path / "patches" / "a_patches.h5") as file:
        assert list(file) == ["coords"]
        assert not file.attrs
        dataset = file["coords"]
        assert dataset.dtype == np.int64
        assert dataset.maxshape == (None, 2)
        np.testing.assert_array_equal(dataset[()], COORDS)
        assert dict(dataset.attrs) == {
            "patch_size": 256,
            "patch_size_level0": 512,
            "level0_magnification": 40,
            "target_magnification": 20,
            "overlap": 0,
            "name": "TCGA-3C.F6 ä",
            "savetodir": "patches",
            "level0_width": 3000,
            "level0_height": 2000,
            "mpp": 0.25,
            "tissue": '{"a": null, "b": 1}',
            "unknown": "None",
        }
        assert dataset.attrs["level0_magnification"].dtype.kind == "i"


@pytest.mark.parametrize(
    "stored",
    [
        patches(),
        patches(np.zeros((0, 2), dtype=np.int64)),
        patches(target_magnification=2.5, overlap=32),
        patches(
            overlap=None, level0_magnification=None, target_magnification=None, slide_size=None
        ),
        patches(512 * np.arange(20_000).reshape(-1, 2)),
    ],
)
def test_there_and_back(tmp_path, stored):
    write_coords(tmp_path / "a_patches.h5", stored)
    same(read_coords(tmp_path / "a_patches.h5"), stored)


def test_the_same_patches_give_the_same_bytes(tmp_path):
    write_coords(tmp_path / "one" / "patches" / "a.h5", patches(), attributes={"mpp": 0.25})
    time.sleep(1.1)  # HDF5 can store times, in seconds
    write_coords(tmp_path / "two" / "patches" / "a.h5", patches(), attributes={"mpp": 0.25})
    one, two = (tmp_path / name / "patches" / "a.h5" for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()


def test_coordinates_can_be_appended_as_trident_does(tmp_path):
    write_coords(tmp_path / "a.h5", patches())
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["coords"].resize(4, axis=0)
        file["coords"][3] = (9, 9)
    assert read_coords(tmp_path / "a.h5").coords.tolist() == [*COORDS.tolist(), [9, 9]]


def write_raw(path, coords, **attributes):
    with h5py.File(path, "w") as file:
        file["coords"] = coords
        file["coords"].attrs.update(attributes)
    return path


def test_clam(tmp_path):
    path = write_raw(
        tmp_path / "slide.1.h5",
        COORDS.astype(np.int32),
        patch_size=256,
        patch_level=1,
        downsample=(4.0, 4.0),
        downsampled_level_dim=np.array([750, 500]),
        level_dim=np.array([750, 500]),
        name="slide.1",
        save_path="/somewhere",
    )
    same(
        read_coords(path),
        patches(
            side=1024,
            overlap=None,
            level0_magnification=None,
            target_magnification=None,
            slide_size=None,
            slide_id="slide.1",
        ),
    )


def test_clam_at_level_0_knows_the_slide(tmp_path):
    path = write_raw(
        tmp_path / "slide.h5",
        COORDS,
        patch_size=512,
        patch_level=0,
        downsample=(1.0, 1.0),
        level_dim=np.array([3000, 2000]),
        custom_downsample=2,
    )
    found = read_coords(path)
    assert (found.size, found.side) == (256, 512)
    assert found.slide_size == (3000, 2000)
    assert found.slide_id == "slide"


def test_older_files_of_trident(tmp_path):
    path = write_raw(
        tmp_path / "a.b_patches.h5",
        COORDS[None].astype(np.float32) + 0.25,
        patch_size=256,
        level0_magnification=40,
        target_magnification=20,
        overlap=0,
        level0_width="None",
        level0_height="None",
    )
    same(read_coords(path), patches(slide_size=None, slide_id="a.b"))


def test_bad_files(tmp_path):
    with pytest.raises(ExtractionError, match="but there is none"):
        read_coords(tmp_path / "none.h5")
    (tmp_path / "zero.h5").write_bytes(b"")
    with pytest.raises(ExtractionError, match="cannot be read"):
        read_coords(tmp_path / "zero.h5")
    write_coords(tmp_path / "cut.h5", patches(512 * np.arange(4000).reshape(-1, 2)))
    (tmp_path / "cut.h5").write_bytes((tmp_path / "cut.h5").read_bytes()[:3000])
    with pytest.raises(ExtractionError, match="cannot be read"):
        read_coords(tmp_path / "cut.h5")
    with pytest.raises(ExtractionError, match=r"'patch_size' and .* but got \['overlap'\]"):
        read_coords(write_raw(tmp_path / "bare.h5", COORDS, overlap=0))
    with pytest.raises(ExtractionError, match="NaN"):
        read_coords(write_raw(tmp_path / "nan.h5", np.full((2, 2), np.nan), patch_size=1))
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["features"] = np.zeros((3, 2))
    with pytest.raises(ExtractionError, match="coords"):
        read_coords(tmp_path / "other.h5")


def grid(count):
    return patches(512 * np.stack([np.arange(count) % 50, np.arange(count) // 50], axis=1))


def write_features(path, features, places, **attributes):
    """Write the embeddings of a slide at once."""
    dtype = features.dtype.name
    writer = FeatureWriter(path, places, dim=features.shape[1], dtype=dtype, **attributes)
    writer.append(features)
    writer.finish()


def embeddings(count, dim=24, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("count", [0, 1, 700])
def test_embeddings_are_as_trident_writes_them(tmp_path, dtype, count):
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
    header = TRIDENT.peek(tmp_path / "a.h5")
    assert (header.num_instances, header.feature_dim) == (count, 24)
    assert (header.encoder, header.magnification, header.patch_size) == ("uni_v1", 20.0, 512)
    bag = TRIDENT.read(tmp_path / "a.h5")
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


def test_embeddings_can_be_appended_as_trident_does(tmp_path):
    write_features(tmp_path / "a.h5", embeddings(10), grid(10), encoder="e")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        for name, rows in (("features", embeddings(5, seed=1)), ("coords", grid(5).coords)):
            dataset = file[name]
            dataset.resize(15, axis=0)
            dataset[-5:] = rows
    bag = TRIDENT.read(tmp_path / "a.h5")
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
