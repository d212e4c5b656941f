import hashlib
import subprocess
import sys

import pytest
import torch

from sgpmil.slides.encoders.fingerprint import file_hash, fingerprint

WEIGHTS = {"b": torch.arange(6.0).reshape(2, 3), "a": torch.tensor(2, dtype=torch.int64)}


def test_what_is_hashed():
    digest = hashlib.sha256(b"recipe")
    digest.update(b"\na torch.int64 ()\n" + (2).to_bytes(8, "little"))
    digest.update(b"\nb torch.float32 (2, 3)\n" + WEIGHTS["b"].numpy().tobytes())
    assert fingerprint(WEIGHTS, "recipe") == digest.hexdigest()


def test_order_and_memory_layout_do_not_matter():
    other = {"a": WEIGHTS["a"], "b": WEIGHTS["b"].t().contiguous().t()}
    assert fingerprint(other, "") == fingerprint(WEIGHTS, "")


@pytest.mark.parametrize(
    "other",
    [
        {**WEIGHTS, "b": WEIGHTS["b"] + torch.tensor([0, 0, 1e-6])},
        {**WEIGHTS, "b": WEIGHTS["b"].reshape(3, 2)},
        {**WEIGHTS, "b": WEIGHTS["b"].bfloat16()},
        {"a": WEIGHTS["a"], "c": WEIGHTS["b"]},
        {"b": WEIGHTS["b"]},
    ],
    ids=["a bit", "shape", "type", "name", "missing"],
)
def test_any_change_shows(other):
    assert fingerprint(other, "") != fingerprint(WEIGHTS, "")
    assert fingerprint(WEIGHTS, "other") != fingerprint(WEIGHTS, "")


def test_same_in_another_process():
    code = (
        "import torch; from sgpmil.slides.encoders.fingerprint import fingerprint;"
        "print(fingerprint({'b': torch.arange(6.).reshape(2, 3), 'a': torch.tensor(2)}, 'r'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(WEIGHTS, "r")


def test_of_a_file(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_hash(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
