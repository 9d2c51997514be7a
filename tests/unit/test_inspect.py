"""Landmarks and resources read from recorded compiler text."""

import json

import attrs
import pytest

from tilegen.compile import Lowered
from tilegen.inspect import Landmarks, Resources, read_landmarks, read_ptxas

HOPPER = """
extern "C" __global__ void f(__grid_constant__ const CUtensorMap a_desc);
extern "C" __global__ void __launch_bounds__(256, 1) f(__grid_constant__ const CUtensorMap a_desc) {
  extern __shared__ __align__(1024) uchar buf_dyn_shmem[];
  __shared__ __align__(16) uint64_t mbarrier_mem[6];
  auto mbarrier = reinterpret_cast<Barrier*>(mbarrier_mem);
  tl::prefetch_tma_descriptor(a_desc);
  tl::warpgroup_reg_dealloc<24>();
  tl::tma_load(a_desc, mbarrier[(ko % 3)], (&(((bfloat16_t*)As)[0])), (ko * 64), 0);
  tl::tma_load<tl::CacheHintSm90::EVICT_FIRST>(b_desc, mbarrier[0], (&(Bs[0])), (ko * 64), 0);
  tl::warpgroup_reg_alloc<240>();
  tl::initialize_wgmma_descriptor<1, 1, 64>(desc_a, (&(((bfloat16_t*)As)[0])));
  tl::wgmma_ss<tl::DataType::kBFloat16, 64, 128, 16, false, false, 1, 1>(uint64_t(desc_a), 1);
  tl::wgmma_rs<tl::DataType::kBFloat16, 64, 128, 16, false, false, 1, 1>(a, desc_b, c, 1);
  tl::warpgroup_wait<0>();
  tl::ptx_stmatrix_m8n8_x4((&(((bfloat16_t*)Cs)[0])), x, y, z, w);
  tl::tma_store(out_desc, (&(((bfloat16_t*)Cs)[0])), 0, 0);
  tl::tma_store_arrive();
  tl::tma_store_wait<0, true>();
}
"""
AMPERE = """
extern "C" __global__ void __launch_bounds__(128, 1) f(const half_t* __restrict__ a) {
  tl::cp_async_gs<16>((&(As[0])), (&(a[0])));
  tl::cp_async_gs_conditional<16>((&(As[0])), (&(a[0])), (i < m));
  tl::cp_async_commit();
  tl::cp_async_wait<0>();
  tl::ptx_ldmatrix_x4((&(As[0])), (&(A_local[0])));
  tl::ptx_ldmatrix_x4_trans((&(Bs[0])), (&(B_local[0])));
  tl::mma_sync<tl::DataType::kFloat16, 16, 8, 16, false, true>(acc, A_local, B_local);
}
"""
PTXAS = """
kernel.cu(91): warning #1046-D: floating-point value cannot be represented exactly
ptxas info    : 9 bytes gmem
ptxas info    : Compiling entry function 'split' for 'sm_90a'
ptxas info    : Function properties for split
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 4 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'combine' for 'sm_90a'
ptxas info    : Function properties for combine
    56 bytes stack frame, 60 bytes spill stores, 64 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 56 bytes cumulative stack size
"""


def lowered(cuda_source, **changes):
    launch = {"grid": ("8", "8"), "threads": 128, "producer_threads": 0, "smem_bytes": 98304}
    return Lowered(cuda_source=cuda_source, host_source="", **{**launch, **changes})


def test_landmarks_of_a_warp_specialized_kernel():
    assert read_landmarks(lowered(HOPPER, threads=256, producer_threads=128)) == Landmarks(
        wgmma=2,
        mma_sync=0,
        tma_load=2,
        tma_store=1,
        mbarrier=6,
        cp_async=0,
        ldmatrix=0,
        stmatrix=1,
        setmaxnreg=2,
        launch_bounds=256,
        producer_threads=128,
        dynamic_smem=98304,
    )


def test_landmarks_of_an_ampere_kernel():
    assert read_landmarks(lowered(AMPERE)) == Landmarks(
        wgmma=0,
        mma_sync=1,
        tma_load=0,
        tma_store=0,
        mbarrier=0,
        cp_async=2,
        ldmatrix=2,
        stmatrix=0,
        setmaxnreg=0,
        launch_bounds=128,
        producer_threads=0,
        dynamic_smem=98304,
    )


def test_landmarks_of_nothing_are_zero():
    found = read_landmarks(lowered("", smem_bytes=0))
    assert set(attrs.asdict(found).values()) == {0}


def test_resources_take_the_largest_kernel_and_add_up_spills():
    assert read_ptxas(PTXAS, "", 98304) == Resources(
        registers=168,
        spill_stores=60,
        spill_loads=64,
        stack=56,
        static_smem=1024,
        dynamic_smem=98304,
        brkpt=0,
    )


@pytest.mark.parametrize(
    ("ptx", "count"),
    [
        ("\tbrkpt;\n\tret;\n", 1),
        ("\t@%p1 brkpt;\nbrkpt;\n", 2),
        ("// brkpt;\n.visible .func brkpt_like\n", 0),
        ("\t{ brkpt; }\n", 1),
    ],
)
def test_stubs_that_abort_are_counted(ptx, count):
    assert read_ptxas("", ptx, 0).brkpt == count


@pytest.mark.parametrize("found", [read_landmarks(lowered(HOPPER)), read_ptxas(PTXAS, "", 7)])
def test_rows_and_json_name_every_field(found):
    fields = attrs.asdict(found)
    assert found.rows() == list(fields.items())
    assert json.loads(json.dumps(fields)) == fields
