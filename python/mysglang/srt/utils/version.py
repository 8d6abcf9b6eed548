"""The version, in the one place where code reads it."""

__version__ = "0.1.0"
