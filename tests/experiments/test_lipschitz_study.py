import pytest

from sgpmil.errors import SettingsError
from sgpmil.experiments.lipschitz_study import (
    LipschitzStudyOptions,
    compare_lipschitz,
    plan_lipschitz,
    read_bounded,
    write_lipschitz_tables,
)
from tests.experiments.tiny_data import write_mnist


@pytest.mark.slow
def test_bounds_hold_and_a_broken_one_is_named(tmp_path):
    write_mnist(tmp_path / "mnist")
    options = LipschitzStudyOptions(
        data=tmp_path,
        sets=("digits",),
        design=("abmil",),
        seeds="0",
        jobs=1,
        device="cpu",
        quick=True,
        out=tmp_path / "out",
    )
    assert compare_lipschitz(options) == {}
    (run,) = read_bounded(tmp_path / "out")
    assert run.exceeded == ()
    assert set(run.gradients) == {"classifier", "attention", "slide"}
    files = {path.name for path in write_lipschitz_tables(tmp_path / "out", (0,))}
    assert files == {"lipschitz.md", "runs.csv", "lipschitz-digits-200.png"}
    text = (tmp_path / "out/lipschitz.md").read_text()
    assert "Bounds that a gradient exceeds: none." in text
    path = tmp_path / "out/digits-200/abmil/run-seed0.json"
    path.write_text(
        path.read_text().replace('"gradients": {"classifier": ', '"gradients": {"classifier": 9')
    )
    (broken,) = read_bounded(tmp_path / "out")
    assert broken.exceeded == ("classifier",)


def test_unknown_designs_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="`design` among default, points"):
        plan_lipschitz(LipschitzStudyOptions(data=tmp_path, design=("clam",)))
