"""Measurements that are compared as ratios inside one run; ``make bench``."""
