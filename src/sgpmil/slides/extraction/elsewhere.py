"""Extraction by workers, such as on a Ray cluster: a queue of slides, an encoder a worker."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sgpmil.bags.files import remove_temporaries
from sgpmil.scaleout.executors import Executor, RunningJob
from sgpmil.slides.encoders import Encoder
from sgpmil.slides.extraction.encoding import Extraction, extract_slides
from sgpmil.slides.extraction.jobs import (
    PROCESS_DIED,
    ExtractionSettings,
    SlideJob,
    SlideOutcome,
)
from sgpmil.slides.extraction.progress import ExtractionProgress, extraction_progress
from sgpmil.slides.patches import ExtractionFolder

SLIDES_AT_ONCE = 4
"""Slides of a job: starting the processes that decode tiles takes a second."""


@dataclass(frozen=True)
class ExtractionWork:
    """The work of each worker; pickled for it.

    Args:
        load: Loads the encoder.
        folder: Folder to write, which all machines see.
        settings: Patches, tissue, batches and processes.
    """

    load: Callable[[], Encoder]
    folder: ExtractionFolder
    settings: ExtractionSettings

    def __call__(self) -> "Callable[[Sequence[SlideJob]], Extraction]":
        """Load the encoder; return the function that extracts some slides."""
        encoder = self.load()

        def extract(slides: Sequence[SlideJob]) -> Extraction:
            with extraction_progress(len(slides), show=False) as silent:
                return extract_slides(slides, encoder, self.folder, self.settings, silent)

        return extract


def extract_elsewhere(
    executor: Executor,
    work: ExtractionWork,
    jobs: Sequence[SlideJob],
    progress: ExtractionProgress,
) -> Extraction:
    """Extract slides by an executor, by the rules of `extract_slides`.

    Args:
        executor: The executor.
        work: The work of each worker.
        jobs: The slides.
        progress: Progress bar.

    Raises:
        ExtractionError: The folder holds embeddings of another encoder, or cannot be written.
    """
    start, outcomes, seconds = time.perf_counter(), dict[str, SlideOutcome](), 0.0
    parts = [tuple(jobs[i : i + SLIDES_AT_ONCE]) for i in range(0, len(jobs), SLIDES_AT_ONCE)]

    def show(running: "Sequence[RunningJob[tuple[SlideJob, ...]]]") -> None:
        progress.show_table([one.row(f"from {one.job[0].slide_id}") for one in running])

    def finish(part: tuple[SlideJob, ...], found: Extraction) -> None:
        nonlocal seconds
        seconds += found.encoding_seconds
        for outcome in found.outcomes:
            outcomes[outcome.slide_id] = outcome
            progress.end(outcome)

    def lost(part: tuple[SlideJob, ...]) -> Extraction:
        failed = (SlideOutcome(job.slide_id, "failed", reason=PROCESS_DIED) for job in part)
        return Extraction(tuple(failed), 0.0, 0.0)

    executor.run(work, parts, on_change=show, on_done=finish, on_death=lost)
    whole = tuple(outcomes[job.slide_id] for job in jobs)
    _remove_temporaries(work.folder, [one.slide_id for one in whole if one.status != "busy"])
    return Extraction(whole, time.perf_counter() - start, seconds)


def _remove_temporaries(folder: ExtractionFolder, slides: Sequence[str]) -> None:
    """Remove what lost machines left of slides; those of other processes stay."""
    names = {
        path.name
        for slide in slides
        for path in (
            folder.contours(slide),
            folder.preview(slide),
            folder.coords(slide),
            folder.features("", slide),
        )
    }
    remove_temporaries(folder.root, names)
