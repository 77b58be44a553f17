"""The report: what is installed, cached and compatible, why not, and what to do about it."""
