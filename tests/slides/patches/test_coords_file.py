import time

import h5py
import numpy as np
import pytest

from sgpmil.errors import ExtractionError
from sgpmil.slides.patches import Patches, read_coords, write_coords

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


def test_the_file_is_as_trident_writes_it(tmp_path):
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


def test_rows_can_be_appended_as_trident_does(tmp_path):
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
