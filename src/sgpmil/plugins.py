"""Plug-ins: packages that add to this one through entry points.

A package names a module or an object of its own under a group such as ``sgpmil.models``. Importing
it registers what the package adds.
"""

import warnings
from functools import cache
from importlib.metadata import entry_points


class PluginWarning(UserWarning):
    """A plug-in could not be imported."""


@cache
def load_plugins(group: str) -> tuple[str, ...]:
    """Import the plug-ins of a group, once a process, and return the names of their entry points.

    A plug-in that cannot be imported is left out with a `PluginWarning`.

    Args:
        group: Group of the entry points, such as ``sgpmil.models``.
    """
    loaded = []
    for point in entry_points(group=group):
        try:
            point.load()
        except Exception as error:  # noqa: BLE001  somebody else's code fails in its own ways
            reason = " ".join(str(error).split()).rstrip(".") or "no reason given"
            warnings.warn(
                f"Left out the plug-in '{point.name}' of {group}, because {point.value} could not "
                f"be imported ({type(error).__name__}: {reason}). Update or uninstall it.",
                PluginWarning,
                stacklevel=3,
            )
        else:
            loaded.append(point.name)
    return tuple(loaded)
