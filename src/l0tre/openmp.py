"""How torch's threads wait for each other; decided when torch is loaded, so this comes before it.

By default they spin: on a machine that has other work, too, small operations then take tens of times longer.
"""

import os
import sys

__all__ = ["TORCH_SPINS"]

# Where torch came first and the environment said nothing, it is too late, see threads.py.
TORCH_SPINS = "torch" in sys.modules and os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE"
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
