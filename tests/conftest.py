import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    # The tests' matrices are small: threads would only wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rng():
    return np.random.default_rng(0)
