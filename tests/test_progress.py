import io

import pytest
from rich.console import Console

from sgpmil import progress
from sgpmil.progress import ProgressBar, progress_bar


class Clock:
    """A clock that tests set."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def drawn(bar, width):
    """Return the lines that a terminal of a width shows."""
    bar.console = Console(file=io.StringIO(), width=width)
    bar.console.print(bar.render())
    return [line.rstrip() for line in bar.console.file.getvalue().splitlines()]


def a_bar(*arguments, **options):
    return ProgressBar(Console(quiet=True), *arguments, **options)


def test_a_bar_counts():
    bar = a_bar("Reading", 5, "slides", num_done=2)
    bar.advance()
    assert bar.count == "3 of 5"
    bar.advance(0.5)
    assert bar.count == "3 of 5"
    bar.begin("Drawing", 2)
    bar.advance()
    assert (bar.text, bar.count) == ("Drawing", "1 of 2")


def test_the_time_left_is_of_the_mean_speed(clock):
    bar = a_bar("sgpmil", 12, "epochs", num_done=2)
    assert bar.time_left == ""
    clock.now += 400
    bar.advance()
    assert bar.time_left == "1:00:00 left"  # 9 epochs of 400 s; those before are not counted
    clock.now += 200
    bar.advance()
    assert bar.time_left == "0:40:00 left"  # 8 epochs of (400 + 200) / 2 s
    clock.now += 90
    assert bar.time_left == "0:38:30 left"
    bar.begin("Testing", 4)
    clock.now += 1
    bar.advance()
    assert bar.time_left == "0:00:03 left"


def test_work_that_is_not_needed_takes_no_time(clock):
    bar = a_bar("clam-sb", 40, "epochs", may_end_early=True)
    clock.now += 10
    bar.advance(10)
    assert bar.time_left == "at most 0:00:30 left"
    bar.drop(10)  # the first of two folds stopped early
    assert (bar.count, bar.time_left) == ("10 of 30", "at most 0:00:20 left")


@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_cuts_nothing(clock, width):
    bar = a_bar("kernel-attention", 1000, "epochs", may_end_early=True)
    clock.now += 3600
    bar.advance(137)
    lines = "fold 3 (4 of 5), epoch 17: loss 0.500, validation loss 0.250, balanced accuracy 0.875"
    with bar.line() as first, bar.line() as second:
        first.show(lines)
        second.show("fold 4 (5 of 5): testing")
        head, *rest = drawn(bar, width)
    assert head.startswith("kernel-attention ")
    assert head.endswith("137/1000 epochs at most 6:17:57 left")
    assert all(len(line) <= width for line in (head, *rest))
    assert " ".join(" ".join(rest).split()) == f"{lines} fold 4 (5 of 5): testing"
    assert len(drawn(bar, width)) == 1  # lines end with their blocks


def test_a_line_breaks_between_words(clock):
    out = io.StringIO()
    bar = ProgressBar(Console(file=out, width=30, force_terminal=True), "", 1, "folds")
    bar.say("fold 0: AUC 0.976, ACE 0.166 of /a/path/that/is/longer/than/the/terminal/is/wide")
    assert out.getvalue().splitlines() == [
        "fold 0: AUC 0.976, ACE 0.166",
        "  of",
        "  /a/path/that/is/longer/than/the/terminal/is/wide",
    ]


def test_a_log_file_gets_a_line_now_and_then(clock, capfd):
    with progress_bar("sgpmil", 1000, "epochs") as bar, bar.line() as line:
        for epoch in range(1000):
            line.show(f"fold 0, epoch {epoch + 1}: loss 0.5")
            clock.now += 20
            bar.advance()
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "sgpmil: 2 of 1000 epochs, 5:32:40 left, fold 0, epoch 2: loss 0.5"
    # Every 40 s at first; later when 5 % of the time have passed.
    assert lines[1].startswith("sgpmil: 4 of 1000 epochs")
    assert 60 < len(lines) < 120
    last, before = (int(line.split()[1]) for line in (lines[-1], lines[-2]))
    assert last - before == pytest.approx(0.05 * last, abs=1)


def test_a_log_file_gets_lines_instead_of_a_bar(capfd):
    with progress_bar("", 5, "jobs", num_done=2) as bar:
        bar.advance()
        bar.log(f"{bar.count}: colon [abmil]")
        bar.say("It [diverged].")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == ["3 of 5: colon [abmil]", "It [diverged]."]


def test_no_progress_is_shown_unless_asked_for(clock, capfd):
    with progress_bar("", 9, "jobs", show=False) as bar:
        bar.say("a")
        bar.log("b")
        clock.now += 1000
        bar.advance()
    assert capfd.readouterr() == ("", "")
