"""Mailbox: commands for a thread, from all others.

any other thread    send(command) ----> [ ... ] ----> take, answer    the owner's thread
                    .result()    <---- the Future's result or error
"""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Command = Callable[[], Any]


class Mailbox:
    """Whoever sends is answered, also after the owner has gone.

    `gone` makes the error for those who send before the owner `open`s the box or after it `close`s it.
    """

    def __init__(self, gone: Callable[[], Exception]) -> None:
        self._gone = gone
        self._is_open = False
        self._lock = threading.Lock()
        self._letters: queue.SimpleQueue[tuple[Command, Future[Any]]] = queue.SimpleQueue()

    def open(self) -> None:
        """Commands are answered from now on."""
        self._is_open = True

    def send(self, command: Command) -> "Future[Any]":
        """Have the owner run `command`; the answer is what it returns or raises."""
        answer: Future[Any] = Future()
        with self._lock:
            if not self._is_open:
                raise self._gone()
            self._letters.put((command, answer))
        return answer

    def take(self, block: bool, timeout: float | None = None) -> "tuple[Command, Future[Any]] | None":
        """The oldest command, None if there is none (within `timeout` seconds, if it may `block`)."""
        try:
            return self._letters.get(block, timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Refuse what comes from now on, and what has not been taken."""
        with self._lock:
            self._is_open = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._letters.get_nowait()[1].set_exception(self._gone())
