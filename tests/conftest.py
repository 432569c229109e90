"""One thread a process: several test processes with two threads each get in each other's way."""

import torch

torch.set_num_threads(1)
