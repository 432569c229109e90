"""Pages that people look at: reports of runs, one file each."""

from l0tre.report.evaluation import Run, evaluation_page
from l0tre.report.page import page_html, save_page
from l0tre.report.run import read_run, report_writes, write_report

__all__ = ["Run", "evaluation_page", "page_html", "read_run", "report_writes", "save_page", "write_report"]
