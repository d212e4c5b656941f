import io

from rich.console import Console
from rich.progress import Progress

from sgpmil.training.progress import FoldProgress, run_progress


def bar_of(progress):
    (task,) = progress.bar.tasks
    return task


def test_an_epoch_moves_the_bar_and_says_how_it_goes():
    with run_progress(5, show=False) as run, run.fold("fold 0") as progress:
        progress.epoch({"epoch": 1, "train_loss": 0.51234})
        assert bar_of(progress).completed == 2
        assert bar_of(progress).total == 5
        assert bar_of(progress).fields["state"] == "loss 0.512"
        judged = {"val_loss": 0.25, "val_balanced_accuracy": 0.875}
        progress.epoch({"epoch": 2, "train_loss": 0.5, **judged})
        state = bar_of(progress).fields["state"]
        assert state == "loss 0.500  val loss 0.250  balanced accuracy 0.875"


def test_a_new_fold_starts_again():
    with run_progress(3, show=False) as run:
        with run.fold("fold 0") as progress:
            progress.epoch({"epoch": 2, "train_loss": 0.5})
        with run.fold("fold 1") as progress:
            task = bar_of(progress)
            assert (task.completed, task.description, task.fields["state"]) == (0, "fold 1", "")


def test_folds_that_are_trained_at_once_have_a_line_each():
    with run_progress(3, show=False) as run:
        with run.fold("fold 0") as first, run.fold("fold 1") as second:
            second.epoch({"epoch": 0, "train_loss": 0.5})
            first.epoch({"epoch": 1, "train_loss": 0.5})
            shown = [(task.description, task.completed) for task in run.bar.tasks]
            assert shown == [("fold 0", 2), ("fold 1", 1)]
        assert not run.bar.tasks


def test_a_resumed_fold_starts_where_it_was():
    with run_progress(10, show=False) as run, run.fold("fold 0") as progress:
        progress.epoch({"epoch": 6, "train_loss": 0.5})
        assert bar_of(progress).completed == 7


def test_a_fold_that_stops_early_is_shown_as_complete():
    with run_progress(200, show=False) as run, run.fold("fold 0") as progress:
        progress.epoch({"epoch": 70, "train_loss": 0.5})
        progress.trained()
        task = bar_of(progress)
        assert (task.completed, task.total, task.finished) == (71, 71, True)
        assert task.fields["state"] == "testing"


def test_a_fold_that_was_trained_before_is_shown_as_complete():
    with run_progress(20, show=False) as run, run.fold("fold 0") as progress:
        progress.trained()
        assert (bar_of(progress).completed, bar_of(progress).total) == (20, 20)


def test_nothing_is_shown_unless_asked(capsys):
    with run_progress(3, show=False) as run, run.fold("fold 0") as progress:
        progress.say("fold 0: done")
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


def test_the_bar_and_its_lines_go_to_standard_error(capsys):
    with run_progress(3, show=True) as run, run.fold("fold 0") as progress:
        progress.say("fold 0: done")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "fold 0: done" in shown.err


def test_a_line_stays():
    text = io.StringIO()
    bar = Progress(console=Console(file=text, width=80))
    FoldProgress(bar, 3, "fold 0").say("balanced accuracy 0.9")
    assert text.getvalue() == "balanced accuracy 0.9\n"


def test_in_a_narrow_terminal_the_metrics_give_way_not_the_count():
    name = "kernel-attention, fold 0 (1 of 5)"
    with run_progress(200, show=False) as run, run.fold(name) as progress:
        judged = {"val_loss": 0.25, "val_balanced_accuracy": 0.875}
        progress.epoch({"epoch": 3, "train_loss": 0.5, **judged})
        console = Console(file=io.StringIO(), width=80)
        console.print(progress.bar.get_renderable())
    line = console.file.getvalue().rstrip("\n")
    assert "\n" not in line
    assert name in line
    assert "4/200 epochs" in line
    assert line.rstrip().endswith("…")
