"""Every Python block of the documentation runs, in a folder with features, labels and splits."""

import re
from pathlib import Path

import numpy as np
import pytest

from sgpmil.bags import make_kfold, read_labels, write_splits
from sgpmil.models import registry

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.relative_to(REPOSITORY)}:{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.fixture
def folder(tmp_path, monkeypatch, rng):
    (tmp_path / "features").mkdir()
    lines = ["slide_id,label"]
    for number in range(20):
        x = rng.normal(size=(7, 6)).astype(np.float32) + 2 * (number % 2)
        np.save(tmp_path / "features" / f"slide-{number:02d}.npy", x)
        lines.append(f"slide-{number:02d},{'tumor' if number % 2 else 'normal'}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    write_splits(make_kfold(read_labels(tmp_path / "labels.csv"), num_folds=2), tmp_path / "splits")
    monkeypatch.chdir(tmp_path)
    known = registry.list_models()
    yield tmp_path
    for name in set(registry._ENTRIES) - set(known):  # blocks register models
        del registry._ENTRIES[name]


@pytest.mark.slow
@pytest.mark.parametrize("code", BLOCKS)
def test_block_runs(folder, code, capsys):
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})  # noqa: S102
    assert "nan" not in capsys.readouterr().out


def test_there_are_blocks():
    assert len(BLOCKS) >= 4


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
