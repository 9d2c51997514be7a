"""TileLang and nvcc on small kernels: launch, binary, cache, failures. Needs no GPU."""

import inspect as python_inspect
import os
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import attrs
import pytest

from tilegen import cache, toolchain
from tilegen import compile as compiling
from tilegen.compile import binary, digest, lower, prim_func
from tilegen.errors import CompileError
from tilegen.inspect import landmarks, nvcc_command, resources
from tilegen.targets import TARGETS, Target

pytestmark = pytest.mark.lower

GEMM = '''"""A GEMM, out = a @ b.T."""

import tilelang.language as T


def build():
    m, n, k = T.dynamic("m"), 512, 256

    @T.prim_func
    def gemm(
        a: T.Tensor((m, k), "bfloat16"),
        b: T.Tensor((n, k), "bfloat16"),
        out: T.Tensor((m, n), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(n, 128), T.ceildiv(m, 128), threads=128) as (bx, by):
            a_shared = T.alloc_shared((128, 64), "bfloat16")
            b_shared = T.alloc_shared((128, 64), "bfloat16")
            acc = T.alloc_fragment((128, 128), "float32")
            T.clear(acc)
            for ko in T.Pipelined(T.ceildiv(k, 64), num_stages=3):
                T.copy(a[by * 128, ko * 64], a_shared)
                T.copy(b[bx * 128, ko * 64], b_shared)
                T.gemm(a_shared, b_shared, acc, transpose_B=True)
            T.copy(acc, out[by * 128, bx * 128])

    return gemm
'''
ADD = '''"""Add one."""

import tilelang.language as T


def build():
    @T.prim_func
    def add(x: T.Tensor((1024,), "float32"), out: T.Tensor((1024,), "float32")):
        with T.Kernel(8, threads=128) as bx:
            for i in T.Parallel(128):
                out[bx * 128 + i] = x[bx * 128 + i] + 1.0

    return add
'''


@attrs.frozen
class Program:
    """What compile and inspect read of a program."""

    source: str = attrs.field(default=GEMM, repr=False)
    name: str = "gemm"
    target: Target = TARGETS["sm_90a"]
    family: str = "gemm"

    @property
    def digest(self):
        return digest(self)


HOPPER = Program()
SM_90 = attrs.evolve(HOPPER, target=attrs.evolve(HOPPER.target, name="sm_90"))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Keep everything these tests make in one folder, TileLang's files included."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILEGEN_CACHE_DIR", str(path))
        patch.setenv("TILELANG_CACHE_DIR", str(path / "tilelang-cache"))
        patch.delenv("TILELANG_DISABLE_CACHE", raising=False)
        yield path


@pytest.fixture
def forget(monkeypatch):
    """Return a function that empties the memory of this process, as a new process would."""

    def call():
        for name in ("_prim_funcs", "_lowered", "_binaries"):
            monkeypatch.setattr(compiling, name, {})

    call()
    return call


@attrs.frozen
class Built:
    """One real compilation: the kernels got, the nvcc commands run, the files kept."""

    kernels: list
    commands: list
    files: dict


@pytest.fixture(scope="module")
def built():
    """Compile HOPPER, asked for by four threads at once."""
    from tilelang.contrib import nvcc

    found = Built([], [], {})
    barrier = threading.Barrier(4)
    exported = compiling._exported

    class Popen(subprocess.Popen):
        def __init__(self, command, **keywords):
            found.commands.append(command)
            super().__init__(command, **keywords)

    def keep(kernel):
        found.files.update(exported(kernel))
        return found.files

    def work():
        barrier.wait()
        found.kernels.append(binary(HOPPER))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvcc.subprocess, "Popen", Popen)
        patch.setattr(compiling, "_exported", keep)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found.commands[:] = [command for command in found.commands if "--cubin" in command]
    return found


@pytest.fixture
def rebuilds(built, forget, monkeypatch):
    """Return a list that grows by one where nvcc would run; what it made before stands in."""
    again = []

    def export(kernel):
        again.append(1)
        fresh = f"-{uuid.uuid4().hex}"
        return {name.replace("-", fresh): data for name, data in built.files.items()}

    monkeypatch.setattr(compiling, "_compiled", lambda program, function: None)
    monkeypatch.setattr(compiling, "_exported", export)
    cache.write_entry(HOPPER.digest, "binary", export(None), replace=True)
    again.clear()
    return again


@pytest.mark.nvcc
def test_threads_compile_once(built, folder):
    assert len(built.commands) == 1
    assert len(built.kernels) == 4
    assert len(set(map(id, built.kernels))) == 1
    entry = cache.read_entry(HOPPER.digest, "binary")
    assert dict(entry.files) == built.files
    assert not [p for p in (folder / "tilelang-cache").rglob("*") if p.is_file()]


@pytest.mark.nvcc
def test_a_kernel_has_its_parameters_and_sources(built):
    kernel = built.kernels[0]
    assert [str(param.dtype) for param in kernel.params] == ["bfloat16"] * 3
    assert [str(extent) for extent in kernel.params[2].shape] == ["m", "512"]
    assert kernel.get_kernel_source() == lower(HOPPER).cuda_source
    assert "__tvm_ffi_main" in kernel.get_host_source()


@pytest.mark.nvcc
def test_a_kernel_from_disk_runs_its_host_checks(rebuilds):
    import torch

    kernel = binary(HOPPER)
    shapes = ((128, 256), (512, 256), (128, 512))
    tensors = [torch.zeros(shape, dtype=torch.bfloat16) for shape in shapes]
    with pytest.raises(RuntimeError, match="device_type mismatch, expected cuda"):
        kernel(*tensors)
    assert rebuilds == []


@pytest.mark.nvcc
def test_ptxas_sees_the_command_that_tilelang_runs(built):
    (theirs,) = built.commands
    ours = nvcc_command("sm_90a", Path(theirs[-1]), Path(theirs[-2]))
    assert ours == theirs


def truncated(data):
    return data[:-100]


def zeroed(data):
    return bytes(len(data))


def flipped(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def deleted(data):
    return None


@pytest.mark.nvcc
@pytest.mark.parametrize("damage", [truncated, zeroed, flipped, deleted])
@pytest.mark.parametrize("name", ["kernel-*.so", "kernel.cu", "host.c", "manifest.json"])
def test_a_damaged_binary_is_built_again(damage, name, rebuilds, forget):
    library = binary(HOPPER).adapter.libpath
    (path,) = (cache.cache_dir() / HOPPER.digest / "binary").glob(name)
    data = damage(path.read_bytes())
    path.unlink()  # the file itself is mapped by kernels of this process
    if data is not None:
        path.write_bytes(data)
    for _ in range(2):
        forget()
        kernel = binary(HOPPER)
        assert Path(kernel.adapter.libpath).is_file()
        assert library != kernel.adapter.libpath
        assert kernel.get_kernel_source() == lower(HOPPER).cuda_source
    assert rebuilds == [1]


def unloadable(files):
    texts = {name: data for name, data in files.items() if not name.endswith(".so")}
    return {"kernel-bad.so": b"of another machine", **texts}


@pytest.mark.nvcc
def test_a_sound_library_that_does_not_load_is_built_again(rebuilds, forget, built):
    files = unloadable(built.files)
    cache.write_entry(HOPPER.digest, "binary", files, replace=True)
    for _ in range(2):
        forget()
        assert binary(HOPPER).get_kernel_source() == lower(HOPPER).cuda_source
    assert rebuilds == [1]


@pytest.mark.nvcc
def test_a_library_that_never_loads_is_an_error(rebuilds, monkeypatch, built):
    monkeypatch.setattr(compiling, "_exported", lambda kernel: unloadable(built.files))
    with pytest.raises(CompileError, match="tilelang could not compile the source of gemm"):
        binary(HOPPER, force=True)
    assert HOPPER.digest not in compiling._binaries


@pytest.mark.nvcc
def test_force_builds_again_and_both_kernels_stay(rebuilds):
    first = binary(HOPPER)
    second = binary(HOPPER, force=True)
    assert rebuilds == [1]
    assert binary(HOPPER) is second is not first
    assert first.adapter.libpath != second.adapter.libpath


def test_tilelang_without_its_cache_leaves_the_disk_out(forget, monkeypatch):
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    monkeypatch.setattr(compiling, "_compiled", lambda program, function: program)
    program = Program(GEMM + "# not kept\n")
    assert binary(program) is program
    assert cache.read_entry(program.digest, "binary") is None


def test_lowering_reads_the_launch(forget):
    found = lower(HOPPER)
    assert found.grid == ("4", "(m + 127) // 128")
    assert (found.threads, found.producer_threads, found.smem_bytes) == (256, 128, 98304)
    assert "tma_descriptor_args" in found.host_source
    marks = landmarks(HOPPER)
    assert (marks.wgmma, marks.tma_load, marks.mbarrier, marks.mma_sync) == (1, 2, 6, 0)
    assert (marks.launch_bounds, marks.dynamic_smem) == (256, 98304)
    forget()
    assert lower(HOPPER) == found
    assert compiling._prim_funcs == {}


def test_a_kernel_without_shared_memory_has_none():
    found = lower(Program(ADD, "add"))
    assert (found.smem_bytes, found.threads, found.producer_threads) == (0, 128, 0)
    assert found.grid == ("8",)


def test_ampere_lowers_to_cp_async():
    marks = landmarks(Program(target=TARGETS["sm_80"]))
    assert (marks.wgmma, marks.tma_load, marks.producer_threads) == (0, 0, 0)
    assert min(marks.mma_sync, marks.cp_async, marks.ldmatrix) > 0


def test_threads_lower_different_programs():
    programs = [Program(GEMM.replace("512", str(n))) for n in (128, 256, 384, 640)]
    threads = [threading.Thread(target=lower, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [lower(program).grid[0] for program in programs] == ["1", "2", "3", "5"]


def test_the_source_is_a_file_people_can_read():
    import tilelang

    function = prim_func(HOPPER)
    assert isinstance(function, tilelang.language.PrimFunc)
    path = cache.cache_dir() / HOPPER.digest / "gemm.py"
    assert path.read_text() == GEMM
    module = sys.modules[f"tilegen_emitted_{HOPPER.digest}"]
    assert python_inspect.getsource(module.build).startswith("def build():")
    assert python_inspect.getsourcefile(module.build) == str(path)
    assert not (path.parent / "__pycache__").exists()


@pytest.mark.nvcc
def test_resources_come_from_ptxas_once(monkeypatch):
    found = resources(HOPPER)
    assert 100 < found.registers <= 255
    assert (found.spill_stores, found.spill_loads, found.brkpt) == (0, 0, 0)
    assert found.dynamic_smem == lower(HOPPER).smem_bytes
    monkeypatch.setattr(subprocess, "run", None)
    assert resources(HOPPER) == found


@pytest.mark.nvcc
def test_stubs_that_abort_are_an_error():
    program = attrs.evolve(SM_90, source=GEMM.replace("num_stages=3", "num_stages=0"))
    for _ in range(2):
        with pytest.raises(CompileError, match=r"\d+ brkpt stubs that abort at run time"):
            resources(program)


def refused(call, program):
    """Return the lines of the CompileError that ``call(program)`` raises, and its cause."""
    with pytest.raises(CompileError) as caught:
        call(program)
    what, who, where = str(caught.value).splitlines()
    assert who == f"  program: {program!r}"
    path = where.removeprefix("  source: ").partition(".py")[0] + ".py"
    assert Path(path).read_text() == program.source
    return what, where, caught.value.__cause__


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [("T.clear(acc)", "T.clear(missing)", ":19"), ("T.clear(acc)", "T.nothing(acc)", ":19")],
)
def test_a_source_that_does_not_trace(old, new, line, capfd):
    what, where, cause = refused(prim_func, Program(GEMM.replace(old, new)))
    said = f"{type(cause).__name__}: {str(cause).splitlines()[0]}"
    assert what == f"tilelang could not trace the source of gemm for sm_90a: {said}"
    assert where.endswith(line)
    assert isinstance(cause, (NameError, AttributeError))
    assert capfd.readouterr().out == ""


def test_a_source_that_does_not_lower(capfd):
    program = Program(GEMM.replace("(128, 64)", "(100, 64)").replace("(128, 128)", "(100, 100)"))
    for _ in range(2):
        what, _, cause = refused(lower, program)
        sentence, _, said = what.partition(": ")
        assert sentence == "tilelang could not lower the source of gemm for sm_90a"
        assert "must be divisible by" in said
        assert "must be divisible by" in str(cause)
    assert capfd.readouterr().out == ""


@pytest.mark.nvcc
def test_cuda_text_that_nvcc_refuses(capfd):
    for call in (binary, resources):
        what, _, _ = refused(call, SM_90)
        assert what.startswith("nvcc could not compile the CUDA text")
        assert "sm_90a" in what
    assert cache.read_entry(SM_90.digest, "binary") is None
    assert capfd.readouterr().out == ""


def test_no_nvcc_is_said_by_name(monkeypatch):
    monkeypatch.setattr(toolchain, "nvcc", lambda: None)
    for call in (binary, resources):
        what, _, _ = refused(call, Program(GEMM + "# never compiled\n"))
        assert what.startswith("nvcc was not found to compile gemm for sm_90a; install")


def test_targets_that_only_lower_are_refused_by_name():
    ada = Program(target=TARGETS["sm_89"])
    assert landmarks(ada).mma_sync > 0
    assert refused(binary, ada)[0].startswith("target sm_89 is only lowered to source; compile for")
    amd = Program(ADD, "add", TARGETS["gfx942"])
    assert refused(resources, amd)[0] == "nvcc makes no code for target gfx942: add only lowers"


SHIM = """#!/bin/sh
case "$*" in *--cubin*) echo run >> "{log}";; esac
exec "{nvcc}" "$@"
"""
WORKER = """
import sys
sys.path.insert(0, {tests!r})
from test_compile import Program, ADD, binary
print(binary(Program(ADD, "add")).get_kernel_source().count("add_kernel"))
"""


@pytest.mark.nvcc
def test_processes_compile_once(tmp_path):
    shim, log = tmp_path / "cuda" / "bin" / "nvcc", tmp_path / "log"
    shim.parent.mkdir(parents=True)
    shim.write_text(SHIM.format(log=log, nvcc=shutil.which("nvcc")))
    shim.chmod(0o755)
    environment = {
        **os.environ,
        "CUDA_HOME": str(tmp_path / "cuda"),
        "TILEGEN_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-c", WORKER.format(tests=str(Path(__file__).parent))]
    workers = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [worker.communicate()[0] for worker in workers] == ["2\n"] * 2
    assert log.read_text() == "run\n"
