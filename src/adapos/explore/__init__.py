"""Positions to be seen: what attention does with a text, in an app, on one page and in figures."""
