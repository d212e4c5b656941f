import shlex

import h5py
import numpy as np
import pytest

from sgpmil.bags import PackedStore, check_folds, read_labels, read_splits


def test_inspect_names_what_is_wrong(sgpmil, slides):
    folder, labels = slides
    with h5py.File(folder / "empty.h5", "w") as file:
        file["features"] = np.zeros((0, 4), dtype=np.float32)
        file["coords"] = np.zeros((0, 2), dtype=np.int64)
    with h5py.File(folder / "001.slide.h5", "r+") as file:
        file["features"][0, 0] = np.nan
    (folder / "003.slide.h5").write_bytes((folder / "003.slide.h5").read_bytes()[:700])
    (folder / "005.slide.h5").unlink()
    code, out, _ = sgpmil("inspect", folder, "--labels", labels)
    assert code == 1
    facts = {
        line.split("│")[1].strip(): line.split("│")[2].strip()
        for line in out.splitlines()
        if line.count("│") == 3
    }
    assert facts["encoder"] == "uni_v1"
    assert facts["feature dimension"] == "4"
    assert facts["magnification"] == "20×"
    assert facts["patch side, level 0"] == "256 px"
    assert facts["labels without a slide"] == "1: 005.slide"
    assert facts["slides with NaN or infinity"] == "1: 001.slide"
    assert facts["empty slides"] == "1: empty"
    assert facts["unreadable slides"].startswith("1: 003.slide")
    assert "Not ready" in out


def test_inspect_says_when_all_is_well(sgpmil, slides):
    folder, labels = slides
    _, out, _ = sgpmil("inspect", folder, "--labels", labels)
    assert f"Ready to train: sgpmil train --features {folder} --labels {labels}" in out


def test_the_command_that_inspect_suggests_has_the_options_it_was_given(sgpmil, slides):
    folder, labels = slides
    text = labels.read_text()
    labels.write_text(
        "\n".join([text.splitlines()[0].replace("label", "my class"), *text.splitlines()[1:]])
    )
    spaced = folder.with_name("my bags")
    folder.rename(spaced)
    given = ["--labels", labels, "--label-column", "my class", "--slide-column", "slide_id"]
    _, out, _ = sgpmil("inspect", spaced, *given)
    (line,) = [line for line in out.splitlines() if line.startswith("Ready to train: ")]
    command = shlex.split(line.removeprefix("Ready to train: "))
    assert command[:6] == ["sgpmil", "train", "--features", str(spaced), "--labels", str(labels)]
    assert dict(zip(command[6::2], command[7::2], strict=True)) == {
        "--label-column": "my class",
        "--slide-column": "slide_id",
    }


def test_a_column_that_is_no_class_is_not_ready_and_not_trained_on(sgpmil, slides):
    folder, labels = slides
    header, *rows = labels.read_text().splitlines()
    place = header.split(",").index("label")
    cells = [row.split(",") for row in rows]
    for number, row in enumerate(cells):
        row[place] = str(12.5 * number)
    header = header.replace("label", "OS_months")
    labels.write_text("\n".join([header, *(",".join(row) for row in cells)]))
    given = ["--labels", labels, "--label-column", "OS_months"]
    code, out, _ = sgpmil("inspect", folder, *given)
    assert code == 1
    assert "Not ready" in out
    assert "look like times (survival)" in out
    code, _, error = sgpmil("train", "--features", folder, *given, "--run", folder.parent / "run")
    assert code != 0
    assert "look like times (survival)" in error
    assert not (folder.parent / "run").exists()


def test_numbers_with_and_without_a_point_are_one_class(sgpmil, slides):
    folder, labels = slides
    header, *rows = labels.read_text().splitlines()
    ones = ["1", "1.0", "1.00"]
    rows = [
        row.replace("tumor", ones[number % 3]).replace("normal", "0")
        for number, row in enumerate(rows)
    ]
    labels.write_text("\n".join([header, *rows]))
    _, out, _ = sgpmil("inspect", folder, "--labels", labels)
    assert "0: 10, 1: 10" in out


def test_inspect_does_not_call_one_class_ready(sgpmil, slides):
    folder, labels = slides
    labels.write_text(labels.read_text().replace("normal", "tumor"))
    code, out, _ = sgpmil("inspect", folder, "--labels", labels)
    assert code == 1
    assert "all slides are of one class" in out


def test_inspect_names_classes_with_fewer_patients_than_folds(sgpmil, slides, tiny):
    folder, labels = slides
    header, *rows = labels.read_text().splitlines()
    kept = [row for row in rows if "tumor" in row][:3] + [row for row in rows if "normal" in row]
    for row in set(rows) - set(kept):
        (folder / f"{row.split(',')[1]}.h5").unlink()
    labels.write_text("\n".join([header, *kept]))
    code, out, _ = sgpmil("inspect", folder, "--labels", labels)
    assert code == 1
    assert "Ready to train" not in out
    assert "Not ready for 5 folds" in out
    assert "class 'tumor' has 3 patients" in out
    command = shlex.split(out.split("make fewer folds (sgpmil ")[1].split(")")[0])
    assert command[-2:] == ["--set", "data.folds=3"]
    code, out, _ = sgpmil("inspect", folder, "--labels", labels, "--folds", 3)
    assert code == 0
    run = folder.parent / "run"
    assert sgpmil(*command, "--run", run, "--epochs", 1, "--device", "cpu", *tiny)[0] == 0


def test_the_columns_that_were_read_are_named(sgpmil, slides, tiny):
    folder, labels = slides
    labels.write_text(labels.read_text().replace("case_id", "remark").replace("label", "Diagnosis"))
    read = "labels 'Diagnosis', slides 'slide_id', patients each slide its own"
    assert read in sgpmil("inspect", folder, "--labels", labels)[1]
    given = ["--labels", labels, "--case-column", "remark"]
    read = "labels 'Diagnosis', slides 'slide_id', patients 'remark'"
    assert read in sgpmil("inspect", folder, *given)[1]
    run = ["--run", folder.parent / "run", "--epochs", 1, "--device", "cpu", "--fold", 0]
    code, out, _ = sgpmil("train", "--features", folder, *given, *run, *tiny)
    assert code == 0
    assert f"Columns of {labels}: {read}." in out
    assert "sgpmil, 1 fold" in out
    assert "1 folds" not in out


def test_pack_writes_a_store_with_labels(sgpmil, slides, tmp_path):
    folder, labels = slides
    store = tmp_path / "store"
    code, out, _ = sgpmil("pack", folder, store, "--labels", labels, "--classes", "tumor,normal")
    assert code == 0
    assert "Packed 20 slides" in out
    dataset = PackedStore.open(store).dataset()
    assert dataset.class_names == ("tumor", "normal")
    with h5py.File(folder / "004.slide.h5") as file:
        np.testing.assert_array_equal(
            dataset[dataset.index("004.slide")].features.numpy(), file["features"][:]
        )
    code, _, err = sgpmil("pack", folder, store)
    assert code == 2
    assert "overwrite" in err


def test_splits_writes_folds_that_check(sgpmil, slides, tmp_path):
    _, labels = slides
    out = tmp_path / "splits"
    assert sgpmil("splits", labels, "--out", out, "--folds", "4", "--seed", "3")[0] == 0
    table = read_labels(labels)
    folds = check_folds(read_splits(out, table), table)
    assert len(folds) == 4
    assert sorted(s for fold in folds for s in fold.test) == sorted(table.slide_ids)
    code, shown, _ = sgpmil("splits", labels, "--check", out)
    assert code == 0
    assert "No slide and no known patient is in two parts" in shown


@pytest.mark.filterwarnings("always::sgpmil.bags.splits.SharedCaseWarning")
def test_splits_refuses_a_leak(sgpmil, slides, tmp_path):
    _, labels = slides
    labels.write_text(labels.read_text().replace("case-18", "case-0"))
    bad = tmp_path / "splits_0.csv"
    slides = [f"{n:03d}.slide" for n in range(20)]
    rows = [",".join(r) for r in zip(slides[:10], slides[10:], strict=True)]
    bad.write_text("train,test\n" + "\n".join(rows) + "\n")
    code, _, err = sgpmil("splits", labels, "--check", bad)
    assert code == 2
    assert "case-0" in err
    code, _, err = sgpmil("splits", labels, "--check", bad, "--shared-case", "warn")
    assert code == 0
    assert err.startswith("Warning: 1 patient has slides in both 'train' and 'test'")


def test_splits_needs_to_know_where_to(sgpmil, slides):
    code, _, err = sgpmil("splits", slides[1])
    assert code == 2
    assert "--out" in err
