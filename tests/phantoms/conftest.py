from dataclasses import replace

import pytest

from sgpmil.phantoms import make_scene

from .scenes import SMALL


@pytest.fixture(scope="session")
def scene():
    """A slide of less than a square millimetre that has one of everything."""
    found = make_scene(3, SMALL)
    assert found.glands
    assert found.adipocytes
    assert found.pen
    assert not found.lymphocytes.is_empty
    assert not found.folds.is_empty
    return found


@pytest.fixture(scope="session")
def normal_scene():
    return make_scene(3, replace(SMALL, tumour_share=0.0))
