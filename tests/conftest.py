import os
import signal
from collections.abc import Iterator

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import settings

from tests import shape_checks

shape_checks.limit_checks()  # before anything of the package is imported

# Some virtual machines announce AMX and stop a process that uses it; read at the first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# A busy machine is not a failure.
# The same examples every time: a rare one must not fail a change that has nothing to do with it.
settings.register_profile("any machine", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("any machine")


def pytest_configure():
    from sgpmil.torchvision_import import mend_torchvision

    mend_torchvision()  # for tests that compare with torchmetrics, timm and torchvision


def pytest_runtest_setup():
    shape_checks.begin_test()


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # The tests' matrices are small: threads would only wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="session")
def _interrupts_are_heard():
    # Where the tests were started in the background they are ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def cluster():
    """Two machines of a Ray cluster, started when a test first needs them."""
    pytest.importorskip("ray")
    from tests.ray_machines import started_cluster

    with started_cluster() as found:
        yield found


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Turn jaxtyping's check off, as it is for users, to see the package's own errors."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
