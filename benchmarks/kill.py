"""What do commands leave that are killed at any moment, and does the next run mend it?

    python benchmarks/kill.py                        # 102 kills over six commands
    python benchmarks/kill.py --kills 5 --only train pack

Each command is killed with SIGKILL at a seeded moment and run again (`tests/faults/kills.py`). The
files must then be those of a run that nobody killed, byte for byte but for the time of writing,
and nothing temporary may be left. The exit code is 1 where that fails.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.commands import COMMANDS
from tests.faults.kills import KillStand


def main() -> None:
    """Run the kills and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=17, help="kills of each command")
    parser.add_argument("--first", type=int, default=0, help="seed of the first kill")
    parser.add_argument("--only", nargs="+", default=[one.name for one in COMMANDS])
    given = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    faults = 0
    print("| command | runs | killed | as if undisturbed | faults |\n|---|---:|---:|---:|---:|")
    for command in COMMANDS:
        if command.name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            stand = KillStand(command, Path(folder))
            seeds = range(given.first, given.first + given.kills)
            outcomes = [stand.kill(seed) for seed in seeds]
        wrong = [outcome for outcome in outcomes if outcome.fault]
        faults += len(wrong)
        killed = sum(outcome.was_killed for outcome in outcomes)
        cells = (command.name, len(outcomes), killed, len(outcomes) - len(wrong), len(wrong))
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
        for outcome in wrong:
            print(f"{outcome.command}, seed {outcome.seed}, {outcome.moment}: {outcome.fault}")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
