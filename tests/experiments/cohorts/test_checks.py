import shutil
from dataclasses import replace

import h5py
import pytest

from sgpmil.experiments.cohorts.checks import check_cohort
from tests.experiments.cohorts.tables_of_labels import write_labels


def texts(found, about, *, problems=None):
    return [
        one.text
        for one in found.findings
        if one.about == about and (problems is None or one.is_problem == problems)
    ]


def test_a_whole_study_is_ready_and_nothing_is_written(options_of):
    options = options_of("camelyon16", model=())
    found = check_cohort(options)
    assert found.is_ready, found.findings
    assert (
        "18 slides: 9 normal, 9 tumor. The paper has 398: 238 normal" in texts(found, "labels")[0]
    )
    (text, *_) = texts(found, "features")
    assert "24 features as float16; encoder synthetic" in text
    assert texts(found, "annotations") == ["9 of 9 positive slides are annotated."]
    assert [row.row.name for row in found.estimate.rows][-1] == "sgpmil"
    assert not options.folder.exists()


def test_missing_files_are_counted_and_named(options_of, tmp_path):
    options = options_of("bracs", "trident", annotations=None)
    features = tmp_path / "some"
    shutil.copytree(options.features, features)
    for name in ("BRACS_1", "BRACS_4"):
        (features / f"{name}.h5").unlink()
    shutil.copy(features / "BRACS_0.h5", features / "other.h5")
    found = check_cohort(replace(options, features=features))
    assert not found.is_ready
    assert texts(found, "missing") == [
        "2 of 24 labelled slides have no features: 'BRACS_1', 'BRACS_4'. Leave them out with "
        "`skip_missing=True`.",
        "1 slides with features have no label: 'other'. Leave them out with `skip_missing=True`.",
    ]
    assert "2 slides of the splits have no features: 'BRACS_1', 'BRACS_4'." in texts(
        found, "splits"
    )
    assert check_cohort(replace(options, features=features, skip_missing=True)).is_ready


def test_damaged_empty_and_mixed_files_are_named(options_of, tmp_path):
    options = options_of("bracs", "trident")
    features = tmp_path / "some"
    shutil.copytree(options.features, features)
    (features / "BRACS_2.h5").write_bytes(b"\x89HDF\r\n\x1a\nbroken")
    with h5py.File(features / "BRACS_3.h5", "w") as file:
        file["features"] = [[1.0] * 8]
        file["coords"] = [[0, 0]]
    found = check_cohort(replace(options, features=features))
    problems = texts(found, "features", problems=True)
    assert any("1 damaged: 'BRACS_2'" in text for text in problems)
    assert any("several lengths" in text for text in problems)


def test_everything_wrong_is_said_at_once(options_of, tmp_path):
    labels = write_labels(tmp_path / "labels.csv", "panda")
    options = options_of(
        "camelyon16",
        features=tmp_path / "nowhere",
        labels=labels,
        annotations=tmp_path / "none",
        slides=tmp_path / "my slides",
    )
    found = check_cohort(options)
    assert not found.is_ready
    assert "'G1', 'G2', 'G3' and 3 more" in texts(found, "labels", problems=True)[0]
    assert f"sgpmil extract '{tmp_path}/my slides'" in texts(found, "features", problems=True)[0]
    assert texts(found, "annotations", problems=True)
    assert found.estimate is None


@pytest.mark.parametrize(("cohort", "count"), [("camelyon16", 10), ("bracs", 1)])
def test_folds_that_are_made_here_are_called_so(options_of, tmp_path, cohort, count):
    labels = write_labels(tmp_path / "labels.csv", cohort)
    found = check_cohort(options_of(cohort, splits=None, labels=labels, fold=()))
    (text,) = texts(found, "splits")
    assert text.startswith(f"{count} fold")
    assert "made here" in text


def test_patches_of_another_size_than_the_papers_are_pointed_out(options_of):
    (text,) = texts(check_cohort(options_of("camelyon16")), "patches")
    assert "far from the 2,200 or so of 224 px at 10×" in text


def test_a_disk_without_space_is_a_problem(options_of, monkeypatch):
    import sgpmil.experiments.cohorts.checks as checks

    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda _: usage)
    found = check_cohort(options_of("camelyon16"))
    assert not found.is_ready
    assert texts(found, "disk", problems=True)
