"""What do damaged and hostile files do to the package?

    python benchmarks/fuzz.py                      # 10,000 inputs over all formats
    python benchmarks/fuzz.py --inputs 500 --only "bag trident.h5" "recipe"

An input is a good file that a seeded mutator changed (`tests/faults/fuzzing.py`). Printed are, for
each format, how many were read, refused with one sentence, and how many ended in a traceback, a
crash or a hang, took more than 2 GiB, or wrote elsewhere. The exit code is 1 where any did.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.faults.fuzzing import FORMATS, run_inputs, summary, write_templates


def main() -> None:
    """Run the inputs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first input")
    parser.add_argument("--only", nargs="+", default=[one.name for one in FORMATS])
    given = parser.parse_args()
    chosen = [one for one in FORMATS if one.name in given.only]
    each = -(-given.inputs // len(chosen))
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        write_templates(work, chosen)
        inputs = ((one.name, given.first + seed) for one in chosen for seed in range(each))
        outcomes = []
        for outcome in run_inputs(work, inputs):
            outcomes.append(outcome)
            if outcome.is_fault:
                print(f"{outcome.format}, seed {outcome.seed}: {outcome.kind}\n{outcome.text}")
    kinds = ("read", "refused", "traceback", "crash", "hang", "memory", "outside")
    print("| format | inputs | " + " | ".join(kinds) + " |")
    print("|---|" + "---:|" * (1 + len(kinds)))
    for name, counts in summary(outcomes).items():
        cells = [name, counts.total(), *(counts[kind] for kind in kinds)]
        print("| " + " | ".join(map(str, cells)) + " |")
    faults = sum(outcome.is_fault for outcome in outcomes)
    print(f"{len(outcomes)} inputs, {faults} faults")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
