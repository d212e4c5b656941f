import jaxtyping
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sgpmil.bags.bag import NO_LABEL, Bag, BagBatch
from sgpmil.errors import BagError, EmptyBagError


def test_case_defaults_to_the_slide():
    assert Bag(torch.ones(1, 2), "a").case_id == "a"


def test_empty_bag_is_refused():
    with pytest.raises(EmptyBagError, match="'a', but got none"):
        Bag(torch.ones(0, 2), "a")


def test_no_features_are_refused():
    with pytest.raises(BagError, match="at least one feature"):
        Bag(torch.ones(2, 0), "a")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_bag_names_slide_and_row(value):
    features = torch.ones(4, 2)
    features[2, 1] = value
    with pytest.raises(BagError, match=r"'a', but 1 of 4 instances .*row 2"):
        Bag(features, "a")


def test_opposite_infinities_are_found():
    with pytest.raises(BagError, match="2 of 2 instances"):
        Bag(torch.tensor([[float("inf")], [float("-inf")]]), "a")


@pytest.fixture
def without_shape_checks():
    """Users run without jaxtyping's checks, so ours must stand by themselves."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_coords_and_instance_labels_are_refused():
    with pytest.raises(BagError, match=r"coordinates of shape \(3, 2\)"):
        Bag(torch.ones(3, 2), "a", coords=torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(BagError, match="3 instance labels"):
        Bag(torch.ones(3, 2), "a", instance_labels=torch.zeros(2, dtype=torch.long))
    with pytest.raises(BagError, match=r"as a matrix .* got shape \(3,\)"):
        Bag(torch.ones(3), "a")


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8))
def test_pack_and_take_apart(sizes):
    bags = [
        Bag(
            torch.randn(n, 3),
            f"s{i}",
            label=i % 2 if i else None,
            coords=torch.randint(9, (n, 2)),
            patch_size=i + 1,
        )
        for i, n in enumerate(sizes)
    ]
    batch = BagBatch.pack(bags)
    assert batch.sizes.tolist() == sizes
    assert batch.bag_index.tolist() == [i for i, n in enumerate(sizes) for _ in range(n)]
    assert batch.labels[0] == NO_LABEL
    for bag, again in zip(bags, batch.bags(), strict=True):
        assert torch.equal(bag.features, again.features)
        assert torch.equal(bag.coords, again.coords)
        assert (bag.slide_id, bag.label, bag.patch_size) == (
            again.slide_id,
            again.label,
            again.patch_size,
        )


def test_mixed_dims_name_both_slides():
    with pytest.raises(BagError, match="2 features of 'a', but 'b' has 3"):
        BagBatch.pack([Bag(torch.ones(1, 2), "a"), Bag(torch.ones(1, 3), "b")])


def test_nothing_to_pack():
    with pytest.raises(BagError, match="at least one bag"):
        BagBatch.pack([])


def test_coords_are_dropped_unless_all_have_them():
    coords = torch.zeros(1, 2, dtype=torch.long)
    batch = BagBatch.pack([Bag(torch.ones(1, 2), "a", coords=coords), Bag(torch.ones(1, 2), "b")])
    assert batch.coords is None


def test_to_casts_features_alone():
    batch = BagBatch.pack([Bag(torch.ones(2, 2), "a", label=1)]).to(dtype=torch.float64)
    assert batch.features.dtype == torch.float64
    assert batch.labels.dtype == torch.long


def test_a_patch_size_that_is_unknown_does_not_hide_the_others():
    bags = [Bag(torch.ones(1, 2), "a", patch_size=512), Bag(torch.ones(1, 2), "b")]
    batch = BagBatch.pack(bags)
    assert batch.patch_sizes.tolist() == [512, 0]
    assert [bag.patch_size for bag in batch.bags()] == [512, None]
    assert BagBatch.pack(bags[1:]).patch_sizes is None
