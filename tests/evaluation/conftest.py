from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Turn jaxtyping's check off, as it is for users, to see the package's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
