"""The live page and the command line."""
