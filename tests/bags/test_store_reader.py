import numpy as np
import pytest
import torch

from sgpmil.bags import BagDataset, PackedStore, pack_bags
from sgpmil.bags.bag import BagBatch
from sgpmil.bags.store_reader import StoreReader
from sgpmil.errors import BagError


@pytest.fixture(params=["float16", "float32"])
def store(request, tmp_path, rng):
    features = [rng.normal(size=(n, 6)).astype(np.float32) for n in (3, 1, 7, 4)]
    coords = [np.arange(2 * len(x)).reshape(-1, 2) for x in features]
    bags = BagDataset.from_arrays(features, [0, 1, 0, 1], coords=coords)
    pack_bags(bags, tmp_path / "store", dtype=request.param)
    return PackedStore.open(tmp_path / "store")


def test_bags_are_read_as_they_are_packed_from_memory(store):
    bags = list(store.dataset())
    reader = StoreReader(store)
    for chosen in ([2, 0], [1], [3, 2, 1, 0]):
        picked = [bags[i] for i in chosen]
        found, expected = reader.pack(picked), BagBatch.pack(picked)
        assert found.features.dtype == expected.features.dtype
        assert torch.equal(found.features, expected.features)
        assert torch.equal(found.offsets, expected.offsets)
        assert torch.equal(found.coords, expected.coords)
        assert found.slide_ids == expected.slide_ids


def test_a_batch_lasts_as_long_as_is_said(store):
    bags = list(store.dataset())
    reader = StoreReader(store, num_buffers=2)
    first = reader.pack([bags[0]])
    kept = first.features.clone()
    second = reader.pack([bags[1], bags[2]])
    assert torch.equal(first.features, kept)
    reader.pack([bags[1]])
    assert not torch.equal(first.features, kept)
    assert torch.equal(second.features, BagBatch.pack([bags[1], bags[2]]).features)


def test_a_file_that_became_shorter_is_told(store):
    bags = list(store.dataset())
    reader = StoreReader(store)
    path = store.path / "features.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-8])
    with pytest.raises(BagError, match="Pack the bags again"):
        reader.pack([bags[3]])
