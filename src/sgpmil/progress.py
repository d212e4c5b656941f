"""Progress of long work: a bar in a terminal, a line now and then in a log file."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # imported when a bar is made: workers that decode tiles do not need it
    from rich.console import Console, RenderableType

_LOG_PERIOD_S = 30.0
"""Shortest time between two lines of progress in a log file."""

_LOG_SHARE = 0.05
"""Share of the time so far after which the next line follows: long work gets fewer lines."""

_WIDE = 72
"""Columns of a terminal in which there is room for a long bar."""

_MOST_ROWS = 16
"""Rows of a table beneath a bar, so that it fits on a screen; a line counts the others."""


class ProgressBar:
    """Progress of a piece of work. `progress_bar` makes it.

    Args:
        console: Console of standard error.
        text: Text in front of the bar.
        total: Units of work in all; None where unknown.
        unit: Name of the units, such as ``slides``.
        num_done: Units that were done before; they do not count in the speed.
        may_end_early: Whether the time left is the longest possible one, as with early stopping.
    """

    def __init__(
        self,
        console: "Console",
        text: str,
        total: int | None,
        unit: str,
        *,
        num_done: int = 0,
        may_end_early: bool = False,
    ) -> None:
        self.console = console
        self.unit = unit
        self._may_end_early = may_end_early
        self._logged = monotonic()
        self._states: dict[object, str] = {}
        self._rows: tuple[tuple[str, ...], ...] = ()
        self._begin(text, total, num_done)

    def _begin(self, text: str, total: int | None, num_done: int) -> None:
        self.text, self.total = text, total
        self.done: int | float = num_done
        self._num_before = num_done
        self._start = self._changed = monotonic()

    @property
    def count(self) -> str:
        """Units done so far, of all: ``3 of 40``."""
        whole = int(self.done)
        return f"{whole}" if self.total is None else f"{whole} of {self.total}"

    @property
    def time_left(self) -> str:
        """Time until all units are done, at the mean speed so far; empty where unknown."""
        num_new = self.done - self._num_before
        if self.total is None or num_new <= 0 or self.done >= self.total:
            return ""
        expected = (self._changed - self._start) / num_new * (self.total - self.done)
        seconds = round(max(0.0, expected - (monotonic() - self._changed)))
        time = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
        return f"at most {time}" if self._may_end_early else time

    def begin(self, text: str, total: int | None) -> None:
        """Start from zero with another text and total."""
        self._begin(text, total, 0)

    def advance(self, num: int | float = 1) -> None:
        """Add units of work that are done."""
        self.reach(self.done + num)

    def reach(self, done: int | float) -> None:
        """Set the units of work that are done."""
        self.done, self._changed = done, monotonic()
        if not is_live(self.console):
            self._log_now_and_then()

    def drop(self, num: int) -> None:
        """Take away units that need not be done, such as epochs after an early stop."""
        if self.total is not None:
            self.total -= num

    def show(self, *, state: str) -> None:
        """Change the line beneath the bar."""
        self._states[self] = state

    def show_table(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Change the table beneath the bar, such as of jobs and the machines that they run on."""
        self._rows = tuple(rows)

    @contextmanager
    def line(self) -> Iterator["ProgressLine"]:
        """Add a line beneath the bar while the block runs, such as for one of several folds."""
        line = ProgressLine(self._states)
        try:
            yield line
        finally:
            self._states.pop(line, None)

    def say(self, text: str) -> None:
        """Print a line above the bar. A terminal breaks it between words."""
        if is_live(self.console):
            text = textwrap.fill(
                text,
                self.console.width,
                subsequent_indent="  ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def log(self, text: str) -> None:
        """Print a line where the bar is hidden, so that a log file has it."""
        if not is_live(self.console):
            self._logged = monotonic()
            self.say(text)

    def _log_now_and_then(self) -> None:
        now = monotonic()
        if now - self._logged >= max(_LOG_PERIOD_S, _LOG_SHARE * (now - self._start)):
            rows = [" ".join(cell for cell in row if cell) for row in self._rows[:_MOST_ROWS]]
            parts = [f"{self.count} {self.unit}", self.time_left, *self._states.values(), *rows]
            self.log(f"{self.text}: {', '.join(part for part in parts if part)}")

    def render(self) -> "RenderableType":
        """Return the bar and the lines beneath it, as wide as the terminal allows."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar as Bar
        from rich.table import Table
        from rich.text import Text

        total = "?" if self.total is None else self.total
        row = Table.grid(padding=(0, 1))
        for _ in range(4):
            row.add_column(no_wrap=True)
        row.add_row(
            Text(self.text),
            Bar(
                total=self.total,
                completed=self.done,
                width=10 if self.console.width >= _WIDE else 4,
                pulse=self.total is None,
            ),
            Text(f"{int(self.done)}/{total} {self.unit}", style="green"),
            Text(self.time_left, style="cyan"),
        )
        states = [Padding(Text(state), (0, 0, 0, 2)) for state in self._states.values() if state]
        return Group(row, *states, *self._table())

    def _table(self) -> "list[RenderableType]":
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        if not self._rows:
            return []
        table = Table.grid(padding=(0, 2))
        for row in self._rows[:_MOST_ROWS]:
            table.add_row(*(Text(cell, overflow="ellipsis", no_wrap=True) for cell in row))
        left = len(self._rows) - _MOST_ROWS
        more = [Padding(Text(f"and {left} more", style="dim"), (0, 0, 0, 2))] if left > 0 else []
        return [Padding(table, (0, 0, 0, 2)), *more]


class ProgressLine:
    """A line beneath a bar. `ProgressBar.line` makes it."""

    def __init__(self, states: dict[object, str]) -> None:
        self._states = states

    def show(self, text: str) -> None:
        """Change the line."""
        self._states[self] = text


@contextmanager
def progress_bar(
    text: str,
    total: int | None,
    unit: str,
    *,
    num_done: int = 0,
    may_end_early: bool = False,
    show: bool = True,
) -> Iterator[ProgressBar]:
    """Show a progress bar on standard error while the block runs.

    Without a terminal, such as in a log file, lines are printed now and then instead.

    Example:
        >>> with progress_bar("Reading", 2, "slides", show=False) as bar:
        ...     bar.advance()
        ...     bar.count
        '1 of 2'
    """
    from rich.live import Live

    from sgpmil.terminal import HarmlessConsole

    console = HarmlessConsole(stderr=True, quiet=not show)
    bar = ProgressBar(console, text, total, unit, num_done=num_done, may_end_early=may_end_early)
    if not is_live(console):
        yield bar
        return
    with Live(console=console, get_renderable=bar.render, transient=True, refresh_per_second=4):
        yield bar


def is_live(console: "Console") -> bool:
    """Return whether a console shows a bar that changes."""
    return not console.quiet and (console.is_terminal or console.is_jupyter)
