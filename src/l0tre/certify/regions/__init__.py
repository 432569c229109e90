"""Regions of inputs that search nodes stand for: cells of groups, boxes of values."""
