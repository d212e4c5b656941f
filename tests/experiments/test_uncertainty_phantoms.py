import numpy as np
import pytest
import torch

import sgpmil.slides.encoders.loading as loading
from sgpmil.experiments import uncertainty_phantoms as phantoms
from sgpmil.experiments.uncertainty_phantoms import KINDS, phantom_pool
from sgpmil.experiments.uncertainty_sets import PoolDesign, uncertainty_set

pytestmark = pytest.mark.slow

SMALL = PoolDesign((6, 4, 4), 2, (1024, 1024), tumour_share=0.15)


class MeanColour:
    """An encoder whose embedding is the mean colour of a patch, and its sharpness."""

    def encode(self, patches):
        pixels = patches.float()
        edges = pixels.diff(dim=1).abs().mean((1, 2, 3))
        return torch.cat([pixels.mean((1, 2)), edges[:, None]], dim=1)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "load_encoder", lambda **_: MeanColour())
        patch.setattr(phantoms, "PHANTOM_DESIGN", SMALL)
        sets = {seed: uncertainty_set("phantoms", seed, cache=cache) for seed in (0, 1)}
    return cache, sets


def test_parts_divide_the_slides_anew_for_each_seed(drawn):
    _, sets = drawn
    parts = {}
    for seed, found in sets.items():
        ids = [part.slide_ids for part in (found.train, found.val, found.test.bags)]
        assert [len(part) for part in ids] == [6, 4, 4]
        assert len(set(sum(ids, ()))) == 14
        assert all(name.startswith("usual") for part in ids for name in part)
        assert sum(found.train.labels) == 3
        parts[seed] = ids[0]
    assert set(parts[0]) != set(parts[1])


def test_tumour_and_lymphocytes_are_where_they_should_be(drawn):
    found = drawn[1][0]
    usual = np.concatenate(found.test.classes)
    assert KINDS.index("lymphocytes") not in usual
    for bag, classes in zip(found.test.bags, found.test.classes, strict=True):
        targets = bag.instance_labels.numpy() > 0
        assert (targets == (classes == KINDS.index("tumour"))).all()
        assert bag.label or not targets.any()
    assert any(bag.instance_labels.any() for bag in found.test.bags)
    tissue = found.shifted["tissue"]
    unseen = np.concatenate(tissue.unseen)
    assert 0 < unseen.mean() < 0.6
    assert (np.concatenate(tissue.classes)[unseen] == KINDS.index("lymphocytes")).all()


def test_stain_and_scanner_look_different(drawn):
    found = drawn[1][0]
    usual = np.concatenate([bag.features.numpy() for bag in found.train])
    for shift in ("stain", "scanner"):
        assert all(unseen.all() for unseen in found.shifted[shift].unseen)
    brown, scanned = (
        np.concatenate([bag.features.numpy() for bag in found.shifted[shift].bags])
        for shift in ("stain", "scanner")
    )
    assert brown[:, 2].mean() < brown[:, 0].mean() - 15  # brown has less blue than red
    assert abs(usual[:, 2].mean() - usual[:, 0].mean()) < 30
    assert np.median(scanned[:, 3]) < 0.8 * np.median(usual[:, 3])  # blurred


def test_features_are_kept_and_a_damaged_file_is_made_again(drawn, monkeypatch):
    cache, sets = drawn
    (path,) = cache.iterdir()
    monkeypatch.setattr(loading, "load_encoder", lambda **_: pytest.fail("embedded again"))
    kept = phantom_pool(SMALL, 0, cache)
    bag = sets[0].train[0]
    (same,) = [slide for slide in kept if slide.name == bag.slide_id]
    np.testing.assert_array_equal(same.features, bag.features.numpy())
    path.write_bytes(path.read_bytes()[:1000])
    monkeypatch.setattr(phantoms, "_scenes", lambda *_: [])
    monkeypatch.setattr(phantoms, "_embed", lambda _: kept[:1])
    assert [slide.name for slide in phantom_pool(SMALL, 0, cache)] == ["usual-0000"]
