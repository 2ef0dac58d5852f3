"""Lends one Chromium to the tests of a module."""

from chromium import chromium

__all__ = ["chromium"]
