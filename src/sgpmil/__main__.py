"""``python -m sgpmil``."""

from sgpmil.cli.main import run

if __name__ == "__main__":
    run()
