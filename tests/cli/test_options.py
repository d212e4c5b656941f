from sgpmil.cli.options import class_tuple


def test_classes_are_taken_apart():
    assert class_tuple("normal, tumor") == ("normal", "tumor")
    assert class_tuple(None) is None
