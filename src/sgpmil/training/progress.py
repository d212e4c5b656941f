"""Progress bars over the epochs of the folds that are being trained."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

__all__ = ["FoldProgress", "RunProgress", "run_progress"]


class FoldProgress:
    """Shows where a fold is.

    Args:
        bar: The bars of the run.
        epochs: Epochs of a fold.
        text: What is shown of the fold.
    """

    def __init__(self, bar: Progress, epochs: int, text: str) -> None:
        self.bar = bar
        self.epochs = epochs
        self.task = bar.add_task(text, total=epochs, state="")

    def epoch(self, metrics: Mapping[str, int | float]) -> None:
        """End an epoch."""
        state = f"loss {metrics['train_loss']:.3f}"
        if "val_loss" in metrics:
            state += (
                f"  val loss {metrics['val_loss']:.3f}"
                f"  balanced accuracy {metrics['val_balanced_accuracy']:.3f}"
            )
        self.bar.update(self.task, completed=int(metrics["epoch"]) + 1, state=state)

    def trained(self) -> None:
        """End the training of a fold, be it before its last epoch."""
        (task,) = (task for task in self.bar.tasks if task.id == self.task)
        done = int(task.completed) or self.epochs
        self.bar.update(self.task, total=done, completed=done, state="testing")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.bar.console.print(text, highlight=False)


class RunProgress:
    """Shows where a run is, a line for each fold that is being trained.

    Args:
        bar: The bars.
        epochs: Epochs of a fold.
    """

    def __init__(self, bar: Progress, epochs: int) -> None:
        self.bar = bar
        self.epochs = epochs

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.bar.console.print(text, highlight=False)

    @contextmanager
    def fold(self, text: str) -> Iterator[FoldProgress]:
        """Show a fold while the block runs."""
        shown = FoldProgress(self.bar, self.epochs, text)
        try:
            yield shown
        finally:
            self.bar.remove_task(shown.task)


@contextmanager
def run_progress(epochs: int, *, show: bool) -> Iterator[RunProgress]:
    """Show bars while the block runs.

    Args:
        epochs: Epochs of a fold.
        show: Whether to show anything.
    """
    # In a narrow terminal the metrics give way, not the count and the time left.
    columns = (
        TextColumn("{task.description}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("epochs", table_column=Column(no_wrap=True)),
        TimeRemainingColumn(),
        TextColumn(
            "{task.fields[state]}",
            table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
        ),
    )
    console = Console(stderr=True, quiet=not show)
    with Progress(*columns, console=console, transient=True, expand=True, disable=not show) as bar:
        yield RunProgress(bar, epochs)
