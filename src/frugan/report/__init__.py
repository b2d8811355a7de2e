"""What people look at: sheets of samples, and the line on the console."""

from frugan.report.progress_line import LiveLine, describe
from frugan.report.sheets import write_sheet

__all__ = ["LiveLine", "describe", "write_sheet"]
