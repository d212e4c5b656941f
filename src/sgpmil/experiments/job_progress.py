"""A progress bar over the jobs of a study."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["JobProgress", "job_progress"]

_DAYS = 7 * 24 * 3600.0
"""Seconds over which the speed is taken: jobs can last longer than the bar's usual half minute."""


class JobProgress:
    """Shows how many jobs are done and which ones run.

    Args:
        bar: The bar.
        total: Number of jobs.
        done: Number of jobs that were done before.
    """

    def __init__(self, bar: Progress, total: int, done: int) -> None:
        self.bar = bar
        self.total = total
        self.done = done
        self.task = bar.add_task("", total=total, completed=done)

    def running(self, jobs: Sequence[str]) -> None:
        """Show the jobs in flight."""
        self.bar.update(self.task, description=escape(", ".join(jobs)))

    def finished(self, job: str, error: str | None) -> None:
        """Count a job; say that it failed, and in a log file that it is done."""
        self.done += 1
        self.bar.advance(self.task)
        if error is not None:
            self._say(f"{job} failed: {error}")
        elif not self.bar.console.is_terminal:
            self._say(f"{self.done} of {self.total}: {job}")

    def _say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def job_progress(total: int, *, done: int, show: bool) -> Iterator[JobProgress]:
    """Show a bar on standard error while the block runs.

    Args:
        total: Number of jobs.
        done: Number of jobs that were done before.
        show: Whether to show anything.
    """
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True, quiet=not show)
    # Without a terminal the bar would be printed once, at the end; lines tell more.
    hidden = not show or not console.is_terminal
    with Progress(
        *columns, console=console, transient=True, disable=hidden, speed_estimate_period=_DAYS
    ) as bar:
        yield JobProgress(bar, total, done)
