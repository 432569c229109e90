"""A live page: the pages of ``report`` fed from run folders while other processes write them."""

from l0tre.serve.app import make_app
from l0tre.serve.runs import Runs
from l0tre.serve.server import Address, background, serve

__all__ = ["Address", "Runs", "background", "make_app", "serve"]
