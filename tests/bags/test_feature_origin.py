import pytest

from sgpmil.bags import read_bags
from sgpmil.bags.feature_origin import FeatureOrigin, other_features
from sgpmil.bags.packing import pack_bags


def test_what_bags_state_is_collected_wherever_they_are(tmp_path, features, write_trident):
    folder = tmp_path / "bags"
    folder.mkdir()
    for name in "ab":
        write_trident(folder / f"{name}.h5", features(3, 4))
    expected = FeatureOrigin(("uni_v1",), (20.0,), (512,))
    bags = read_bags(folder)
    assert FeatureOrigin.of(bags) == expected
    assert FeatureOrigin.of(bags.in_memory()) == expected
    assert FeatureOrigin.of(pack_bags(bags, tmp_path / "store").dataset()) == expected
    assert FeatureOrigin.from_json(expected.to_json()) == expected
    assert other_features([expected], bags) == ""
    said = other_features([FeatureOrigin(("gigapath",), (20.0,), (512,))], bags)
    assert "encoder uni_v1, where training had gigapath" in said


@pytest.mark.parametrize(
    ("trained", "other", "said"),
    [
        (FeatureOrigin(), FeatureOrigin(("a",), (20.0,), (256,)), ""),
        (FeatureOrigin(("a",), (20.0,), (256,)), FeatureOrigin(), ""),
        (FeatureOrigin(("a", "b")), FeatureOrigin(("a",)), ""),
        (FeatureOrigin(magnifications=(20.0,)), FeatureOrigin(patch_sizes=(256,)), ""),
        (FeatureOrigin((), (20.0,)), FeatureOrigin((), (40.0, 20.0)), "instances at 40× and 20×"),
        (
            FeatureOrigin((), (20.0,), (256,)),
            FeatureOrigin((), (20.0,), (512,)),
            "patches of 512 pixels at level 0, where training had 256 (another patch size, or",
        ),
        (
            FeatureOrigin(("uni-v1",), (), (256,)),
            FeatureOrigin(("UNI_v1",), (), (512,)),
            "patches of 512 pixels at level 0",
        ),
        (
            FeatureOrigin(("a",), (), (256,)),
            FeatureOrigin(("b",), (), (512,)),
            "encoder b, where training had a; patches of 512 pixels at level 0",
        ),
        (
            FeatureOrigin((), (20.0,), (256,)),
            FeatureOrigin((), (40.0,), (512,)),
            "instances at 40×, where training had 20×",
        ),
    ],
)
def test_only_what_both_state_is_compared(trained, other, said):
    found = trained.difference(other)
    assert found.startswith(said)
    assert bool(found) == bool(said)


@pytest.mark.parametrize("content", [None, 3, {"encoders": 3}, {"patch_sizes": ["a"]}])
def test_a_damaged_description_says_nothing(content):
    assert not FeatureOrigin.from_json(content)
