"""`.kvtrace`: a recorded run, one JSON object a line: a `LogHeader`, then the events. `.gz` compresses it."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from .errors import TraceError
from .event_log import EventLog, LogHeader
from .events import EVENT_TYPES, SCHEMA_VERSION, AnyEvent, Event, Phase, UnknownEvent
from .memory_map import MemoryMap

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(AnyEvent)
_header_decoder = msgspec.json.Decoder(LogHeader)


def encode_event(event: Event) -> bytes:
    """One event as it stands on the wire and in a file (no newline)."""
    return _encoder.encode(event)


def recording(log: EventLog) -> bytes:
    """The events that a log holds now, as the content of a `.kvtrace`."""
    base, events = log.held()
    header = msgspec.structs.replace(log.header, base=base if base.seq >= 0 else None)
    return b"".join([_encoder.encode(header) + b"\n", *(encode_event(event) + b"\n" for event in events)])


def decode_event(line: bytes) -> Event:
    """The event on one line; a kind that this version does not know becomes an `UnknownEvent`.

    Raises msgspec.DecodeError if the line is no event at all.
    """
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(line)
        if not isinstance(fields, dict) or fields.get("kind") in EVENT_TYPES:
            raise
        return UnknownEvent(
            seq=fields["seq"],
            step=fields["step"],
            phase=Phase(fields["phase"]),
            t=fields["t"],
            why=fields.get("why", ""),
            cause=fields.get("cause", -1),
            name=fields["kind"],
        )


def _open(path: Path, mode: str) -> IO[bytes]:
    return gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode)  # type: ignore[return-value]


class TraceWriter:
    """Follows a log into a file, from the oldest event held on: a context manager; `drain()` it after every step."""

    def __init__(self, path: str | Path, log: EventLog) -> None:
        self._log = log
        self._file = _open(Path(path), "wb")
        start, _ = log.held()
        self._cursor = start.seq + 1
        base = start if self._cursor else None
        self._file.write(_encoder.encode(msgspec.structs.replace(log.header, base=base)) + b"\n")

    def drain(self) -> int:
        """Write the events since the last call; return how many.

        Raises TraceError if the log's ring has dropped some of them meanwhile.
        """
        events = self._log.read(self._cursor)
        if events is None:
            raise TraceError(
                f"the log no longer holds event {self._cursor}, only {self._log.oldest_seq} and later: "
                "drain the recording more often, or give the EventLog a larger capacity"
            )
        self._file.writelines(encode_event(event) + b"\n" for event in events)
        self._cursor += len(events)
        return len(events)

    def __enter__(self) -> "TraceWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.drain()
        self._file.close()


class Trace:
    """A recorded run in memory: `header`, `events`, and the picture at any of them.

    Raises TraceError if the file is missing, no trace, or cut off in the middle of a line.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        lines = _read_lines(self.path)
        try:
            self.header = _header_decoder.decode(next(lines, b""))
        except msgspec.DecodeError as error:
            raise TraceError(
                f"{self.path} does not begin with a .kvtrace header ({error}): is it a recording?"
            ) from None
        _check_header(self.path, self.header)
        self.events: list[Event] = []
        for number, line in enumerate(lines, start=2):
            try:
                self.events.append(decode_event(line))
            except (msgspec.DecodeError, LookupError, ValueError, TypeError, RecursionError):
                raise TraceError(
                    f"{self.path} is broken at line {number}, after {len(self.events)} whole events: the recording was "
                    f"cut off or edited. Delete that line and what follows it to read the events before it"
                ) from None

    def start(self) -> MemoryMap:
        """The picture before the first event."""
        if self.header.base is not None:
            return self.header.base.copy()
        return MemoryMap(num_blocks=self.header.num_blocks, block_size=self.header.block_size)

    def pictures(self) -> Iterator[tuple[Event, MemoryMap]]:
        """Each event with the picture after it (the same object throughout; copy it to keep it)."""
        picture = self.start()
        for event in self.events:
            try:
                picture.apply(event)
            except (ValueError, LookupError, TypeError) as error:
                raise TraceError(
                    f"{self.path}: event {event.seq} does not fit what came before it ({error}): "
                    "the recording was edited or damaged, record it again"
                ) from None
            yield event, picture


def _check_header(path: Path, header: LogHeader) -> None:
    if header.schema > SCHEMA_VERSION:
        raise TraceError(
            f"{path} has schema {header.schema}, this version reads up to {SCHEMA_VERSION}: update Pagelens"
        )
    if not (1 <= header.num_blocks <= 1 << 26 and 1 <= header.block_size <= 1 << 20):
        pool = f"{header.num_blocks} blocks of {header.block_size}"
        raise TraceError(f"{path} claims a pool of {pool} tokens: the header was edited or damaged, record it again")


def _read_lines(path: Path) -> Iterator[bytes]:
    try:
        with _open(path, "rb") as file:
            lines = file.readlines()
    except IsADirectoryError:
        raise TraceError(f"{path} is a folder: name the .kvtrace in it") from None
    except PermissionError:
        raise TraceError(f"{path} may not be read: check its permissions") from None
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist: record one with `pagelens record --out {path.name}`") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path} is not a whole gzip file ({error}): copy or record it again") from None
    if len(lines) > 1 and not lines[-1].endswith(b"\n") and lines[0].startswith(b"{"):
        raise TraceError(
            f"{path} is cut off in line {len(lines)}, after {max(0, len(lines) - 2)} whole events: "
            "delete that last line to read the events before it"
        )
    return iter(lines)
