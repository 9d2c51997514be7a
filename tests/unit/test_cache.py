"""The cache folder: atomic entries, corruption, many processes, folders that cannot be written."""

import errno
import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import threading
import time
from hashlib import sha256
from pathlib import Path

import pytest
from attrs import frozen

from tilegen import cache
from tilegen import compile as compiling
from tilegen.targets import TARGETS, Target

ROOT = Path(__file__).parents[2]
FILES = {"kernel.so": bytes(range(256)) * 20, "kernel.cu": b"__global__ void f() {}\n"}
DIGEST = sha256(b"program").hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Give each test a cache folder and a folder for temporary files of its own."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(cache, "_roots", {})
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Builder:
    """Counts how often it is asked to build."""

    def __init__(self, files=FILES, seconds=0.0):
        self.files, self.seconds, self.count = files, seconds, 0

    def __call__(self):
        self.count += 1
        time.sleep(self.seconds)
        return self.files


def python(script, *arguments, **environment):
    """Start a Python process on ``script`` with tilegen importable and warnings shown."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    env = {name: value for name, value in env.items() if value is not None}
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process):
    """Return what the process printed; fails the test if the process failed."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out.strip(), err


def test_entry_is_built_once_and_read_back(folder):
    build = Builder()
    first = cache.build_once(DIGEST, "binary", build)
    second = cache.build_once(DIGEST, "binary", build)
    assert build.count == 1
    assert first.path == second.path == folder / DIGEST / "binary"
    assert dict(first.files) == dict(second.files) == FILES
    assert (first.path / "kernel.so").read_bytes() == FILES["kernel.so"]


def test_kinds_and_digests_do_not_mix():
    other = sha256(b"other").hexdigest()
    cache.write_entry(DIGEST, "binary", {"a": b"1"})
    cache.write_entry(DIGEST, "lowered", {"a": b"2"})
    cache.write_entry(other, "binary", {"a": b"3"})
    keys = ((DIGEST, "binary"), (DIGEST, "lowered"), (other, "binary"))
    assert [cache.read_entry(*key).files["a"] for key in keys] == [b"1", b"2", b"3"]
    assert cache.read_entry(other, "lowered") is None


def test_force_builds_again_and_replaces():
    cache.build_once(DIGEST, "binary", Builder())
    build = Builder({"kernel.so": b"new"})
    assert cache.build_once(DIGEST, "binary", build, force=True).files == {"kernel.so": b"new"}
    assert cache.read_entry(DIGEST, "binary").files == {"kernel.so": b"new"}
    assert not (cache.cache_dir() / DIGEST / "binary" / "kernel.cu").exists()


def test_a_sound_entry_is_not_overwritten():
    cache.write_entry(DIGEST, "binary", {"a": b"first"})
    assert cache.write_entry(DIGEST, "binary", {"a": b"second"}).files == {"a": b"first"}


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def empty(path):
    path.write_bytes(b"")


def be_a_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [truncate, zero, flip, empty, Path.unlink, be_a_folder])
@pytest.mark.parametrize("name", ["kernel.so", "kernel.cu", "manifest.json"])
def test_damage_costs_one_rebuild(damage, name):
    build = Builder()
    path = cache.build_once(DIGEST, "binary", build).path
    damage(path / name)
    assert cache.read_entry(DIGEST, "binary") is None
    for _ in range(2):
        entry = cache.build_once(DIGEST, "binary", build)
        assert dict(entry.files) == FILES
        assert {p.name: p.read_bytes() for p in path.iterdir() if p.name in FILES} == FILES
    assert build.count == 2


def test_an_entry_that_is_a_file_or_empty_folder_is_rebuilt(folder):
    for make in (Path.touch, Path.mkdir):
        path = folder / DIGEST / make.__name__
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)
        assert dict(cache.build_once(DIGEST, make.__name__, Builder()).files) == FILES
        assert dict(cache.read_entry(DIGEST, make.__name__).files) == FILES


def test_a_manifest_of_another_format_is_a_miss():
    path = cache.write_entry(DIGEST, "binary", FILES).path / "manifest.json"
    manifest = json.loads(path.read_text())
    for wrong in ([], {}, {"files": {}, "format": 1}, {**manifest, "format": 0}):
        path.write_text(json.dumps(wrong))
        assert cache.read_entry(DIGEST, "binary") is None


def test_source_is_exact_and_repaired(folder):
    path = cache.write_source(DIGEST, "gemm", "build = 1\n")
    assert path == folder / DIGEST / "gemm.py"
    before = path.stat().st_mtime_ns
    assert cache.write_source(DIGEST, "gemm", "build = 1\n").stat().st_mtime_ns == before
    flip(path)
    assert cache.write_source(DIGEST, "gemm", "build = 1\n").read_text() == "build = 1\n"


def test_a_failing_builder_leaves_nothing(folder):
    def build():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.build_once(DIGEST, "binary", build)
    assert cache.read_entry(DIGEST, "binary") is None
    assert dict(cache.build_once(DIGEST, "binary", Builder()).files) == FILES
    assert not list((folder / ".staging").iterdir())


def test_threads_build_once():
    build = Builder(seconds=0.2)
    barrier = threading.Barrier(8)
    found = []

    def work():
        barrier.wait()
        found.append(cache.build_once(DIGEST, "binary", build))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert build.count == 1
    assert [dict(entry.files) for entry in found] == [FILES] * 8


WORKER = """
import os, sys, time
from hashlib import sha256
from pathlib import Path
from tilegen import cache
shared, me, workers, rounds = Path(sys.argv[1]), *map(int, sys.argv[2:])
for turn in range(rounds):
    (shared / f"ready-{turn}-{me}").touch()
    while len(list(shared.glob(f"ready-{turn}-*"))) < workers:
        time.sleep(0.001)
    for program in range(2):
        digest = sha256(f"{turn} {program % 2 ^ me % 2}".encode()).hexdigest()
        def build():
            (shared / f"built-{digest}-{os.getpid()}").touch()
            time.sleep(0.005)
            return {"kernel.so": digest.encode() * 1000}
        files = cache.build_once(digest, "binary", build).files
        assert files == {"kernel.so": digest.encode() * 1000}
"""


def test_processes_build_once(tmp_path):
    workers, rounds = 8, 10
    processes = [python(WORKER, tmp_path, me, workers, rounds) for me in range(workers)]
    for process in processes:
        assert finished(process)[1] == ""
    assert len(list(tmp_path.glob("built-*"))) == 2 * rounds
    assert cache.stats().entries == 2 * rounds


KILLED = """
import os, sys, time
from tilegen import cache
real, count = os.fsync, 0
def fsync(handle):
    global count
    real(handle)
    count += 1
    if count == int(sys.argv[1]):
        print("writing", flush=True)
        time.sleep(60)
os.fsync = fsync
cache.build_once(sys.argv[2], "binary", lambda: {"kernel.so": b"half" * 9999, "kernel.cu": b"x"})
"""


@pytest.mark.parametrize("after", [1, 2, 3])
def test_kill_during_write_leaves_no_entry_and_no_lock(after, folder):
    with python(KILLED, after, DIGEST) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    assert cache.read_entry(DIGEST, "binary") is None
    started = time.monotonic()
    assert dict(cache.build_once(DIGEST, "binary", Builder()).files) == FILES
    assert time.monotonic() - started < 5
    (left,) = (folder / ".staging").iterdir()
    os.utime(left, (0, 0))
    cache.write_entry(DIGEST, "lowered", FILES)
    assert not list((folder / ".staging").iterdir())


def test_a_folder_removed_under_us_comes_back(folder):
    cache.build_once(DIGEST, "binary", Builder())
    subprocess.run(["rm", "-rf", folder], check=True)
    assert cache.stats().entries == 0
    assert dict(cache.build_once(DIGEST, "binary", Builder()).files) == FILES
    assert cache.write_source(DIGEST, "gemm", "").exists()


def test_stats_and_clear_leave_other_files(folder):
    cache.write_entry(DIGEST, "binary", FILES)
    cache.write_source(DIGEST, "gemm", "x = 1\n")
    mine = folder / "notes.txt"
    mine.write_text("mine")
    stats = cache.stats()
    assert (stats.path, stats.entries, stats.fallback) == (str(folder), 1, False)
    assert stats.bytes >= sum(map(len, FILES.values())) + 6 + 4
    assert cache.clear() == 1
    assert cache.stats().entries == 0
    assert mine.read_text() == "mine"
    assert cache.read_entry(DIGEST, "binary") is None


def retreats(reason):
    return pytest.warns(UserWarning, match=rf"caches in .*tilegen-\w+, because {reason}")


def assert_private_and_working(root, tmp_path):
    assert root == tmp_path / "tmp" / f"tilegen-{os.geteuid()}"
    assert root.stat().st_mode & 0o777 == 0o700
    assert dict(cache.build_once(DIGEST, "binary", Builder()).files) == FILES
    assert cache.read_entry(DIGEST, "binary").path.is_relative_to(root)
    assert cache.stats().fallback


def test_a_path_below_a_file_falls_back(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "tmp" / f"tilegen-{os.geteuid()}").mkdir(mode=0o755)
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with retreats(".*file/cache cannot be written"):
        root = cache.cache_dir()
    assert_private_and_working(root, tmp_path)
    assert cache.cache_dir() == root


def test_a_folder_without_permission_falls_back(tmp_path, folder, monkeypatch):
    mkdir = Path.mkdir

    def refuse(path, *arguments, **keywords):
        if path.is_relative_to(folder):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        mkdir(path, *arguments, **keywords)

    monkeypatch.setattr(Path, "mkdir", refuse)
    with retreats(".*cache cannot be written .Permission denied"):
        root = cache.cache_dir()
    assert_private_and_working(root, tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_folder_that_fills_up_falls_back(code, tmp_path, folder, monkeypatch):
    cache.cache_dir()
    fsync = os.fsync

    def refuse(handle):
        if Path(f"/proc/self/fd/{handle}").readlink().is_relative_to(folder):
            raise OSError(code, os.strerror(code))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    build = Builder()
    with retreats(f".*cannot be written .{os.strerror(code)}"):
        entry = cache.build_once(DIGEST, "binary", build)
    assert build.count == 1
    assert dict(entry.files) == FILES
    assert_private_and_working(cache.cache_dir(), tmp_path)
    assert not (folder / DIGEST / "binary").exists()


def test_a_disk_full_everywhere_is_an_error(monkeypatch):
    def refuse(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with retreats(".*No space left"), pytest.raises(OSError, match="No space left"):
        cache.build_once(DIGEST, "binary", Builder())


@pytest.mark.parametrize("home", ["/", "", "/does/not/exist", "someone"])
def test_a_home_that_is_not_ours_falls_back(home, tmp_path, monkeypatch):
    if home == "someone":
        home = tmp_path / "someone"
        home.mkdir()
        monkeypatch.setattr(os, "geteuid", lambda: home.stat().st_uid + 1)
    monkeypatch.delenv("TILEGEN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(home))
    with retreats("there is no home folder"):
        root = cache.cache_dir()
    assert root.parent == tmp_path / "tmp"
    assert root.stat().st_uid == root.parent.stat().st_uid
    assert (root.name == f"tilegen-{os.geteuid()}") == (os.geteuid() == root.stat().st_uid)
    assert not Path("/.cache/tilegen").exists()


def test_no_home_and_no_account_falls_back(tmp_path, monkeypatch):
    def unknown(uid):
        raise KeyError(uid)

    monkeypatch.delenv("TILEGEN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with retreats("there is no home folder"):
        root = cache.cache_dir()
    assert_private_and_working(root, tmp_path)


def test_home_is_used_where_it_is_ours(tmp_path, monkeypatch):
    monkeypatch.delenv("TILEGEN_CACHE_DIR")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_dir().is_relative_to(tmp_path)
    assert cache.cache_dir().name == "tilegen"
    assert not cache.stats().fallback


def test_a_planted_link_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "tmp" / f"tilegen-{os.geteuid()}").symlink_to(tmp_path / "theirs")
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEGEN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="cannot be written"):
        root = cache.cache_dir()
    assert root.parent == tmp_path / "tmp"
    assert root.stat().st_mode & 0o777 == 0o700
    assert not list((tmp_path / "theirs").iterdir())


HOMELESS = """
from tilegen import cache
for name in ("one", "two"):
    cache.build_once(name * 20, "binary", lambda: {"kernel.so": b"x"})
print(cache.cache_dir())
"""


def test_one_warning_a_process(tmp_path):
    environment = {"HOME": "/", "XDG_CACHE_HOME": None, "TMPDIR": str(tmp_path)}
    out, err = finished(python(HOMELESS, TILEGEN_CACHE_DIR=None, **environment))
    assert out == str(tmp_path / f"tilegen-{os.geteuid()}")
    assert err.count("UserWarning") == 1
    assert err.count("set TILEGEN_CACHE_DIR") == 1


def test_tilelang_is_placed_unless_the_user_did(folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "tilelang", raising=False)
    monkeypatch.setenv("TILELANG_CACHE_DIR", "/mine")
    cache.place_tilelang()
    assert os.environ["TILELANG_CACHE_DIR"] == "/mine"
    monkeypatch.delenv("TILELANG_CACHE_DIR")
    cache.place_tilelang()
    assert Path(os.environ["TILELANG_CACHE_DIR"]).is_relative_to(folder)


@frozen
class Stub:
    """What a digest reads of a program."""

    source: str = "TILE = 128\n"
    name: str = "gemm_bf16_nt"
    target: Target = TARGETS["sm_90a"]


DIGESTS = """
import sys
sys.path.insert(0, {tests!r})
from test_cache import Stub, TARGETS, compiling
targets = TARGETS["sm_80"], TARGETS["sm_90a"]
programs = [Stub(f"N = {{n}}\\n", "gemm", target) for n in (128, 256) for target in targets]
order = -1 if sys.argv[1] == "back" else 1
print(*[compiling.digest(program) for program in programs[::order]][::order])
assert "torch" not in sys.modules and "tilelang" not in sys.modules
"""


def test_digest_is_pure():
    script = DIGESTS.format(tests=str(Path(__file__).parent))
    runs = [
        python(script, way, PYTHONHASHSEED=seed) for way, seed in (("forth", "0"), ("back", "7"))
    ]
    (first, _), (second, _) = map(finished, runs)
    assert first == second
    assert len(set(first.split())) == 4
    assert all(len(text) == 64 and int(text, 16) >= 0 for text in first.split())


@pytest.mark.parametrize(
    "other",
    [Stub(source="TILE = 129\n"), Stub(name="gemm_f16_nt"), Stub(target=TARGETS["sm_80"])],
    ids=["source", "name", "target"],
)
def test_digest_covers_the_program(other):
    assert compiling.digest(other) != compiling.digest(Stub())


@pytest.mark.parametrize(
    "tool", ["tilegen", "tilelang", "apache-tvm-ffi", "torch", "nvcc", "machine"]
)
def test_digest_covers_the_toolchain(tool, monkeypatch):
    before = compiling.digest(Stub())
    changed = {**compiling.versions(), tool: "0.0.0"}
    monkeypatch.setattr(compiling, "versions", lambda: changed)
    assert compiling.digest(Stub()) != before


def test_digest_covers_flags(monkeypatch):
    before = compiling.digest(Stub())
    changes = (
        (compiling, "COMPILE_FLAGS", ("-lineinfo",)),
        (compiling, "PASS_CONFIGS", {"tl.disable_wgmma": True}),
    )
    for holder, name, value in changes:
        with monkeypatch.context() as patch:
            patch.setattr(holder, name, value)
            assert compiling.digest(Stub()) != before
    for name in ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "TILELANG_LAYOUT_COST_MODEL"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "other")
            assert compiling.digest(Stub()) != before
