"""What a program became: the instructions in its CUDA text, and what ptxas says it uses."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import asdict, fields, frozen

from tilegen import cache
from tilegen.compile import COMPILE_FLAGS, Lowered, lower
from tilegen.toolchain import failure, load_tilelang, require_nvcc

if TYPE_CHECKING:
    from tilegen.program import Program

_CALLS = {
    "wgmma": r"tl::wgmma_(?:ss|rs|sp_ss|sp_rs)<",
    "mma_sync": r"tl::mma_(?:sp_)?sync\w*<",
    "tma_load": r"tl::tma_load\w*[<(]",
    "tma_store": r"tl::tma_store(?:_add|_cluster|_scatter4)?[<(]",
    "cp_async": r"tl::cp_async_gs\w*<",
    "ldmatrix": r"tl::ptx_ldmatrix_\w+\(",
    "stmatrix": r"tl::ptx_stmatrix_\w+\(",
    "setmaxnreg": r"tl::warpgroup_reg_(?:de)?alloc<",
}


@frozen(kw_only=True)
class Landmarks:
    """Call sites in the CUDA text, before unrolling, and the launch.

    Attributes:
        wgmma: Warpgroup MMA.
        mma_sync: Warp MMA.
        tma_load: Bulk tensor loads.
        tma_store: Bulk tensor stores.
        mbarrier: Barriers in shared memory, not call sites.
        cp_async: Asynchronous copies to shared memory.
        ldmatrix: Matrix loads from shared memory.
        stmatrix: Matrix stores to shared memory.
        setmaxnreg: Moves of registers between warpgroups.
        launch_bounds: Threads of a CTA the code is compiled for; 0 if it does not say.
        producer_threads: Threads of a CTA that warp specialization added.
        dynamic_smem: Dynamic shared memory of a CTA in bytes.
    """

    wgmma: int
    mma_sync: int
    tma_load: int
    tma_store: int
    mbarrier: int
    cp_async: int
    ldmatrix: int
    stmatrix: int
    setmaxnreg: int
    launch_bounds: int
    producer_threads: int
    dynamic_smem: int

    def rows(self) -> list[tuple[str, int]]:
        """Return (name, value) of each field, in order."""
        return [(field.name, getattr(self, field.name)) for field in fields(Landmarks)]


@frozen(kw_only=True)
class Resources:
    """What ptxas reports; the largest of several kernels, spills and stubs added up.

    Attributes:
        registers: Registers of a thread.
        spill_stores: Bytes a thread spills.
        spill_loads: Bytes a thread reads back.
        stack: Stack frame of a thread in bytes.
        static_smem: Static shared memory of a CTA in bytes, alignment included.
        dynamic_smem: Dynamic shared memory of a CTA in bytes.
        brkpt: Stubs in the PTX that abort when they run.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    static_smem: int
    dynamic_smem: int
    brkpt: int

    def rows(self) -> list[tuple[str, int]]:
        """Return (name, value) of each field, in order."""
        return [(field.name, getattr(self, field.name)) for field in fields(Resources)]


def landmarks(program: Program) -> Landmarks:
    """Return which instructions ``program`` lowers to; needs neither nvcc nor a GPU.

    Raises:
        CompileError: TileLang refuses the program.
    """
    return read_landmarks(lower(program))


def read_landmarks(lowered: Lowered) -> Landmarks:
    """Return the landmarks of lowered CUDA text."""
    text = lowered.cuda_source
    bounds = re.findall(r"__launch_bounds__\((\d+)", text)
    return Landmarks(
        **{name: len(re.findall(pattern, text)) for name, pattern in _CALLS.items()},
        mbarrier=sum(int(n) for n in re.findall(r"uint64_t \w+_mem\[(\d+)\]", text)),
        launch_bounds=max(map(int, bounds), default=0),
        producer_threads=lowered.producer_threads,
        dynamic_smem=lowered.smem_bytes,
    )


def resources(program: Program) -> Resources:
    """Return registers, spills and shared memory of ``program``; needs nvcc, no GPU.

    Raises:
        CompileError: There is no nvcc, it refuses the CUDA text, or the PTX holds stubs that
            abort: the target cannot run an MMA that the program asks for.
    """
    entry = cache.read_entry(program.digest, "resources")
    if entry is None:
        require_nvcc(program)
        lowered = lower(program)
        entry = cache.build_once(program.digest, "resources", lambda: _assembled(program, lowered))
    found = Resources(**json.loads(entry.files["resources.json"]))
    if found.brkpt:
        raise failure(
            program,
            f"the PTX of {program.name} for {program.target.name} holds {found.brkpt} brkpt stubs "
            "that abort at run time: the target does not support an MMA in it",
        )
    return found


def _assembled(program: Program, lowered: Lowered) -> dict[str, bytes]:
    arch = program.target.name
    with tempfile.TemporaryDirectory(prefix="tilegen-") as name:
        folder = Path(name)
        source = folder / "kernel.cu"
        source.write_text(lowered.cuda_source)
        command = nvcc_command(arch, source, folder / "kernel.cubin")
        command += [*lowered.compile_flags, "-Xptxas", "-v", "--keep", "--keep-dir", name]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            said = re.search(r"error\s*:\s*(.+)", run.stderr)
            sentence = f"nvcc could not compile the CUDA text of {program.name} for {arch}"
            raise failure(program, f"{sentence} ({said[1] if said else run.stderr.strip()})")
        ptx = (folder / "kernel.ptx").read_text()
    found = read_ptxas(run.stderr + run.stdout, ptx, lowered.smem_bytes)
    return {"resources.json": json.dumps(asdict(found)).encode()}


def read_ptxas(report: str, ptx: str, dynamic_smem: int) -> Resources:
    """Return the resources that ``report``, the output of ``ptxas -v``, and ``ptx`` state."""

    def found(pattern: str) -> list[int]:
        return [int(number) for number in re.findall(pattern, report)]

    return Resources(
        registers=max(found(r"Used (\d+) registers"), default=0),
        spill_stores=sum(found(r"(\d+) bytes spill stores")),
        spill_loads=sum(found(r"(\d+) bytes spill loads")),
        stack=max(found(r"(\d+) bytes stack frame"), default=0),
        static_smem=max(found(r"(\d+) bytes smem"), default=0),
        dynamic_smem=dynamic_smem,
        brkpt=len(re.findall(r"^[^/\n]*\bbrkpt\s*;", ptx, re.MULTILINE)),
    )


def nvcc_command(arch: str, source: Path, output: Path) -> list[str]:
    """Return the command TileLang compiles ``source`` to the cubin ``output`` with."""
    load_tilelang()
    from tilelang.contrib.nvcc import get_cplus_compiler, get_nvcc_compiler
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    return [
        get_nvcc_compiler(),
        f"-ccbin={get_cplus_compiler()}",
        "--cubin",
        "-O3",
        "-lineinfo",
        f"-arch={arch}",
        "-std=c++20",
        f"-I{TILELANG_TEMPLATE_PATH}",
        f"-I{CUTLASS_INCLUDE_DIR}",
        *COMPILE_FLAGS,
        "-o",
        str(output),
        str(source),
    ]
