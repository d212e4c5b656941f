import errno
import os
import subprocess
import sys

import pytest

from sgpmil import __version__
from sgpmil.cli import main
from sgpmil.errors import BagError


def test_version(sgpmil):
    assert sgpmil("--version") == (0, f"sgpmil {__version__}\n", "")


@pytest.mark.parametrize(
    "command",
    [
        "demo",
        "doctor",
        "init",
        "inspect",
        "pack",
        "splits",
        "train",
        "predict",
        "evaluate",
        "compare",
        "lipschitz",
        "experiment",
    ],
)
def test_every_command_has_help(sgpmil, command):
    code, out, _ = sgpmil(command, "--help")
    assert code == 0
    assert f"sgpmil {command}" in out
    assert command in sgpmil("--help")[1]


def test_a_users_error_is_one_sentence_and_exit_code_2(sgpmil, tmp_path):
    code, out, err = sgpmil("inspect", tmp_path / "nowhere")
    assert code == 2
    assert out == ""
    assert "nowhere" in err
    assert "Traceback" not in err


def test_debug_shows_the_traceback(sgpmil, tmp_path):
    with pytest.raises(BagError):
        sgpmil("inspect", tmp_path / "nowhere", "--debug")


def test_options_may_have_underscores(sgpmil, slides):
    folder, labels = slides
    code, out, _ = sgpmil("inspect", folder, "--labels", labels, "--label_column=label")
    assert code == 0
    assert "normal: 10" in out


def test_underscores_in_values_stay(sgpmil, slides):
    folder, labels = slides
    code, _, err = sgpmil("inspect", folder, "--labels", labels, "--label-column=no_such")
    assert code == 2
    assert "no_such" in err


def test_interrupt_exits_130(sgpmil, monkeypatch, tmp_path):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "app", interrupt)
    code, _, err = sgpmil("demo")
    assert code == 130
    assert "--resume" in err


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "The disk is full (runs/x). Free some space and run the command again."),
        (errno.EFBIG, "Could not write runs/x (File too large): a limit of this system or user"),
        (errno.EEXIST, "Expected a folder, but runs/x is a file (File exists)."),
        (errno.EACCES, "may read and write, but got 'Permission denied' (runs/x). Choose another"),
        (errno.EIO, "The system could not open or write runs/x: Input/output error."),
    ],
)
def test_an_error_of_the_system_is_one_sentence(sgpmil, monkeypatch, number, said):
    def fail(*arguments, **options):
        raise OSError(number, os.strerror(number), "runs/x")

    monkeypatch.setattr(main, "app", fail)
    code, _, err = sgpmil("demo")
    assert code == 2
    assert said in " ".join(err.split())


def test_python_m_sgpmil():
    result = subprocess.run(
        [sys.executable, "-m", "sgpmil", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"sgpmil {__version__}\n"


HEAVY = {"torch", "numpy", "scipy", "pandas", "matplotlib", "pyarrow", "h5py", "sgpmil.bags"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
@pytest.mark.parametrize("entry", ["sgpmil.__main__", "sgpmil.cli.main"])
def test_help_and_version_import_no_command(arguments, entry):
    code = (
        f"import sys, importlib; sys.argv[1:] = {arguments!r}\n"
        f"try: importlib.import_module({entry!r}).run()\n"
        "except SystemExit: print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "sgpmil.cli.main" in loaded
    assert not loaded & HEAVY
    of_shell = {name for name in loaded if name.startswith("sgpmil.cli.")}
    assert of_shell == {"sgpmil.cli.main", "sgpmil.cli.commands"}  # what all commands share
    if arguments == ["--version"]:
        assert "rich" not in loaded


def test_the_help_of_a_command_starts_with_its_line_in_the_list(sgpmil):
    for name, (_, line) in main.COMMANDS.items():
        code, out, _ = sgpmil(name, "--help")
        assert code == 0
        assert f"sgpmil {name}" in out
        assert line in out, name
