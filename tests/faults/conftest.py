"""The command line and small data, as the tests of commands have them."""

from tests.cli.conftest import sgpmil, slides, tiny

__all__ = ["sgpmil", "slides", "tiny"]
