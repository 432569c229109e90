"""The report page of a run folder."""

from l0tre.report.page import report_writes, write_report

__all__ = ["report_writes", "write_report"]
