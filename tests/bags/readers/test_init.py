from sgpmil.bags import readers


def test_every_public_name_exists():
    for name in readers.__all__:
        assert hasattr(readers, name)
