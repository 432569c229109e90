"""Drawing and writing: figures with their numbers beside them, tables as CSV and markdown."""
