import sys

# Without numba the classes of Brendel and Bethge's optimiser stay plain Python, which on the tiny inputs here is faster
# than compiling them for a minute. It has to be hidden before foolbox is imported.
sys.modules.setdefault("numba", None)  # type: ignore[arg-type]
