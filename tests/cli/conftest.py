import csv
import re

import h5py
import numpy as np
import pytest

from sgpmil.cli import output
from sgpmil.cli.main import run


@pytest.fixture
def sgpmil(capfd, monkeypatch):
    """Run the command line as a user does; return exit code, standard output and error."""
    monkeypatch.setenv("COLUMNS", "200")
    # It may have taken the width of another terminal when it was imported.
    monkeypatch.setattr(output.console, "width", 200)

    def call(*arguments):
        code = 0
        try:
            run([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capfd.readouterr()
        return code, _plain(out), _plain(err)

    return call


@pytest.fixture
def slides(tmp_path):
    """Twenty slides in TRIDENT's layout, easily told apart, and their labels."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "features"
    folder.mkdir()
    rows = []
    for number in range(20):
        name = f"{number:03d}.slide"
        positive = number % 2
        x = rng.normal(size=(6, 4)) + 3 * positive
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["features"] = x.astype(np.float32)
            file["features"].attrs["encoder"] = "uni_v1"
            file["coords"] = 256 * np.arange(12).reshape(6, 2)
            file["coords"].attrs["patch_size_level0"] = 256
            file["coords"].attrs["target_magnification"] = 20
        rows.append((f"case-{number // 2 * 2 + positive}", name, "tumor" if positive else "normal"))
    labels = tmp_path / "labels.csv"
    with labels.open("w", newline="") as file:
        csv.writer(file).writerows([("case_id", "slide_id", "label"), *rows])
    return folder, labels


@pytest.fixture
def tiny():
    """Options that make training take a second."""
    sizes = (
        "hidden_dims=[8]",
        "gp_dim=4",
        "num-inducing=5",
        "num_samples=4",
        "prediction_samples=16",
        "prediction_error=0",
    )
    return [word for size in sizes for word in ("--set", f"model.settings.{size}")]


def _plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
