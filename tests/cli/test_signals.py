"""What a user sees who stops a training."""

import signal
import subprocess
import sys

import pytest

from tests.waiting import HANGS_S, wait_until


def hear_interrupts():
    """Undo what a shell does to a job in the background, and with it to these tests."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_says_so_and_how_to_go_on(slides, tiny, tmp_path, number):
    features, labels = slides
    run = tmp_path / "run"
    command = [sys.executable, "-m", "sgpmil", "train", "--features", features]
    command += ["--labels", labels, "--run", run, "--epochs", "100000", *tiny]
    with subprocess.Popen(
        [str(word) for word in command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    ) as process:
        curve = run / "fold-0" / "metrics.csv"
        wait_until(lambda: curve.exists() and len(curve.read_text().splitlines()) > 2, process)
        process.send_signal(number)
        _, err = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert "Interrupted. Continue with --resume." in err
    assert "Traceback" not in err
