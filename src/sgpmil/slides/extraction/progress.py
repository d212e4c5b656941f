"""Progress of an extraction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter

from sgpmil.notebook import counted
from sgpmil.progress import ProgressBar, progress_bar
from sgpmil.slides.extraction.jobs import SlideOutcome


class ExtractionProgress:
    """Shows slides, patches per second and the time left.

    The number of patches of later slides is unknown, so the bar counts slides, and the current
    slide by its share of patches.

    Args:
        bar: The bar.
    """

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._num_ended = 0
        self._num_patches = 0
        self._in_slide, self._of_slide, self._slide = 0, 0, ""
        self._start = perf_counter()

    def show_table(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Show what runs where, of an extraction by workers."""
        self._bar.show_table(rows)

    def begin(self, slide_id: str, num_patches: int) -> None:
        """Begin a slide."""
        self._in_slide, self._of_slide, self._slide = 0, num_patches, slide_id

    def advance(self, num_patches: int) -> None:
        """Count patches of the current slide."""
        self._in_slide += num_patches
        self._num_patches += num_patches
        self._bar.reach(self._num_ended + self._in_slide / max(self._of_slide, 1))
        speed = self._num_patches / max(perf_counter() - self._start, 1e-9)
        self._bar.show(state=f"{speed:,.0f} patches/s  {self._slide}")

    def end(self, outcome: SlideOutcome) -> None:
        """End a slide."""
        self._num_ended += 1
        self._in_slide = 0
        self._bar.reach(self._num_ended)
        for note in outcome.notes:
            self._bar.say(f"{outcome.slide_id}: {note}")
        if outcome.status == "failed":
            self._bar.say(f"{outcome.slide_id} failed.")  # the reasons follow together at the end
        elif outcome.status in ("done", "empty"):
            patches = (
                counted(outcome.num_patches, "patch", "patches")
                if outcome.num_patches
                else "no tissue"
            )
            left = f", {self._bar.time_left}" if self._bar.time_left else ""
            self._bar.log(f"{self._bar.count} slides{left}: {outcome.slide_id}, {patches}")


@contextmanager
def extraction_progress(num_slides: int, *, show: bool = True) -> Iterator[ExtractionProgress]:
    """Show a progress bar on standard error while the block runs."""
    with progress_bar("Extracting", num_slides, "slides", show=show) as bar:
        yield ExtractionProgress(bar)
