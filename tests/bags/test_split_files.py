import json
import os

import pytest

from sgpmil.bags.labels import LabelTable
from sgpmil.bags.split_files import read_splits, write_splits
from sgpmil.bags.splits import Fold, make_kfold
from sgpmil.errors import SplitError

TABLE = LabelTable(("007", "b", "c", "d"), ("p1", "p1", "p2", "p3"), ("0", "0", "1", "1"))
FOLD = Fold("0", train=("007", "b"), val=("c",), test=("d",))


def _write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "text",
    [
        "train,val,test\n007,c,d\nb,,\n",
        ",train,val,test\n0,007,c,d\n1,b,,\n",
        "train,val,test\n007.svs,c,d\nb\n",
    ],
)
def test_clam_headers_and_ragged_rows(tmp_path, text):
    assert read_splits(_write(tmp_path / "splits_0.csv", text), TABLE) == (FOLD,)


def test_clam_folder_is_sorted_by_number(tmp_path):
    for k in (10, 9, 0):
        _write(tmp_path / f"splits_{k}.csv", f"train,val,test\na{k},b,c\n")
        _write(tmp_path / f"splits_{k}_descriptor.csv", ",train,val,test\nnormal,1,1,1\n")
    folds = read_splits(tmp_path, TABLE)
    assert [(fold.name, fold.train) for fold in folds] == [
        ("0", ("a0",)),
        ("9", ("a9",)),
        ("10", ("a10",)),
    ]


BOOL = (
    ",train,val,test\n007,True,False,False\nb,True,False,False\n"
    "c,False,True,False\nd,False,False,True\n"
)


def test_clam_boolean_variant_alone(tmp_path):
    _write(tmp_path / "splits_0_bool.csv", BOOL)
    assert read_splits(tmp_path, TABLE) == (FOLD,)
    assert read_splits(tmp_path / "splits_0_bool.csv", TABLE) == (FOLD,)


def test_clam_boolean_variant_is_not_read_beside_the_plain_one(tmp_path):
    _write(tmp_path / "splits_0_bool.csv", BOOL)
    _write(tmp_path / "splits_0.csv", "train,val,test\nx,y,z\n")
    assert read_splits(tmp_path, TABLE) == (Fold("0", ("x",), ("y",), ("z",)),)


def test_patho_bench(tmp_path):
    text = (
        "case_id\tslide_id\tBRAF\tfold_1\tfold_0\np1\t007.svs\t0\ttest\ttrain\n"
        "p2\tc\t1\ttrain\ttest\np3\td\t1\t\ttrain\n"
    )
    folds = read_splits(_write(tmp_path / "k=all.tsv", text), TABLE)
    assert folds == (Fold("0", ("007", "d"), (), ("c",)), Fold("1", ("c",), (), ("007",)))
    assert read_splits(tmp_path, TABLE) == folds


def test_torchmil(tmp_path):
    text = "bag_name,split\n007,train\nb,train\nc,val\nd,test\n"
    assert read_splits(_write(tmp_path / "splits.csv", text), TABLE) == (FOLD,)
    assert read_splits(tmp_path, TABLE) == (FOLD,)


def test_stamp_patients_become_slides(tmp_path):
    splits = [{"train_patients": ["p1"], "test_patients": ["p3", "p2"]}]
    path = _write(tmp_path / "splits.json", json.dumps({"splits": splits}))
    assert read_splits(path, TABLE) == (Fold("0", ("007", "b"), (), ("d", "c")),)


def test_stamp_patients_need_a_table(tmp_path):
    path = tmp_path / "splits.json"
    path.write_text('{"splits": [{"train_patients": ["a"], "test_patients": ["b"]}]}')
    with pytest.raises(SplitError, match="Give the table of labels"):
        read_splits(path)


def test_stamp_unknown_patients(tmp_path):
    splits = [{"train_patients": ["p1", "p8"], "test_patients": ["p9"]}]
    path = _write(tmp_path / "splits.json", json.dumps({"splits": splits}))
    with pytest.raises(SplitError, match="got 2 it does not have: 'p8', 'p9'"):
        read_splits(path, TABLE)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"splits": [{}]}',
        '{"splits": [{"train_patients": "p1", "test_patients": []}]}',
    ],
)
def test_damaged_stamp_file(tmp_path, text):
    with pytest.raises(SplitError, match=r"train_patients.*splits\.json"):
        read_splits(_write(tmp_path / "splits.json", text), TABLE)


def test_unknown_part(tmp_path):
    path = _write(tmp_path / "splits.csv", "bag_name,split\na,holdout\n")
    with pytest.raises(SplitError, match="'holdout' for 'a'"):
        read_splits(path, TABLE)


def test_table_without_slides(tmp_path):
    with pytest.raises(SplitError, match="column of slides"):
        read_splits(_write(tmp_path / "a.csv", "x,split\na,train\n"), TABLE)


def test_other_files(tmp_path):
    with pytest.raises(SplitError, match="slide_id, label"):
        read_splits(_write(tmp_path / "labels.csv", "slide_id,label\na,1\n"), TABLE)
    with pytest.raises(SplitError, match=r"found 'labels.csv'"):
        read_splits(tmp_path, TABLE)
    with pytest.raises(SplitError, match="no such file"):
        read_splits(tmp_path / "absent.csv", TABLE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SplitError, match="an empty folder"):
        read_splits(tmp_path / "empty", TABLE)


def test_written_folds_read_back(tmp_path):
    ids = tuple(f"{i:03d}" for i in range(60))
    table = LabelTable(ids, ids, ("0", "1") * 30)
    folds = make_kfold(table, num_folds=12, val_fraction=0.1)
    write_splits(folds, tmp_path / "new" / "folder")
    assert read_splits(tmp_path / "new" / "folder", table) == folds
    assert (tmp_path / "new" / "folder" / "splits_0.csv").read_text().startswith("train,val,test\n")


def test_existing_splits_are_kept_unless_told(tmp_path):
    write_splits([FOLD, FOLD, FOLD], tmp_path)
    (tmp_path / "labels.csv").write_text("mine")
    with pytest.raises(SplitError, match="got 3 split files"):
        write_splits([FOLD], tmp_path)
    write_splits([FOLD], tmp_path, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["labels.csv", "splits_0.csv"]


def test_full_disk(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SplitError, match="No space left"):
        write_splits([FOLD], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_folder_is_a_file(tmp_path):
    with pytest.raises(SplitError, match="can be written"):
        write_splits([FOLD], _write(tmp_path / "a", "x"))


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("camelyon16", (215, 54, 129)),
        ("tcga_nsclc", (607, 141, 258)),
        ("bracs", (395, 65, 87)),
        ("panda", (8494, 530, 1592)),
    ],
)
def test_published_splits(shared_data, name, sizes):
    fold = read_splits(shared_data / "public_splits" / name, TABLE)[0]
    assert (len(fold.train), len(fold.val), len(fold.test)) == sizes
