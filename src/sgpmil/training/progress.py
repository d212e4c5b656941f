"""A progress bar over the folds and epochs of a run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

__all__ = ["FoldProgress", "fold_progress"]


class FoldProgress:
    """Shows where a run is.

    Args:
        bar: The bar.
        epochs: Epochs of a fold.
    """

    def __init__(self, bar: Progress, epochs: int) -> None:
        self.bar = bar
        self.epochs = epochs
        self.task = bar.add_task("", total=epochs, state="")

    def start(self, text: str) -> None:
        """Begin a fold."""
        self.bar.reset(self.task, total=self.epochs, description=text, state="")

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
        done = int(self.bar.tasks[self.task].completed) or self.epochs
        self.bar.update(self.task, total=done, completed=done, state="testing")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.bar.console.print(text, highlight=False)


@contextmanager
def fold_progress(epochs: int, *, show: bool) -> Iterator[FoldProgress]:
    """Show a bar while the block runs.

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
        yield FoldProgress(bar, epochs)
