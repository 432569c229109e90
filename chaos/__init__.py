"""Random accidents to run folders: kills, flipped bits, full disks, two processes at once. See ``python -m chaos``."""
