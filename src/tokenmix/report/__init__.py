"""Figures and pages: what a model mixes, and how models compare.

>>> from tokenmix.report import write_inspection, write_report
>>> write_report("runs/compare")                                        # comparison.json → report.html
>>> write_inspection("runs/scan", "inspect", inputs="jump twice")       # a run → index.html with the papers' figures
"""

from tokenmix.report.comparison import write_report
from tokenmix.report.figure import Figure
from tokenmix.report.inspection import write_inspection

__all__ = ["Figure", "write_inspection", "write_report"]
