"""SGPMIL and ABMIL on nuclei of colon histology, and the sampling schemes and likelihoods.

    python benchmarks/colon.py --data DATA/colon --table models
    python benchmarks/colon.py --data DATA/colon --table sampling

DATA/colon holds features/*.h5 in TRIDENT's layout with instance labels, labels.csv and splits/.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sgpmil.bags.target import ClassTarget
from sgpmil.evaluation import Prediction, PredictionTable, error_auroc
from sgpmil.experiments.model_study import colon_bags
from sgpmil.experiments.model_table import spread_of
from sgpmil.experiments.study import StudySet, Variant, plan_jobs, run_jobs
from sgpmil.gp import SAMPLING_SCHEMES
from sgpmil.models.likelihood import LIKELIHOODS
from sgpmil.training.settings import TrainingSettings

PUBLISHED = {"epochs": 20, "learning_rate": 6e-4, "bags_per_step": 1}
TABLES = {
    "models": [
        Variant("sgpmil"),
        Variant("abmil", "abmil"),
        Variant("abmil, learning rate 1e-3", "abmil", training={"learning_rate": 1e-3}),
        Variant("sgpmil, paper", settings={"preset": "paper"}, training=PUBLISHED),
        Variant("sgpmil, released", settings={"preset": "released"}, training=PUBLISHED),
        Variant("agp", "agp"),
    ],
    "sampling": [
        Variant(f"{s}, {k}", settings={"preset": "points", "sampling": s, "likelihood": k})
        for s in SAMPLING_SCHEMES
        for k in LIKELIHOODS
    ],
}


def table(results: Sequence[dict[str, Any]], variants: Sequence[Variant], part: str) -> str:
    """Write the means over folds and seeds as Markdown."""
    lines = [
        "| variant | bag AUC | worst AUC | balanced accuracy | ACE | instance AUC, attention "
        "| instance AUC, evidence | mean std | AUROC of std for errors |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for variant in variants:
        found = [r[part] for r in results if r["variant"] == variant.name and part in r]
        if not found:
            continue
        std = [
            s[int(np.argmax(p))] for f in found for s, p in zip(f["std"], f["probs"], strict=True)
        ]
        cells = [
            _cell(found, "auc"),
            f"{spread_of(f['metrics']['auc'] for f in found).worst:.3f}",
            *(
                _cell(found, metric)
                for metric in ("balanced_accuracy", "ace", "attention_auc", "evidence_auc")
            ),
            f"{np.mean(std):.3f}",
            f"{_error_auroc(found):.3f}",
        ]
        lines.append(f"| {variant.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: Sequence[dict[str, Any]], metric: str) -> str:
    spread = spread_of(f["metrics"].get(metric) for f in found)
    return f"{spread.mean:.3f} ± {spread.sd:.3f}" if spread.count else "–"


def _error_auroc(found: Sequence[dict[str, Any]]) -> float:
    """Pool the slides of all folds and seeds: a single fold has hardly any errors."""
    predictions = [
        Prediction(f"{i}-{j}", "", label, np.array(p), np.array(s), 0.0, 0.0, 0.0)
        for i, f in enumerate(found)
        for j, (p, s, label) in enumerate(zip(f["probs"], f["std"], f["labels"], strict=True))
    ]
    names = tuple(str(c) for c in range(len(predictions[0].probs)))
    return error_auroc(PredictionTable(tuple(predictions), ClassTarget(names)), "std")


def main() -> None:
    """Run a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--table", choices=list(TABLES), default="models")
    parser.add_argument("--only", help="Only variants whose name starts with this.", default="")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmarks"))
    options = parser.parse_args()
    variants = [v for v in TABLES[options.table] if v.name.startswith(options.only)]
    jobs = plan_jobs(
        StudySet("colon", partial(colon_bags, options.data)),
        variants,
        seeds=options.seeds,
        # One training for all, not each model's own: the variants differ in what their names say.
        training=TrainingSettings(),
        device=options.device,
    )
    out = options.out / f"colon-{options.table}"
    results = run_jobs(jobs, out, processes=options.jobs)
    for part in ("val", "test"):
        print(f"\n{part}, {options.seeds} seeds\n{table(results, variants, part)}")


if __name__ == "__main__":
    main()
