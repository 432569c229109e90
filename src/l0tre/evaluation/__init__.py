"""An evaluation: the problem, the ledger of bounds, and the driver that lets engines improve them."""
