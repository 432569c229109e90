"""The report page of a run folder."""

from l0tre.report.page import write_report

__all__ = ["write_report"]
