"""Options in messages: Python's names in the library, flags in the shell."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sgpmil
from sgpmil.cli.main import COMMANDS, _load
from sgpmil.options import as_flags

SOURCE = Path(sgpmil.__file__).parent
MESSAGES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    # The viewer is started by a command and answers to a browser.
    if not {"cli", "viewer"} & set(path.parts) and path.name != "options.py"
]

PYTHON_ONLY = {"`slide_ids`"}
"""Arguments of functions that no command calls."""


def texts(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the texts of a module but for docstrings, and whether they are of an error.

    A text of several parts is yielded whole.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    within = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    raised = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in docstrings or id(node) in within:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, id(node) in raised
        elif isinstance(node, ast.JoinedStr):
            text = "".join(p.value if isinstance(p, ast.Constant) else "…" for p in node.values)
            yield text, id(node) in raised


def flags(command: Any) -> set[str]:
    """Return the flags of a command and of the commands in it."""
    own = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    return own.union(*(flags(one) for one in getattr(command, "commands", {}).values()))


def test_no_text_of_the_library_names_a_flag():
    known = set().union(*(flags(_load(name)) for name in COMMANDS))
    num_options = 0
    for path in MESSAGES:
        for text, is_error in texts(path):
            if re.fullmatch(r"--[a-z-]*…?", text) or re.search(r"\bsgpmil [a-z]+\b.* --", text):
                continue  # a part of a command, or a whole one
            if re.match(r"#( |SBATCH)", text):
                continue  # a line of a script
            before = r"\w-" if is_error else r"\w`-"  # Markdown may name a flag in backticks
            assert not re.search(rf"(?<![{before}])--[a-z]", text), text
            for option in re.findall(r"`[a-z]\w*(?:=[^`]+)?`", text) if is_error else ():
                num_options += 1
                assert option in PYTHON_ONLY or as_flags(option).split()[0] in known, text
    assert num_options > 50


@pytest.mark.parametrize(
    ("option", "flag"),
    [
        ("`overwrite=True`", "--overwrite"),
        ("`folds_at_once=1`", "--folds-at-once 1"),
        ('`on_bad="skip"`', "--skip-bad"),
        ('`on_shared_case="warn"`', "--shared-case warn"),
        ('`conformal="aps"`', "--conformal aps"),
        ("`slide_list`", "--list"),
        ("`a b`", "`a b`"),
    ],
)
def test_a_message_names_flags_in_the_shell(option, flag):
    assert as_flags(f"Give {option}.") == f"Give {flag}."
