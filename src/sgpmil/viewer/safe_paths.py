"""Paths that stay within a folder."""

from pathlib import Path


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path lies in a folder once all links are followed.

    Example:
        >>> is_inside(Path("/a/b/../c"), Path("/a")), is_inside(Path("/a/../c"), Path("/a"))
        (True, False)
    """
    return path.resolve().is_relative_to(folder.resolve())
