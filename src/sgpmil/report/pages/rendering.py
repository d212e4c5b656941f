"""Pages of HTML from templates. They need no other file and no network."""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sgpmil.bags.files import remove_leftovers, write_text
from sgpmil.errors import RunFolderError


def render_page(template: str, content: Mapping[str, Any]) -> str:
    """Fill a template. Names of slides and classes are escaped, whatever they hold."""
    return _environment().get_template(template).render(**content)


def write_page(
    path: Path, template: str, content: Mapping[str, Any], *, overwrite: bool = False
) -> None:
    """Write a page, whole or not at all.

    Raises:
        RunFolderError: There is a file already, or it cannot be written.
    """
    refuse_existing(path, overwrite=overwrite)
    remove_leftovers(path)
    try:
        write_text(path, render_page(template, content))
    except OSError as error:
        raise RunFolderError(f"Could not write {path}: {error}.") from error


def refuse_existing(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file unasked.

    Raises:
        RunFolderError: There is a file, or a folder.
    """
    if path.is_dir():
        raise RunFolderError(f"Expected a file to write to, but {path} is a folder.")
    if path.exists() and not overwrite:
        raise RunFolderError(f"{path} exists already. Replace it with `overwrite=True`.")


@cache
def _environment() -> Environment:
    # Everything is escaped, not only what looks like HTML by its name.
    environment = Environment(
        loader=PackageLoader("sgpmil.report.pages", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Browsers run this script and no other: the page's policy names its digest.
    script = (files("sgpmil.report.pages") / "templates" / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals["script"] = Markup(script)  # noqa: S704 (our own file)
    environment.globals["script_hash"] = f"sha256-{digest}"
    return environment
