"""``python -m sgpmil``, and the command `sgpmil`."""


def run() -> None:
    """Run the command line."""
    # Not above: every process that the program starts imports this file again.
    from sgpmil.cli.main import run

    run()


if __name__ == "__main__":
    run()
