"""``python -m l0tre`` is the command ``l0tre``."""

from l0tre.cli import command

if __name__ == "__main__":
    command()
