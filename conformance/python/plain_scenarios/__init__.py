"""Scenarios over plain HTTP, run once per server: old and new endpoints, exact bodies, what the command line tool uses."""
