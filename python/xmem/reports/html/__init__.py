"""A self-contained page that shows where the memory of a job goes, to click through or to print."""

from xmem.reports.html.page import page_of, write_page

__all__ = ["page_of", "write_page"]
