"""Selects the days of a run and pins their files."""
