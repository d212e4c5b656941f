"""A progress bar over phantoms."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

__all__ = ["PhantomProgress", "phantom_progress"]

_HOUR = 3600.0
"""Seconds over which the speed is taken: a large slide's strips come slowly."""


class PhantomProgress:
    """Shows how much is drawn and how many slides are done.

    Args:
        bar: The bar.
        num_slides: Number of slides in all.
        num_done: Number of slides that were there before.
        num_rows: Rows of pixels that are to be drawn.
    """

    def __init__(self, bar: Progress, num_slides: int, num_done: int, num_rows: int) -> None:
        self.bar = bar
        self.num_slides = num_slides
        self.num_done = num_done
        self.task = bar.add_task(self._text(), total=num_rows)

    def drawn(self, num_rows: int) -> None:
        """Show how many rows of pixels are drawn."""
        self.bar.update(self.task, completed=num_rows)

    def finished(self, slide_id: str) -> None:
        """Count a slide; in a log file, say so."""
        self.num_done += 1
        self.bar.update(self.task, description=self._text())
        if not self.bar.console.is_terminal:
            text = f"{self.num_done} of {self.num_slides}: {slide_id}"
            self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _text(self) -> str:
        return f"{self.num_done} of {self.num_slides} slides"


@contextmanager
def phantom_progress(
    num_slides: int, *, num_done: int, num_rows: int, show: bool
) -> Iterator[PhantomProgress]:
    """Show a bar on standard error while the block runs.

    Args:
        num_slides: Number of slides in all.
        num_done: Number of slides that were there before.
        num_rows: Rows of pixels that are to be drawn.
        show: Whether to show anything.
    """
    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True, quiet=not show)
    # Without a terminal the bar would be printed once, at the end; lines tell more.
    hidden = not show or not console.is_terminal
    with Progress(
        *columns, console=console, transient=True, disable=hidden, speed_estimate_period=_HOUR
    ) as bar:
        yield PhantomProgress(bar, num_slides, num_done, num_rows)
