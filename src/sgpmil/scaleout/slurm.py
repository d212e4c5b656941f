"""Job arrays of Slurm, for clusters without Ray."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

_SAID_BY_SLURM = {"--resume": 0, "--overwrite": 0, "--cpus-per-job": 1, "--gpus-per-job": 1}
"""Options that a task does not need, or must not have, with the number of their values."""


def slurm_array(
    command: Sequence[str], folds: Sequence[str], *, run: Path, cpus: int = 1, gpus: int = 0
) -> str:
    """Return the script of a job array that trains the folds of a run side by side.

    Every task resumes its own fold of one run, so that a task that was requeued, or the whole array
    submitted again, goes on where it stopped.

    Args:
        command: Words of the command that trains the folds one after another.
        folds: Names of the folds that are to be trained.
        run: Folder of the run, which all machines see.
        cpus: CPU cores of a task.
        gpus: GPUs of a task.

    Example:
        >>> array = slurm_array(["sgpmil", "train", "--run", "a"], ["0", "1"], run=Path("a"))
        >>> print(array.splitlines()[-1])
        exec sgpmil train --run a --resume --fold "${folds[$SLURM_ARRAY_TASK_ID]}"
    """
    words = [*_without(command, _SAID_BY_SLURM), "--resume"]
    whole, task = shlex.join(words), shlex.join([*_without(words, {"--fold": 1}), "--fold"])
    # Slurm makes no folders: logs lie where the script is submitted.
    log = shlex.quote(f"sgpmil-{run.name}-%a.log")
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name=sgpmil-{shlex.quote(run.name)}",
        f"#SBATCH --array=0-{len(folds) - 1}",
        f"#SBATCH --cpus-per-task={cpus}",
        *([f"#SBATCH --gpus-per-task={gpus}"] if gpus else []),
        f"#SBATCH --output={log}",
        "#SBATCH --requeue",
        "#",
        "# Save it as job.sh. These lines train the folds, then write the table of their metrics:",
        "#   job=$(sbatch --parsable job.sh)",
        f"#   sbatch --dependency=afterok:$job --wrap {shlex.quote(whole)}",
        "# Submitted again, it goes on where it stopped.",
        f"folds=({' '.join(map(shlex.quote, folds))})",
        f'exec {task} "${{folds[$SLURM_ARRAY_TASK_ID]}}"',
    ]
    return "\n".join(lines) + "\n"


def _without(command: Sequence[str], options: Mapping[str, int]) -> list[str]:
    kept, skipped = [], 0
    for word in command:
        name, _, value = word.replace("_", "-").partition("=")
        if skipped:
            skipped -= 1
        elif name in options:
            skipped = 0 if value else options[name]
        else:
            kept.append(word)
    return kept
