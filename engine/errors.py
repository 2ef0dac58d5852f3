"""The errors Pagelens raises on purpose; each message names the value, the limit and the remedy.

Library code raises these and nothing else for bad input. Only the command line and the servers turn them into
messages for people.
"""


class PagelensError(ValueError):
    """Base of every deliberate error, so that one `except` serves a command line or a server."""


class ConfigError(PagelensError):
    """An engine option is out of range, or needs machinery that this version does not have."""


class RequestError(PagelensError):
    """A request cannot be served as asked; the engine goes on serving the others."""


class ModelError(PagelensError):
    """A model folder is missing, broken, or of an architecture that the engine cannot run."""


class TraceError(PagelensError):
    """A `.kvtrace` file is truncated or not a trace."""
