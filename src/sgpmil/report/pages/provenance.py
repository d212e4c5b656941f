"""Provenance of a run: settings, environment, and the commands that reproduce it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sgpmil.bags.target import Target
from sgpmil.errors import SettingsError
from sgpmil.models.checkpoint import read_shares
from sgpmil.models.prevalence import prevalence_note
from sgpmil.models.registry import resolve_settings
from sgpmil.report.pages.blocks import Block, Commands, Prose, Section, Table
from sgpmil.report.pages.texts import setting_text
from sgpmil.runs.description import earlier_prevalence
from sgpmil.runs.material import RunMaterial
from sgpmil.runs.run import Run
from sgpmil.training.settings import default_training

_UNKNOWN = Prose(
    "These predictions are not a run of sgpmil, so it is not known how the model was made.", "note"
)


def settings_section(material: RunMaterial) -> Section:
    """List the settings of model and training."""
    origin = material.provenance
    if material.run is not None:
        settings = material.run.settings
    else:
        settings = {"model_settings": {} if origin is None else origin.settings.get("model", {})}
    if not any(settings.values()):
        return Section("settings", "Settings", (_UNKNOWN,))
    usual_model, usual_training = _usual(material.model)
    blocks: list[Block] = [
        Prose(f"Settings that differ from those {material.model} comes with are marked *.")
    ]
    for title, own, usual in (
        (f"Model: {material.model}", settings.get("model_settings", {}), usual_model),
        ("Training", settings.get("training", {}), usual_training),
    ):
        rows = tuple(
            (f"{name}{' *' if _differs(name, value, usual) else ''}", setting_text(value))
            for name, value in own.items()
        )
        if not rows:
            continue
        blocks.append(Table(("Setting", "Value"), rows, title, num_words=2, is_long=True))
    return Section("settings", "Settings", tuple(blocks))


def prevalence_sentences(material: RunMaterial) -> tuple[str, ...]:
    """Say which class shares the probabilities are for, where the models know it."""
    found = [read_shares(fold.checkpoint) for fold in material.folds if fold.checkpoint is not None]
    known = [shares.expected for shares in found if shares is not None]
    if not known or len(known) < len(material.folds):
        return ()
    mean = [sum(part) / len(known) for part in zip(*known, strict=True)]
    notes = prevalence_note(mean, material.target)
    if max(max(part) - min(part) for part in zip(*known, strict=True)) < 5e-4:
        return notes
    return (*notes, "This is the mean over folds: each has the shares of its own training slides.")


def environment_section(material: RunMaterial) -> Section:
    """List the versions, the commit and the fingerprints of the data."""
    run, origin = material.run, material.provenance
    if run is None and origin is not None:
        made = (
            ("Predicted", origin.created or "–"),
            ("Model", origin.source or "–"),
            ("sgpmil", origin.version or "–"),
        )
        table = Table(("", ""), made, "What the predictions were made with.", num_words=2)
        return Section("environment", "Environment", (table,))
    if run is None:
        return Section("environment", "Environment", (_UNKNOWN,))
    found = run.provenance
    rows = [
        ("Trained", found.created or "–"),
        ("Python", found.python or "–"),
        *((name, str(version)) for name, version in found.versions.items()),
        ("Git commit", found.git_commit or "not known"),
        *(
            (f"Data: {name}", str(place))
            for name, place in run.data.items()
            if isinstance(place, str | Path)
        ),
        ("Fingerprint of the data", found.data_fingerprint or "–"),
        ("Fingerprint of the splits", found.splits_fingerprint or "–"),
    ]
    table = Table(("", ""), tuple(rows), "What the run was made with.", num_words=2)
    return Section("environment", "Environment", (table,))


def reproduction_section(material: RunMaterial, report_command: str) -> Section:
    """Return the commands that make the run and this page again."""
    lines = (f"sgpmil evaluate {shlex.quote(str(material.path))}", report_command)
    origin = tuple(Prose(sentence) for sentence in origin_sentences(material))
    if material.run is None:
        return Section("reproduction", "How to reproduce", (*origin, Commands(lines)))
    words = Prose(
        "The splits lie in the run. The same versions on the same kind of machine give the same "
        "numbers; other versions or processors round differently. The commit above is the code."
    )
    again = train_command(material.run, material.target)
    return Section("reproduction", "How to reproduce", (*origin, words, Commands((again, *lines))))


def origin_sentences(material: RunMaterial) -> tuple[str, ...]:
    """Say what predicted the slides and how many it learned from, where the predictions know it."""
    found = [fold.test.provenance for fold in material.folds]
    joined = material.provenance
    if joined is None or not joined.line:
        return ()
    sentence = f"Predicted by {joined.line}."
    folds = [one for one in found if one is not None and len(one.folds) == 1]
    if len(folds) < 2 or len(folds) < len(found):
        return (sentence,)
    train, validation = ([len(getattr(f, part)) for f in folds] for part in ("train", "validation"))
    if not any(train):
        return (sentence,)
    return (sentence, f"Slides a fold: {_span(train)} training, {_span(validation)} validation.")


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low}" if low == high else f"{low}–{high}"


def train_command(run: Run, target: Target) -> str:
    """Return the command that trains the run again, into a folder of its own."""
    settings, data = run.settings, run.data
    words = ["sgpmil", "train", "--features", str(data.get("folder", "FEATURES"))]
    if data.get("labels") or "folder" not in data:
        words += ["--labels", str(data.get("labels", "LABELS"))]
    for name in ("slide_column", "label_column", "case_column", "slide_table"):
        if name in data:
            words += [f"--{name.replace('_', '-')}", str(data[name])]
    words += ["--skip-missing"] if data.get("on_mismatch") == "skip" else []
    words += ["--skip-bad"] if data.get("on_bad") == "skip" else []
    words += ["--splits", str(run.splits_path)]
    words += ["--run", f"{run.path}-again", "--model", run.model]
    words += ["--order" if target.kind == "ordinal" else "--classes", ",".join(target.names)]
    usual_model, usual_training = _usual(run.model)
    own_training = dict(settings.get("training", {}))
    own_training.setdefault("prevalence", earlier_prevalence(own_training))
    for name, value in settings.get("model_settings", {}).items():
        if _differs(name, value, usual_model):
            words += ["--set", f"model.settings.{name}={_as_yaml(value)}"]
    changed = [n for n, value in own_training.items() if _differs(n, value, usual_training)]
    if {"select", "patience"} & set(changed) and "validation" not in changed:
        changed.append("validation")  # which else follows the others
    if {"bags_per_step", "accumulate_steps"} & set(changed) and "learning_rate" not in changed:
        changed.append("learning_rate")  # likewise
    for name in changed:
        words += ["--set", f"training.{name}={_as_yaml(own_training[name])}"]
    return shlex.join(words)


def _usual(model: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        own = vars(resolve_settings(model, {}))
    except SettingsError:  # a model of the user's own
        own = {}
    return own, asdict(default_training(model))


def _differs(name: str, value: Any, usual: Mapping[str, Any]) -> bool:
    if name not in usual:
        return True
    # JSON has no tuples, and a kernel may be an object that is written as text.
    default = usual[name]
    plain = list(default) if isinstance(default, tuple) else default
    return bool(value != plain and value != str(default))


def _as_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
