import jaxtyping
import pytest


@pytest.fixture
def without_shape_checks():
    """Users run without jaxtyping's checks, which would refuse a wrong choice first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
