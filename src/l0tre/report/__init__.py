"""Pages that people look at: reports of runs, one file each."""

from l0tre.report.comparison import runs_page, shared_inputs
from l0tre.report.evaluation import PageSource, evaluation_page
from l0tre.report.page import code, page_data, page_html, save_page, style
from l0tre.report.run import read_run, report_writes, write_report

__all__ = [
    "PageSource",
    "code",
    "evaluation_page",
    "page_data",
    "page_html",
    "read_run",
    "report_writes",
    "runs_page",
    "save_page",
    "shared_inputs",
    "style",
    "write_report",
]
