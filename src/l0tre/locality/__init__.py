"""Which part of a network is local, what changed pixels reach there, and what several of them do together."""
