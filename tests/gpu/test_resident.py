import numpy as np
import pytest
import torch

from sgpmil.bags import BagDataset, PackedStore, pack_bags
from sgpmil.errors import BagError
from sgpmil.gpu.resident import DeviceSource, fits_on_device, on_device
from sgpmil.training.fold import bags_near

CPU = torch.device("cpu")


@pytest.fixture
def bags(rng):
    arrays = [rng.normal(size=(n, 3)).astype(np.float16) for n in (4, 1, 7)]
    coords = [rng.integers(0, 99, (len(a), 2)) for a in arrays]
    return BagDataset.from_arrays(arrays, [0, 1, 0], coords=coords)


def assert_same(moved, bags):
    assert moved.labels == bags.labels
    assert moved.num_instances == bags.num_instances
    assert moved.fingerprint() == bags.fingerprint()
    for ours, theirs in zip(moved, bags, strict=True):
        assert torch.equal(ours.features.float(), theirs.features.float())
        assert torch.equal(ours.coords, theirs.coords)
        start = moved.source.start(ours.slide_id)
        rows = moved.source.matrix[start : start + ours.num_instances]
        assert rows.data_ptr() == ours.features.data_ptr()  # a view, not a copy
        assert torch.equal(rows, ours.features)


def test_bags_in_memory(bags):
    moved = on_device(bags, CPU)
    assert_same(moved, bags)
    assert on_device(moved, CPU) is moved
    assert isinstance(moved.subset(["bag-2", "bag-0"]).source, DeviceSource)


@pytest.mark.parametrize("at_once", [1, 5, 1000])
def test_a_packed_store_in_its_own_precision(bags, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("sgpmil.gpu.resident._ROWS_AT_ONCE", at_once)
    pack_bags(bags, tmp_path / "store", dtype="float16")
    store = PackedStore.open(tmp_path / "store").dataset()
    seen = []
    moved = on_device(store.subset(["bag-2", "bag-0"]), CPU, seen.append)
    assert_same(moved, store.subset(["bag-2", "bag-0"]))
    assert moved.source.matrix.dtype == torch.float16
    assert seen == ["bag-2", "bag-0"]


def test_a_slide_that_is_nowhere_is_refused(bags):
    with pytest.raises(BagError, match="'nowhere', which is not among them"):
        on_device(bags, CPU).source.read("nowhere")


def test_nothing_is_kept_on_a_cpu(bags):
    assert not fits_on_device(bags, CPU)


@pytest.mark.gpu
def test_bags_on_a_gpu(bags, tmp_path):
    device = torch.device("cuda")
    assert fits_on_device(bags, device)
    pack_bags(bags, tmp_path / "store", dtype="float16")
    store = PackedStore.open(tmp_path / "store").dataset()
    for source in (bags, store):
        moved = on_device(source, device)
        for ours, theirs in zip(moved, source, strict=True):
            assert ours.features.is_cuda
            assert torch.equal(ours.features.cpu().float(), theirs.features.float())


def test_bags_that_are_on_the_device_stay_there_however_full_it_is(bags, monkeypatch):
    moved = on_device(bags, CPU)
    monkeypatch.setattr("sgpmil.gpu.resident.fits_on_device", lambda *_: False)
    assert bags_near(moved, torch.device("cuda")) is moved
    assert not isinstance(bags_near(bags, torch.device("cuda")).source, DeviceSource)
