"""Train variants of models over folds and seeds, and write one table.

A variant is a model with settings. Every fold is scored on its validation and its test part, so
that a default can be chosen on the one and reported on the other. Finished jobs are kept in a
JSON-lines file: a second call goes on where the first stopped.
"""

import json
import multiprocessing
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags import BagDataset, Fold
from sgpmil.evaluation import PredictionTable, error_auroc, evaluate, predict
from sgpmil.training.fit import fit
from sgpmil.training.settings import TrainingSettings


@dataclass(frozen=True)
class Variant:
    """A model with settings, under a name."""

    name: str
    model: str = "sgpmil"
    settings: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One variant on one fold with one seed."""

    variant: Variant
    fold: Fold
    seed: int

    @property
    def key(self) -> str:
        """Return a name for the job."""
        return f"{self.variant.name}|{self.fold.name}|{self.seed}"


_DATA: dict[str, BagDataset] = {}


def _start(load: Any, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    _DATA["bags"] = load()


def _run(job: Job, training: TrainingSettings) -> dict[str, Any]:
    bags = _DATA["bags"]
    settings = replace(training, seed=job.seed, **job.variant.training)
    model = fit(
        bags.subset(job.fold.train),
        model=job.variant.model,
        model_settings=job.variant.settings,
        training=settings,
    )
    row: dict[str, Any] = {"variant": job.variant.name, "fold": job.fold.name, "seed": job.seed}
    for part in ("val", "test"):
        ids = job.fold.part(part)
        if not ids:
            continue
        table = predict(model, bags.subset(ids), class_names=bags.class_names)
        found = evaluate(table)
        row[part] = {
            **asdict(found.slide),
            **(asdict(found.instance) if found.instance else {}),
            "probs": table.probs.tolist(),
            "std": table.std.tolist(),
            "labels": table.labels.tolist(),
        }
    return row


def run_variants(
    load: Any,
    folds: Sequence[Fold],
    variants: Sequence[Variant],
    *,
    seeds: int,
    training: TrainingSettings,
    out: Path,
    jobs: int = 1,
) -> list[dict[str, Any]]:
    """Run every variant on every fold and seed; return a row a job."""
    out.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    if out.exists():
        for line in out.read_text().splitlines():
            row = json.loads(line)
            rows[f"{row['variant']}|{row['fold']}|{row['seed']}"] = row
    todo = [
        job
        for seed in range(seeds)
        for variant in variants
        for fold in folds
        if (job := Job(variant, fold, seed)).key not in rows
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start, (load, 1)) as pool, out.open("a") as file:
        futures = {pool.submit(_run, job, training): job for job in todo}
        for number, future in enumerate(as_completed(futures), start=1):
            row = future.result()
            rows[futures[future].key] = row
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(f"{number} of {len(todo)}: {futures[future].key}", flush=True)
    return list(rows.values())


def table(rows: Sequence[dict[str, Any]], variants: Sequence[Variant], part: str) -> str:
    """Write the means over folds and seeds as Markdown."""
    lines = [
        "| variant | bag AUC | worst AUC | balanced accuracy | ACE | instance AUC, attention "
        "| instance AUC, evidence | mean std | AUROC of std for errors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in variants:
        found = [row[part] for row in rows if row["variant"] == variant.name and part in row]
        if not found:
            continue
        std = [
            s[int(np.argmax(p))] for f in found for s, p in zip(f["std"], f["probs"], strict=True)
        ]
        cells = [
            _cell(found, "auc"),
            f"{np.nanmin([f['auc'] for f in found]):.3f}",
            *(
                _cell(found, m)
                for m in ("balanced_accuracy", "ace", "attention_auc", "evidence_auc")
            ),
            f"{np.mean(std):.3f}",
            f"{_error_auroc(found):.3f}",
        ]
        lines.append(f"| {variant.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: Sequence[dict[str, Any]], metric: str) -> str:
    values = [f.get(metric, np.nan) for f in found]
    if np.isnan(values).all():
        return "–"
    return f"{np.nanmean(values):.3f} ± {np.nanstd(values, ddof=1):.3f}"


def _error_auroc(found: Sequence[dict[str, Any]]) -> float:
    """Pool the slides of all folds and seeds: a single fold has hardly any errors."""
    from sgpmil.evaluation import Prediction

    predictions = [
        Prediction(f"{i}-{j}", "", label, np.array(p), np.array(s), 0.0, 0.0, 0.0)
        for i, f in enumerate(found)
        for j, (p, s, label) in enumerate(zip(f["probs"], f["std"], f["labels"], strict=True))
    ]
    names = tuple(str(c) for c in range(len(predictions[0].probs)))
    return error_auroc(PredictionTable(tuple(predictions), names), "std")
