"""The folder that holds what was emitted, lowered and compiled, by program digest.

Layout: ``<digest>/<name>.py`` is the emitted source and ``<digest>/<kind>/`` one entry, such as the
binary: files and a manifest of their SHA-256 sums, published by a single rename and never edited.
A reader believes only what matches its manifest, so a crash or a bad disk costs one rebuild.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import platformdirs
from attrs import frozen

_T = TypeVar("_T")
_MANIFEST, _FORMAT = "manifest.json", 1
_STAGING, _LOCKS, _TILELANG = ".staging", ".locks", "tilelang-cache"
_LOCK_SECONDS, _STALE_SECONDS = 900.0, 86400.0
_NO_ROOM = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT}
_CONTESTED = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY, errno.ENOENT}
_roots: dict[Path | None, Path] = {}
_roots_lock = threading.RLock()


@frozen
class Entry:
    """One verified entry: the folder it lies in, and the bytes of its files by name."""

    path: Path
    files: Mapping[str, bytes]


@frozen
class CacheStats:
    """What the cache holds.

    Attributes:
        path: The folder in use.
        entries: Number of digests in it.
        bytes: Size of everything in it.
        fallback: Whether the folder is a stand-in, because the wanted one cannot be written.
    """

    path: str
    entries: int
    bytes: int
    fallback: bool


def cache_dir() -> Path:
    """Return the folder in use, made on first use.

    It is ``TILEGEN_CACHE_DIR``, else the user's cache folder; where that one cannot be written, a
    private temporary folder, after one warning.
    """
    wanted = _wanted()
    with _roots_lock:
        if wanted in _roots:
            return _roots[wanted]
        if wanted is None:
            return _retreat("there is no home folder of this user")
        try:
            _roots[wanted] = _prepared(wanted)
        except OSError as error:
            return _retreat(f"{wanted} cannot be written ({error.strerror})")
        return _roots[wanted]


def peek() -> Path | None:
    """Return the folder that `cache_dir` would try first, without making it, or None for none."""
    wanted = _wanted()
    with _roots_lock:
        return _roots.get(wanted, wanted)


def read_entry(digest: str, kind: str) -> Entry | None:
    """Return the entry ``kind`` of ``digest``, or None where it is missing or damaged."""
    return _verified(cache_dir() / digest / kind)


def write_entry(
    digest: str, kind: str, files: Mapping[str, bytes], *, replace: bool = False
) -> Entry:
    """Publish ``files`` as the entry ``kind`` of ``digest``, whole; return the one that stands.

    A sound entry that is there already wins unless ``replace``; a damaged one is moved aside.

    Raises:
        OSError: Neither the folder nor its stand-in takes the files.
    """
    return _written(lambda root: _publish(root, Path(digest, kind), files, replace))


def build_once(
    digest: str, kind: str, build: Callable[[], Mapping[str, bytes]], *, force: bool = False
) -> Entry:
    """Return the entry ``kind`` of ``digest``, made by ``build`` where it is missing or damaged.

    Processes and threads that ask for the same entry at once build it once. ``force`` builds it
    anew in any case. Where the file system cannot lock, each builds and the first one stands.
    """
    entry = None if force else read_entry(digest, kind)
    if entry is not None:
        return entry
    with _locked(f"{digest}-{kind}"):
        entry = None if force else read_entry(digest, kind)
        return entry or write_entry(digest, kind, build(), replace=force)


def write_source(digest: str, name: str, source: str) -> Path:
    """Return the path of ``<digest>/<name>.py``, which holds exactly ``source`` afterwards."""
    data = source.encode()

    def write(root: Path) -> Path:
        path = root / digest / f"{name}.py"
        with suppress(OSError):
            if path.read_bytes() == data:
                return path
        with _staging(root) as folder:
            path.parent.mkdir(exist_ok=True)
            _write_file(folder / path.name, data)
            (folder / path.name).replace(path)
        return path

    return _written(write)


def place_tilelang() -> None:
    """Put TileLang's own cache into ours, unless the user placed it or TileLang is loaded."""
    if "tilelang" not in sys.modules:
        os.environ.setdefault("TILELANG_CACHE_DIR", str(cache_dir() / _TILELANG))


def stats() -> CacheStats:
    """Return what the cache holds now."""
    root = cache_dir()
    size = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with suppress(OSError):
                size += Path(folder, name).lstat().st_size
    return CacheStats(str(root), len(_digests(root)), size, root != _wanted())


def clear() -> int:
    """Empty the cache on disk and return how many digests went; loaded kernels keep working."""
    root = cache_dir()
    digests = _digests(root)
    for path in (*digests, root / _TILELANG):
        shutil.rmtree(path, ignore_errors=True)
    return len(digests)


def _digests(root: Path) -> list[Path]:
    """Return the folders that are ours by name; the root may hold other people's files too."""
    return [path for path in root.glob("?" * 64) if path.is_dir()]


def _wanted() -> Path | None:
    """Return the folder asked for, or None where this user has no home of their own."""
    if named := os.environ.get("TILEGEN_CACHE_DIR"):
        return Path(named).absolute()
    if not os.environ.get("XDG_CACHE_HOME"):
        try:
            home = Path.home()
            if home == Path(home.anchor) or home.stat().st_uid != os.geteuid():
                return None
        except (OSError, RuntimeError):
            return None
    return Path(platformdirs.user_cache_dir("tilegen", appauthor=False)).absolute()


def _prepared(root: Path) -> Path:
    """Return ``root``, which exists and takes bytes afterwards; OSError if it does not."""
    for folder in (root, root / _STAGING, root / _LOCKS):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=root / _STAGING) as probe:
        probe.write(bytes(4096))
    return root


def _retreat(reason: str) -> Path:
    """Return the stand-in folder, used from here on in this process, after a warning."""
    root = _roots[_wanted()] = _prepared(_private())
    warnings.warn(
        f"tilegen caches in {root}, because {reason}; set TILEGEN_CACHE_DIR to a writable folder",
        stacklevel=3,
    )
    return root


def _private() -> Path:
    """Return a folder for temporary files that is this user's alone."""
    path = Path(tempfile.gettempdir()) / f"tilegen-{os.geteuid()}"
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            path.chmod(0o700)
            return path
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="tilegen-"))


def _written(write: Callable[[Path], _T]) -> _T:
    """Return ``write(root)``, done in the stand-in folder where the root takes no more bytes."""
    root = cache_dir()
    try:
        return write(root)
    except OSError as error:
        if error.errno not in _NO_ROOM or root != _wanted():
            raise
        with _roots_lock:
            if _roots[_wanted()] == root:
                _retreat(f"{root} cannot be written ({error.strerror})")
    return write(cache_dir())


@contextmanager
def _locked(name: str) -> Iterator[None]:
    from filelock import FileLock  # here, since it is slow to import and building a program is not

    path = cache_dir() / _LOCKS / f"{name}.lock"
    lock = FileLock(path)
    with suppress(OSError, NotImplementedError):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_LOCK_SECONDS)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """Yield a folder on the root's file system; gone afterwards, with what crashes left behind."""
    parent = root / _STAGING
    parent.mkdir(parents=True, exist_ok=True)
    for path in parent.iterdir():
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _publish(root: Path, key: Path, files: Mapping[str, bytes], replace: bool) -> Entry:
    sums = {name: sha256(data).hexdigest() for name, data in files.items()}
    manifest = json.dumps({"format": _FORMAT, "files": sums}, indent=1).encode()
    target = root / key
    with _staging(root) as folder:
        entry = folder / "entry"
        entry.mkdir()
        for name, data in {**files, _MANIFEST: manifest}.items():
            _write_file(entry / name, data)
        for attempt in range(3):
            try:
                target.parent.mkdir(exist_ok=True)
                entry.rename(target)
                break
            except OSError as error:
                if error.errno not in _CONTESTED or attempt == 2:
                    raise
            standing = None if replace else _verified(target)
            if standing is not None:
                return standing
            with suppress(FileNotFoundError):
                target.rename(folder / f"old-{attempt}")
    return Entry(target, files)


def _verified(path: Path) -> Entry | None:
    """Return the entry at ``path`` if every file in its manifest is as it was written."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        sums = manifest["files"]
        files = {name: (path / name).read_bytes() for name in sums}
        sound = all(sha256(data).hexdigest() == sums[name] for name, data in files.items())
        return Entry(path, files) if sound and files and manifest["format"] == _FORMAT else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_file(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
