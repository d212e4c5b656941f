"""Build hook: fetches the viewer's JavaScript library with npm, where there is npm.

Without npm, or without a network, the package is built all the same; ``sgpmil view`` then says how
to get the library.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class VendoredLibraries(BuildHookInterface):
    """Put OpenSeadragon into the package when it is installed or built."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fetch the library before the files are collected."""
        # By its path: the package itself needs libraries that are not there while it is built.
        place = Path(self.root) / "src" / "sgpmil" / "viewer" / "vendor.py"
        spec = importlib.util.spec_from_file_location("sgpmil_vendor", place)
        if spec is None or spec.loader is None:
            return
        vendor = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = vendor
        spec.loader.exec_module(vendor)
        vendor.main([])
