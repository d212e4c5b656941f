from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

Features = Callable[..., np.ndarray]
WriteTrident = Callable[..., Path]


@pytest.fixture(scope="session")
def shared_data() -> Path:
    folder = Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data sets are not at {folder}")
    return folder


@pytest.fixture
def features() -> Features:
    def make(count: int = 5, dim: int = 4, seed: int = 0, dtype: str = "float32") -> np.ndarray:
        # Halves are exact in float16, so that a round trip can be compared exactly.
        return (np.random.default_rng(seed).integers(-8, 8, (count, dim)) / 2).astype(dtype)

    return make


@pytest.fixture
def write_trident() -> WriteTrident:
    """Write a feature file as TRIDENT does: one chunk a row, geometry on `coords`."""

    def write(path: Path, features: np.ndarray, coords: np.ndarray | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        count = features.shape[-2] if features.ndim > 1 else 0
        if coords is None:
            coords = np.arange(2 * count, dtype=np.int64).reshape(count, 2) * 512
        with h5py.File(path, "w") as file:
            stored = file.create_dataset(
                "features", data=features, maxshape=(None, *features.shape[1:])
            )
            stored.attrs["encoder"] = "uni_v1"
            stored.attrs["name"] = path.stem
            stored.attrs["savetodir"] = "somewhere"
            place = file.create_dataset("coords", data=coords)
            place.attrs["patch_size"] = 256
            place.attrs["patch_size_level0"] = 512
            place.attrs["level0_magnification"] = 40
            place.attrs["target_magnification"] = 20
            place.attrs["overlap"] = 0
            place.attrs["level0_width"] = "None"
        return path

    return write
