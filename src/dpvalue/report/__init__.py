"""The report: one page of HTML that needs nothing else, made from an output folder alone."""

from dpvalue.report.page import report_page

__all__ = ["report_page"]
