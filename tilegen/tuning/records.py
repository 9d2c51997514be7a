"""Tuned schedules on disk: one JSON file a target, the user's and the one that tilegen ships.

A record says for which spec, sizes and TileLang version a schedule is best, and how that was
found. Files are replaced whole, under a lock; what cannot be read is never believed.
"""

from __future__ import annotations

import functools
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, field, frozen

from tilegen import cache
from tilegen.errors import TilegenError
from tilegen.tuning.space import rehinted

FORMAT = 1
SHIPPED = Path(__file__).parents[1] / "tuned"
Origin = Literal["user", "shipped"]
_LOCK_SECONDS = 60.0
_files: dict[Path, tuple[tuple[int, int, int], dict[str, tuple[Record, ...]]]] = {}


@frozen(kw_only=True)
class Record:
    """A tuned schedule.

    Attributes:
        key: The spec as text, its hints left out.
        bucket: Dynamic sizes that it is for: by name, the largest; sizes of more than half.
        target: Name of the target.
        tilelang: The TileLang version that it was tuned with.
        spec: The spec, as JSON that ``tg.dumps`` wrote.
        schedule: The schedule, likewise.
        validated: How it was checked and timed: device, versions, sizes, seed, times, rounds.
    """

    key: str
    bucket: dict[str, int]
    target: str
    tilelang: str
    spec: dict[str, Any]
    schedule: dict[str, Any]
    validated: dict[str, Any] = field(factory=dict)

    @property
    def identity(self) -> tuple[object, ...]:
        """What two records of one thing share."""
        device = self.validated.get("device")
        return self.key, tuple(sorted(self.bucket.items())), self.target, self.tilelang, device


def key(spec: Any) -> str:
    """Return what records of ``spec`` are found by: its text, hints left out."""
    return repr(rehinted(spec, {dyn.name: dyn.multiple_of for dyn in spec.dynamic}))


def bucket(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bucket of dynamic sizes: each rounded up to a power of two."""
    return {name: 1 << max(0, size - 1).bit_length() for name, size in sorted(sizes.items())}


@functools.cache
def tilelang_version() -> str:
    """Return the version of the installed TileLang, or ``none``."""
    try:
        return version("tilelang")
    except PackageNotFoundError:
        return "none"


def place(target: str, origin: Origin = "user") -> Path | None:
    """Return where records of a target are, the user's or shipped; None where users have none."""
    if origin == "shipped":
        return SHIPPED / f"{target}.json"
    root = cache.peek()
    return None if root is None else root / "tuned" / f"{target}.json"


def find(
    spec: Any, target: str, *, device: Callable[[], str] = str
) -> Iterator[tuple[Origin, Record]]:
    """Yield the records for ``spec`` at its hints: the user's first, this TileLang's first.

    Args:
        spec: The spec.
        target: Name of the target.
        device: Tells the name of the GPU, whose records come before others.
    """
    wanted = ""
    origins: tuple[Origin, ...] = ("user", "shipped")
    for origin in origins:
        path = place(target, origin)
        records = {} if path is None else _read(path)
        if not records:
            continue
        wanted = wanted or key(spec)
        sizes = bucket({dyn.name: dyn.hint for dyn in spec.dynamic})
        found = [r for r in records.get(wanted, ()) if r.bucket == sizes and r.target == target]
        if len(found) > 1:
            name, here = device(), tilelang_version()
            found.sort(key=lambda r: (r.tilelang != here, r.validated.get("device") != name))
        for record in found:
            yield origin, record


def every(path: Path) -> list[Record]:
    """Return all records of a file; none where there is no such file."""
    return [record for records in _read(path).values() for record in records]


def save(record: Record, path: Path) -> None:
    """Put a record into a file, in place of one of the same thing.

    Processes that save at once wait for each other. A file that cannot be read is kept beside it.

    Raises:
        TilegenError: The file cannot be written, or is locked for a minute.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_SECONDS):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                kept = [old for old in every(path) if old.identity != record.identity]
            if path.exists() and not _sound(path):
                path.replace(path.with_name(f"{path.name}.unreadable"))
            _write(path, [*kept, record])
    except (OSError, TimeoutError) as error:
        raise TilegenError(f"tuned schedules cannot be saved in {path}: {error}") from error


def _write(path: Path, records: list[Record]) -> None:
    ordered = sorted(records, key=lambda r: tuple(map(str, r.identity)))
    document = {"tilegen": FORMAT, "kind": "tuned", "records": [asdict(r) for r in ordered]}
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def _sound(path: Path) -> bool:
    try:
        _parsed(path)
    except (OSError, ValueError, TypeError, KeyError):
        return False
    return True


def _parsed(path: Path) -> list[Record]:
    document = json.loads(path.read_bytes())
    if document["tilegen"] != FORMAT or document["kind"] != "tuned":
        raise ValueError(f"has format {document['tilegen']!r}, this version reads {FORMAT}")
    return [Record(**plain) for plain in document["records"]]


def _read(path: Path) -> dict[str, tuple[Record, ...]]:
    """Return the records of a file by key; read once for each state of the file."""
    try:
        status = path.stat()
    except OSError:
        return {}
    state = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _files.get(path)
    if known is not None and known[0] == state:
        return known[1]
    records: dict[str, tuple[Record, ...]] = {}
    try:
        for record in _parsed(path):
            records[record.key] = (*records.get(record.key, ()), record)
    except (OSError, ValueError, TypeError, KeyError) as error:
        records = {}
        _files[path] = (state, records)
        warnings.warn(
            f"tilegen ignores the tuned schedules in {path}, which cannot be read ({error}); "
            "delete the file, or tune again",
            stacklevel=2,
        )
    _files[path] = (state, records)
    return records
