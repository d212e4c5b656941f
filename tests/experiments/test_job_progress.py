import io

from rich.console import Console
from rich.progress import Progress, TimeRemainingColumn

from sgpmil.experiments.job_progress import JobProgress, job_progress


def test_a_log_gets_a_line_a_job_and_failures(capfd):
    with job_progress(5, done=2, show=True) as bar:
        bar.running(["colon/abmil/0-seed0"])
        bar.finished("colon/abmil/0-seed0", None)
        bar.finished("colon/abmil/1-seed0", "It [diverged].")
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "3 of 5: colon/abmil/0-seed0",
        "colon/abmil/1-seed0 failed: It [diverged].",
    ]


def test_nothing_is_shown_unless_asked_for(capfd):
    with job_progress(1, done=0, show=False) as bar:
        bar.finished("a", "error")
    assert capfd.readouterr() == ("", "")


def test_long_jobs_still_have_a_time_left():
    clock = iter(range(0, 10**6, 100))  # every look at the clock is 100 seconds later
    console = Console(file=io.StringIO(), force_terminal=True)
    with Progress(
        TimeRemainingColumn(),
        console=console,
        auto_refresh=False,
        get_time=lambda: float(next(clock)),
        speed_estimate_period=7 * 24 * 3600.0,
    ) as bar:
        progress = JobProgress(bar, 10, 0)
        for job in "abc":
            progress.finished(job, None)
        assert bar.tasks[0].time_remaining is not None
        assert bar.tasks[0].completed == 3
