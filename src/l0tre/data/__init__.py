"""Images and labels: from files, folders, known data sets or arrays, fitted to the network's input."""

from l0tre.data.dataset import Dataset, from_arrays, select
from l0tre.data.load import load_data

__all__ = ["Dataset", "from_arrays", "load_data", "select"]
