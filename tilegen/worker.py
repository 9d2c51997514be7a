"""A process that works for ours: it may hang, crash or lose its GPU, and is then replaced.

The child makes one object and calls its methods. It runs in a session of its own, so that Ctrl-C
in a terminal reaches only us, and that killing it takes along what it started, such as nvcc.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from tilegen.errors import TilegenError

_START_SECONDS = 180.0  # what imports may take on a busy machine
_CHILD = "from tilegen.worker import main; main()"


class LostError(TilegenError):
    """The process hung or died; says which, and its last words."""


class FailedError(TilegenError):
    """A method raised; says what."""


class Worker:
    """Calls the methods of an object in a process, started when it is first asked.

    Args:
        subject: Class of the object as ``module:name``.
        args: What it is made with; has to be picklable, as have arguments and results.
        environment: Variables that the process has on top of ours.
    """

    def __init__(
        self, subject: str, *args: Any, environment: Mapping[str, str] | None = None
    ) -> None:
        self._made_by = (subject, args)
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: Connection | None = None
        self._log = tempfile.TemporaryFile()
        weakref.finalize(self, self._log.close)  # a thread may read it until the very end
        self._lock = Lock()  # of starting and closing
        self._closed = False

    def ask(self, method: str, *args: Any, seconds: float) -> Any:
        """Return the result of a method; the time to start the process is not counted.

        Raises:
            LostError: There was no answer in time, or the process died. The next call starts one.
            FailedError: The method raised.
        """
        try:
            socket = self._started()
            socket.send((method, args))
            if not socket.poll(seconds):
                self.stop()
                raise LostError(f"gave no answer within {seconds:.0f} s and was killed")
            sound, value = socket.recv()
        except (EOFError, OSError) as error:
            raise LostError(self._last_words()) from error
        if not sound:
            raise FailedError(value)
        return value

    def start(self) -> None:
        """Start the process now, if there is none.

        Raises:
            LostError: It did not come up.
            FailedError: The object could not be made.
        """
        try:
            self._started()
        except (EOFError, OSError) as error:
            raise LostError(self._last_words()) from error

    def _started(self) -> Connection:
        if self._socket is not None:
            return self._socket
        ours, theirs = Pipe()
        self._log.seek(0)
        self._log.truncate()
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        with self._lock:
            if self._closed:
                raise LostError("is closed")
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CHILD, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": path, **self._environment},
                start_new_session=True,
            )
        theirs.close()
        ours.send(self._made_by)
        if not ours.poll(_START_SECONDS):
            self.stop()
            raise LostError(f"did not start within {_START_SECONDS:.0f} s")
        sound, value = ours.recv()
        if not sound:
            self.stop()
            raise FailedError(value)
        self._socket = ours
        return ours

    def _last_words(self) -> str:
        code = None
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._process.wait(10)
        self.stop()
        how = "closed its connection" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"its process {how}" + (f": {lines[-1].strip()[:200]}" if lines else "")

    def close(self) -> None:
        """Kill the process for good: a call that waits for it, or comes later, is lost."""
        with self._lock:
            self._closed = True
        self.stop()

    def stop(self) -> None:
        """Kill the process and what it started, if there is one."""
        process = self._process
        self._process = self._socket = None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        # A thread that still waits for an answer sees the end of the child, and drops the socket.


def cores() -> int:
    """Return the cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def main() -> None:
    """Make the object and call its methods until the parent closes its end."""
    socket = Connection(int(sys.argv[1]))
    calls: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    Thread(target=_read, args=(socket, calls), daemon=True).start()
    path, args = calls.get()
    try:
        module, name = path.split(":")
        subject = getattr(import_module(module), name)(*args)
    except Exception as error:
        socket.send((False, said(error)))
        return
    socket.send((True, None))
    while True:
        method, args = calls.get()
        try:
            answer = (True, getattr(subject, method)(*args))
        except Exception as error:
            answer = (False, said(error))
        socket.send(answer)


def _read(socket: Connection, calls: SimpleQueue[tuple[Any, Any]]) -> None:
    """Pass on what the parent asks; end the process with it, whatever a call is doing."""
    try:
        while True:
            calls.put(socket.recv())
    except (EOFError, OSError):
        os._exit(1)


def said(error: BaseException) -> str:
    """Return the class of an error and the first line of what it says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0][:300] if lines else ""
    return text if isinstance(error, TilegenError) else f"{type(error).__name__}: {text}"
