"""Names and values of settings as recipes, options and callers give them: anything at all."""

import difflib
import math
from collections.abc import Sequence
from typing import Any

from sgpmil.errors import SettingsError

__all__ = ["checked_value", "unknown_name"]


def checked_value(name: str, value: Any, default: Any) -> Any:
    """Return a value that is of the default's kind, or refuse it.

    Args:
        name: Name of the setting.
        value: The value; a list is taken for a tuple, which JSON and YAML do not have.
        default: A value that is right; None stands for a number.

    Raises:
        SettingsError: The value is of another kind.

    Example:
        >>> checked_value("jitter", 1, 1e-4)
        1.0
    """
    if isinstance(value, list):
        value = tuple(value)
    whole = isinstance(default, tuple) and all(_is_whole(v) for v in default)
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "yes or no"
    elif isinstance(default, int):
        fits, kind = _is_whole(value), "a whole number"
    elif isinstance(default, float) or default is None:
        fits, kind = _is_number(value), "a finite number"
    elif isinstance(default, tuple):
        fits = isinstance(value, tuple) and all(map(_is_whole if whole else _is_number, value))
        kind = "a list of whole numbers" if whole else "a list of finite numbers"
    else:
        fits, kind = isinstance(value, str), "a name"
    if not fits:
        raise SettingsError(f"Expected {name} to be {kind}, but got {value!r}.")
    return float(value) if isinstance(default, float) else value


def unknown_name(what: str, name: str, known: Sequence[str]) -> str:
    """Say that a name is unknown, and which one may be meant.

    Example:
        >>> unknown_name("model", "abmill", ["abmil", "agp"])
        "Expected a model among abmil, agp, but got 'abmill'. Did you mean 'abmil'?"
    """
    close = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"Expected a {what} among {', '.join(known)}, but got '{name}'.{hint}"


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))
