"""The command line: one verb for each thing a study can do."""

from safemargin.cli.app import main

__all__ = ["main"]
