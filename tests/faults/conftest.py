"""The command line and small data, as the tests of commands have them, and commands to disturb."""

import os

import pytest

from tests.cli.conftest import sgpmil, slides, tiny

__all__ = ["sgpmil", "slides", "stand", "tiny"]


@pytest.fixture(scope="session", params=["pack", "predict", "train"])
def stand(request, tmp_path_factory):
    """A command, and what it writes where nothing disturbs it."""
    if not hasattr(os, "fork"):
        pytest.skip("commands run in forks")
    from tests.faults.commands import COMMANDS
    from tests.faults.kills import KillStand

    command = next(one for one in COMMANDS if one.name == request.param)
    return KillStand(command, tmp_path_factory.mktemp("stand"))
