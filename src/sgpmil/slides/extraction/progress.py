"""How far an extraction is."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from sgpmil.slides.extraction.jobs import SlideOutcome

__all__ = ["ExtractionProgress", "extraction_progress"]

_HOURS = 24 * 3600.0
"""Seconds over which the speed is taken: a slide can last longer than the bar's half minute."""


class ExtractionProgress:
    """Shows slides, patches per second and the time left.

    The number of patches of the slides to come is unknown, so the time left is reckoned in slides,
    of which the present one counts by its share of patches.

    Args:
        bar: The bar.
        num_slides: Slides in all.
    """

    def __init__(self, bar: Progress, num_slides: int) -> None:
        self._bar = bar
        self._num_slides = num_slides
        self._num_ended = 0
        self._num_patches = 0
        self._in_slide, self._of_slide = 0, 0
        self._start = perf_counter()
        self._task = bar.add_task("", total=float(num_slides), slides=self._slides(), state="")

    def began(self, slide_id: str, num_patches: int) -> None:
        """Begin a slide."""
        self._in_slide, self._of_slide = 0, num_patches
        self._bar.update(self._task, description=slide_id)

    def advanced(self, num_patches: int) -> None:
        """Count patches of the present slide."""
        self._in_slide += num_patches
        self._num_patches += num_patches
        self._show(self._in_slide / max(self._of_slide, 1))

    def ended(self, outcome: SlideOutcome) -> None:
        """End a slide."""
        self._num_ended += 1
        self._in_slide = 0
        self._show(0.0)
        for note in outcome.notes:
            self._say(f"{outcome.slide_id}: {note}")
        if outcome.status == "failed":
            self._say(f"{outcome.slide_id} failed.")  # The reasons come together, at the end.
        elif not self._bar.console.is_terminal and outcome.status in ("done", "empty"):
            patches = f"{outcome.num_patches:,} patches" if outcome.num_patches else "no tissue"
            self._say(f"{self._slides()}: {outcome.slide_id}, {patches}")

    def _show(self, share: float) -> None:
        speed = self._num_patches / max(perf_counter() - self._start, 1e-9)
        self._bar.update(
            self._task,
            completed=self._num_ended + share,
            slides=self._slides(),
            state=f"{speed:,.0f} patches/s",
        )

    def _slides(self) -> str:
        return f"{self._num_ended}/{self._num_slides} slides"

    def _say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def extraction_progress(num_slides: int, *, show: bool = True) -> Iterator[ExtractionProgress]:
    """Show a bar on standard error while the block runs.

    Args:
        num_slides: Slides in all.
        show: Whether to show anything.
    """
    columns = (
        BarColumn(bar_width=20),
        TextColumn("{task.fields[slides]}", table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
    )
    console = Console(stderr=True, quiet=not show)
    # Without a terminal the bar would be printed once, at the end; lines tell more.
    hidden = not show or not console.is_terminal
    with Progress(
        *columns,
        console=console,
        transient=True,
        expand=True,
        disable=hidden,
        speed_estimate_period=_HOURS,
    ) as bar:
        yield ExtractionProgress(bar, num_slides)
