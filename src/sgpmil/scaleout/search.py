"""Spaces of settings to search, and the trials of a search."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sgpmil.errors import SettingsError
from sgpmil.yaml_values import read_yaml_text

_RANGE = re.compile(r"\s*(?P<low>[^\s,]+?)\.\.(?P<high>[^\s,:]+)(?P<log>:log)?\s*")


@dataclass(frozen=True)
class Dimension:
    """A setting that is searched: a range of numbers, or a few values.

    Args:
        key: Path of the setting, such as ``training.learning_rate``.
        low: Least number.
        high: Largest number.
        is_log: Whether every factor is drawn equally often, rather than every difference.
        is_whole: Whether the numbers are whole.
        choices: The values, in place of a range.

    Raises:
        SettingsError: The range is empty, or there are fewer than two values.
    """

    key: str
    low: float = math.nan
    high: float = math.nan
    is_log: bool = False
    is_whole: bool = False
    choices: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if self.choices:
            if len(self.choices) < 2:
                raise SettingsError(
                    f"Expected several values of {self.key} to choose from, but got "
                    f"{self.choices[0]!r} alone. Give it with `assignments`."
                )
        elif not -math.inf < self.low < self.high < math.inf or (self.is_log and self.low <= 0):
            least = " above 0" if self.is_log else ""
            raise SettingsError(
                f"Expected a range of {self.key} from a lower to a higher number{least}, but got "
                f"{self.low:g}..{self.high:g}."
            )

    @property
    def ends(self) -> tuple[Any, ...]:
        """Values that show whether the setting takes all: the ends of the range, or all choices."""
        kind = int if self.is_whole else float
        return self.choices or (kind(self.low), kind(self.high))

    @staticmethod
    def parse(key: str, text: Any) -> "Dimension":
        """Read a dimension: ``1e-5..1e-2:log``, ``1..8`` or ``16,32,64``.

        Raises:
            SettingsError: It is none of these.

        Example:
            >>> Dimension.parse("training.bags_per_step", "1..8").is_whole
            True
            >>> Dimension.parse("model.settings.kernel", "rbf, matern").choices
            ('rbf', 'matern')
        """
        if isinstance(text, (list, tuple)):
            return Dimension(key, choices=tuple(map(_number, text)))
        found = _RANGE.fullmatch(str(text))
        try:
            if found is not None:
                is_whole = all(re.fullmatch(r"-?\d+", found[end]) for end in ("low", "high"))
                low, high = float(found["low"]), float(found["high"])
                return Dimension(key, low, high, found["log"] is not None, is_whole)
            values = read_yaml_text(f"[{text}]")
            if not values:
                raise ValueError
        except SettingsError:
            raise
        except Exception as error:  # damaged text fails in many ways
            raise SettingsError(
                f"Expected a range such as 1e-5..1e-2:log, or values such as 16,32,64, for {key}, "
                f"but got '{text}'."
            ) from error
        return Dimension(key, choices=tuple(map(_number, values)))


def _number(value: Any) -> Any:
    """Read 1e-4, which YAML 1.1 takes for text, as a number."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


@dataclass(frozen=True)
class Progress:
    """How far a trial is.

    Args:
        step: Steps that are done, such as epochs.
        loss: What the search minimises; infinite where the trial failed.
        error: Why it failed.
    """

    step: int
    loss: float
    error: str = ""


@dataclass(frozen=True)
class Trial:
    """Values of the settings that were tried.

    Args:
        name: Name of the trial.
        values: Value of each setting, by its key.
        progress: How far it is; None before its first step.
        is_done: Whether it ended, by itself or because others were better.
        place: Name of the machine, while it runs.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress | None = None
    is_done: bool = False
    place: str = ""


Objective = Callable[[Mapping[str, Any], Path, Callable[[Progress], None]], None]
"""Runs a trial: its values, a folder of its own, which is there again when the trial is resumed,
and where to report."""
