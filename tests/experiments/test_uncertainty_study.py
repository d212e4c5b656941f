import csv
import io
import json
import os
import signal
import subprocess
import sys

import pytest

import sgpmil.experiments.uncertainty_study as study
from sgpmil.errors import BagError, RunFolderError, SettingsError
from sgpmil.experiments.uncertainty_sets import uncertainty_set
from sgpmil.experiments.uncertainty_study import (
    UncertaintyOptions,
    choose_designs,
    choose_uncertainty_sets,
    compare_uncertainty,
    parse_seeds,
    plan_uncertainty,
)
from sgpmil.experiments.uncertainty_table import write_tables

QUICK = {
    "sets": ("planted-0.5",),
    "row": ("mean-pool", "abmil"),
    "seeds": "0,1",
    "jobs": 1,
    "device": "cpu",
    "quick": True,
}


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", (3,)), ("0-2", (0, 1, 2)), ("0-1, 5,1", (0, 1, 5))]
)
def test_seeds_as_text(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "-1", "3-", "2-1", "0-5000", "999999"])
def test_bad_seeds_are_refused(text):
    with pytest.raises(SettingsError, match="`seeds`"):
        parse_seeds(text)


def test_the_reference_and_own_designs_are_rows(tmp_path):
    path = tmp_path / "d.yaml"
    path.write_text("deep: {model: abmil, settings: {hidden_dims: [8, 4]}}")
    options = UncertaintyOptions(design=("wide:num_inducing=90",), designs=path)
    assert [d.name for d in choose_designs(options)] == ["abmil", "wide", "deep"]
    options = UncertaintyOptions(row=("agp",), design=("abmil:model=abmil,dropout=0",))
    assert [d.name for d in choose_designs(options)] == ["agp", "abmil"]
    assert choose_designs(options)[1].settings == {"dropout": 0}
    with pytest.raises(SettingsError, match="a name twice"):
        choose_designs(UncertaintyOptions(design=("a:dropout=0,model=abmil", "a:num_inducing=9")))


def test_sets_that_are_not_there_are_left_out_or_named(tmp_path):
    found = choose_uncertainty_sets(UncertaintyOptions(data=tmp_path))
    assert "planted-0.3" in found
    assert not {"digits", "colon", "planted-full-0.3"} & set(found)
    asked = UncertaintyOptions(data=tmp_path, sets=("planted-full-0.3",))
    assert choose_uncertainty_sets(asked) == ["planted-full-0.3"]
    with pytest.raises(BagError, match="Expected the data of 'digits'"):
        choose_uncertainty_sets(UncertaintyOptions(data=tmp_path, sets=("digits",)))
    with pytest.raises(SettingsError, match="among digits"):
        choose_uncertainty_sets(UncertaintyOptions(data=tmp_path, sets=("digit",)))


def times(out):
    return {p.relative_to(out): p.stat().st_mtime_ns for p in out.rglob("*-seed*.json")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    assert compare_uncertainty(UncertaintyOptions(out=out, **QUICK)) == {}
    return out


def test_a_run_is_what_its_design_measures(finished):
    options = UncertaintyOptions(out=finished, **QUICK)
    job = next(j for j in plan_uncertainty(options) if j.design.name == "mean-pool")
    data = uncertainty_set("planted-0.5", 0, quick=True)
    expected = study.measure(study.train_design(job.design, data), data)
    found = json.loads((finished / f"{job.file.key}.json").read_text())
    assert found["num_train"] == len(data.train)
    for key in expected.keys() - {"seconds_per_epoch"}:
        assert found["columns"][key] == pytest.approx(expected[key]), key


def test_a_second_call_trains_nothing_and_a_lost_run_alone_is_done_again(finished, monkeypatch):
    options = UncertaintyOptions(out=finished, **QUICK)
    before = times(finished)
    assert len(before) == 4
    trained = []
    own = study.train_design
    monkeypatch.setattr(
        study, "train_design", lambda d, *a, **k: trained.append(d.name) or own(d, *a, **k)
    )
    compare_uncertainty(options)
    assert trained == []
    assert times(finished) == before
    (finished / "planted-0.5/abmil/run-seed1.json").unlink()
    compare_uncertainty(options)
    assert trained == ["abmil"]
    changed = {k for k, v in times(finished).items() if before[k] != v}
    assert [str(path) for path in changed] == ["planted-0.5/abmil/run-seed1.json"]


def test_results_of_other_settings_are_refused(finished):
    other = {**QUICK, "row": ("mean-pool",), "design": ("abmil:model=abmil,dropout=0.3",)}
    with pytest.raises(RunFolderError, match=r"dropout of planted-0.5/abmil/.* was 0.15"):
        compare_uncertainty(UncertaintyOptions(out=finished, **other))
    with pytest.raises(RunFolderError, match="quick"):
        compare_uncertainty(UncertaintyOptions(out=finished, **{**QUICK, "quick": False}))


def test_tables_hold_every_run(finished):
    files = write_tables(finished, (0,), "abmil", seeds_text="0")
    assert [f.name for f in files] == ["table-seeds-0.md", "comparisons-seeds-0.csv", "runs.csv"]
    rows = list(csv.DictReader(io.StringIO(files[2].read_text())))
    assert {(r["design"], r["seed"]) for r in rows} == {
        (d, s) for d in ("mean-pool", "abmil") for s in "01"
    }
    for row in rows:
        path = finished / f"planted-0.5/{row['design']}/run-seed{row['seed']}.json"
        assert float(row["nll"]) == json.loads(path.read_text())["columns"]["nll"]
    text = files[0].read_text()
    assert "Seeds 0:" in text
    assert "## planted-0.5" in text


KILLED = """
import os, signal, sys
import sgpmil.experiments.uncertainty_study as study
own, count = study.train_design, []
def deadly(*args, **settings):
    count.append(1)
    if len(count) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return own(*args, **settings)
study.train_design = deadly
study.compare_uncertainty(study.UncertaintyOptions(
    out=sys.argv[1], sets=("planted-0.5",), row=("mean-pool", "abmil"), seeds="0,1", jobs=1,
    device="cpu", quick=True))
"""


@pytest.mark.slow
def test_a_killed_study_keeps_what_was_done(tmp_path):
    out = tmp_path / "out"
    call = [sys.executable, "-c", KILLED, str(out)]
    killed = subprocess.run(call, env=os.environ, capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    before = times(out)
    assert len(before) == 2
    for path in before:
        assert json.loads((out / path).read_text())["status"] == "done"
    assert compare_uncertainty(UncertaintyOptions(out=out, **QUICK)) == {}
    after = times(out)
    assert len(after) == 4
    assert before.items() <= after.items()


def test_an_interrupted_study_resumes(tmp_path, monkeypatch):
    own = study.train_design

    def interrupted(design, *rest, **settings):
        if design.name == "abmil":
            raise KeyboardInterrupt
        return own(design, *rest, **settings)

    options = UncertaintyOptions(out=tmp_path, **{**QUICK, "seeds": "0", "reference": "mean-pool"})
    monkeypatch.setattr(study, "train_design", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compare_uncertainty(options)
    assert [str(path) for path in times(tmp_path)] == ["planted-0.5/mean-pool/run-seed0.json"]
    monkeypatch.undo()
    assert compare_uncertainty(options) == {}
    assert len(times(tmp_path)) == 2


def test_a_failed_run_does_not_stop_the_others(tmp_path, monkeypatch):
    own = study.train_design

    def failing(design, *rest, **settings):
        if design.name == "abmil":
            raise ValueError("no memory")
        return own(design, *rest, **settings)

    monkeypatch.setattr(study, "train_design", failing)
    options = UncertaintyOptions(out=tmp_path, **{**QUICK, "seeds": "0"})
    found = compare_uncertainty(options)
    assert found == {"planted-0.5/abmil/run-seed0": "ValueError: no memory"}
    assert len(times(tmp_path)) == 2
