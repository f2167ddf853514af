"""The shell of every page, its looks and its script: package data, read by `tokenmix.report.page`."""
