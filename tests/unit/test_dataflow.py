"""The dataflow check and the lints, on kernels written for one fault each."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest

from tilegen.rules.dataflow import RULE_IDS, check_dataflow, lint_source

HEAD = '''\
"""A kernel."""

import tilelang.language as T

BLOCK = 64
STAGES = 3
NONE = 0
HALF = T.bfloat16


@T.prim_func
def kernel(
    a: T.Tensor((512, 512), "bfloat16"),
    b: T.Tensor((512, 512), HALF),
    bias: T.StridedTensor((512,), (stride,), "float16"),
    table: T.Tensor((8,), "int32"),
    out: T.Tensor((512, 512), "float32"),
    steps: T.int32,
):
    with T.Kernel(T.ceildiv(512, BLOCK), 8, threads=128) as (bx, by):
        a_shared = T.alloc_shared((BLOCK, BLOCK), "bfloat16")
        b_shared = T.alloc_shared((BLOCK, BLOCK), HALF)
        p_shared = T.alloc_shared((BLOCK, BLOCK), HALF)
        p = T.alloc_fragment((BLOCK, BLOCK), dtype="bfloat16")
        acc = T.alloc_fragment((BLOCK, BLOCK), "float32")
        scores = T.alloc_fragment((BLOCK, BLOCK), "float32")
        row = T.alloc_fragment((BLOCK,), "float32")
'''


def source(body: str) -> str:
    """Return a kernel file with ``body`` after its allocations."""
    return HEAD + indent(dedent(body).strip("\n"), " " * 8) + "\n"


GEMM = """
T.annotate_layout({a_shared: layout(a_shared)})
T.use_swizzle(8)
T.clear(acc)
for ko in T.Pipelined(T.ceildiv(512, BLOCK), num_stages=STAGES):
    T.copy(a[by * BLOCK, ko * BLOCK], a_shared)
    T.copy(b[bx * BLOCK, ko * BLOCK], b_shared, disable_tma=True)
    T.gemm(a_shared, b_shared, acc, transpose_B=True, policy=T.GemmWarpPolicy.Square)
for i, j in T.Parallel(BLOCK, BLOCK):
    acc[i, j] = acc[i, j] + T.cast(bias[bx * BLOCK + j], "float32")
T.copy(acc, out[by * BLOCK, bx * BLOCK])
"""
ELEMENTWISE_LOADS = """
T.clear(acc)
for ko in T.Pipelined(steps, num_stages=2):
    for i, j in T.Parallel(BLOCK, BLOCK):
        a_shared[i, j] = T.if_then_else(i < 7, a[by * BLOCK + i, ko * BLOCK + j], T.bfloat16(0))
    T.copy(b[bx * BLOCK, ko * BLOCK], b_shared)
    T.gemm(a_shared, b_shared, acc)
T.copy(acc, out[by * BLOCK, bx * BLOCK])
"""
ATTENTION = """
T.copy(a[by * BLOCK, 0], a_shared)
T.fill(row, -T.infinity("float32"))
for k in T.Pipelined(steps, num_stages=2):
    T.copy(b[table[k], 0], b_shared)
    T.gemm(a_shared, b_shared, scores, transpose_B=True, clear_accum=True)
    T.reduce_max(scores, row, dim=1, clear=False)
    for i, j in T.Parallel(BLOCK, BLOCK):
        scores[i, j] = T.exp2(scores[i, j] - T.max(row[i], 0.0))
    T.copy(scores, p)
    T.copy(p, p_shared)
    T.gemm(p_shared, b_shared, acc)
T.copy(acc, out[by * BLOCK, 0])
"""
READ_FIRST_FROM_FRAGMENT = """
T.clear(p_shared)
for k in T.Pipelined(steps, num_stages=2):
    T.copy(b[k * BLOCK, 0], b_shared)
    T.gemm(p_shared, b_shared, acc)
    T.copy(acc, p_shared)
"""
PREFETCH = """
T.copy(a[0, 0], a_shared)
for k in T.serial(8):
    T.gemm(a_shared, b_shared, acc)
    T.copy(a[0, k * BLOCK], a_shared)
"""
SERIAL = PREFETCH + "    T.copy(out[0, 0], acc)\n    T.copy(acc, out[0, 0])\n"
UNSTAGED = SERIAL.replace("T.serial(8)", "T.Pipelined(8, num_stages=NONE)")
PERSISTENT = """
for tile in T.serial(4):
    T.clear(acc)
    for k in T.Pipelined(8, num_stages=2):
        T.copy(a[tile * BLOCK, k * BLOCK], a_shared)
        T.copy(b[0, k * BLOCK], b_shared)
        T.gemm(a_shared, b_shared, acc)
    T.copy(acc, out[tile * BLOCK, 0])
"""
TWO_LOOPS = """
for k in T.Pipelined(8, num_stages=2):
    T.copy(a[0, k * BLOCK], a_shared)
    T.gemm(a_shared, a_shared, acc)
for k in T.Pipelined(8, num_stages=2):
    T.copy(b[0, k * BLOCK], b_shared)
    T.gemm(b_shared, b_shared, acc)
"""


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(GEMM, id="gemm"),
        pytest.param(ELEMENTWISE_LOADS, id="elementwise-loads"),
        pytest.param(ATTENTION, id="attention"),
        pytest.param(READ_FIRST_FROM_FRAGMENT, id="read-first-from-fragment"),
        pytest.param(SERIAL, id="serial"),
        pytest.param(UNSTAGED, id="no-stages"),
        pytest.param(UNSTAGED.replace(", num_stages=NONE", ""), id="default-stages"),
        pytest.param(PERSISTENT, id="persistent"),
        pytest.param(TWO_LOOPS, id="two-loops-of-their-own"),
    ],
)
def test_clean_kernels_have_no_findings(body):
    assert check_dataflow(source(body)) == ()
    assert lint_source(source(body)) == ()


FAULTS = {
    "read-before-copy": (
        "a_shared",
        "read on line",
        PREFETCH.replace("serial(8)", "Pipelined(0, 8, 1)"),
    ),
    "stages-unknown": (
        "a_shared",
        "read on line",
        PREFETCH.replace("serial(8)", "Pipelined(8, num_stages=stages)"),
    ),
    "stages-reassigned": (
        "a_shared",
        "read on line",
        "NONE = 2" + PREFETCH.replace("serial(8)", "Pipelined(8, num_stages=NONE)"),
    ),
    "stages-by-order": (
        "a_shared",
        "read on line",
        PREFETCH.replace("serial(8)", "Pipelined(8, order=[0, 1])"),
    ),
    "stages-listed": (
        "a_shared",
        "read on line",
        PREFETCH.replace("serial(8)", "Pipelined(8, stage=[0, 1])"),
    ),
    "elementwise-read-before-copy": (
        "a_shared",
        "read on line",
        """
        for k in T.Pipelined(8, num_stages=1):
            for i, j in T.Parallel(BLOCK, BLOCK):
                acc[i, j] += T.cast(a_shared[i, j], "float32")
            T.copy(a[0, k * BLOCK], a_shared)
        """,
    ),
    "read-before-elementwise-fill": (
        "a_shared",
        "read on line",
        """
        for k in T.Pipelined(8, num_stages=2):
            T.copy(a_shared, p)
            for i, j in T.Parallel(BLOCK, BLOCK):
                a_shared[i, j] = a[i, k * BLOCK + j]
        """,
    ),
    "filled-twice": (
        "a_shared",
        "read on line",
        """
        for k in T.Pipelined(8, num_stages=2):
            T.copy(a[0, k * BLOCK], a_shared)
            T.gemm(a_shared, p_shared, acc)
            T.copy(src=b[0, k * BLOCK], dst=a_shared)
            T.gemm(a_shared, p_shared, acc)
        """,
    ),
    "read-by-a-macro": (
        "a_shared",
        "read on line",
        """
        for k in T.Pipelined(8, num_stages=2):
            rescale(acc, a_shared)
            T.copy(a[0, k * BLOCK], a_shared)
        """,
    ),
    "read-by-an-unknown-operation": (
        "a_shared",
        "read on line",
        """
        for k in T.Pipelined(8, num_stages=2):
            if k > 0:
                T.mystery(a_shared[0, 0])
            T.copy(a[0, k * BLOCK], a_shared)
        """,
    ),
    "read-through-a-view": (
        "a_shared",
        "read on line",
        """
        view = T.reshape(a_shared, (BLOCK * BLOCK,))
        for k in T.Pipelined(8, num_stages=2):
            for i in T.Parallel(BLOCK):
                row[i] = T.cast(view[i], "float32")
            T.copy(a[0, k * BLOCK], a_shared)
        """,
    ),
    "read-by-a-call-that-is-subscripted": (
        "a_shared",
        "read on line",
        """
        for k in T.Pipelined(8, num_stages=2):
            row[k] = f(a_shared)[0]
            T.copy(a[0, k * BLOCK], a_shared)
        """,
    ),
    "preloaded": (
        "a_shared",
        "outside of the loop",
        """
        T.copy(a[0, 0], a_shared)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(a[0, k * BLOCK], a_shared)
            T.gemm(a_shared, p_shared, acc)
        """,
    ),
    "filled-after-the-loop-and-again": (
        "a_shared",
        "outside of the loop",
        """
        for tile in T.serial(4):
            for k in T.Pipelined(8, num_stages=2):
                T.copy(a[0, k * BLOCK], a_shared)
                T.gemm(a_shared, p_shared, acc)
            T.copy(b[0, 0], a_shared)
        """,
    ),
    "global-stored-and-loaded": (
        "out",
        "by one pipelined body",
        """
        for k in T.Pipelined(8, num_stages=2):
            T.copy(out[0, 0], acc)
            T.copy(acc, out[0, 0])
        """,
    ),
    "global-elements-stored-and-loaded": (
        "out",
        "by one pipelined body",
        """
        for k in T.Pipelined(8, num_stages=2):
            for i in T.Parallel(BLOCK):
                out[k, i] += row[i]
        """,
    ),
    "global-updated-atomically-and-loaded": (
        "out",
        "by one pipelined body",
        """
        for k in T.Pipelined(8, num_stages=2):
            T.copy(out[0, 0], p_shared)
            for i in T.Parallel(BLOCK):
                T.atomic_add(out[0, i], row[i])
        """,
    ),
    "global-handed-to-an-unknown-operation": (
        "out",
        "by one pipelined body",
        """
        for k in T.Pipelined(8, num_stages=2):
            T.call_extern("handle", "f", out)
        """,
    ),
    "global-region-handed-to-an-unknown-operation": (
        "out",
        "by one pipelined body",
        """
        for k in T.Pipelined(8, num_stages=2):
            T.mystery(out[k, 0])
        """,
    ),
    "global-handed-to-an-unknown-function": (
        "out",
        "by one pipelined body",
        """
        for k in T.Pipelined(8, num_stages=2):
            row[k] = f(1, table=out)
        """,
    ),
    "tile-of-two-loops": (
        "a_shared",
        "filled by the pipelined loop on line",
        TWO_LOOPS.replace("T.gemm(b_shared, b_shared", "T.gemm(b_shared, a_shared"),
    ),
    "tile-of-two-loops-one-unstaged": (
        "a_shared",
        "filled by the pipelined loop on line",
        """
        for k in T.Pipelined(8, num_stages=0):
            T.gemm(a_shared, p_shared, acc)
        for k in T.Pipelined(8, num_stages=2):
            T.copy(a[0, k * BLOCK], a_shared)
            T.gemm(a_shared, p_shared, acc)
        """,
    ),
}


@pytest.mark.parametrize(("buffer", "words", "body"), FAULTS.values(), ids=FAULTS)
def test_each_dataflow_fault_is_found_once(buffer, words, body):
    (finding,) = check_dataflow(source(body))
    assert (finding.rule, finding.buffer) == ("pipelined-dataflow", buffer)
    assert words in finding.message
    assert buffer in source(body).splitlines()[finding.line - 1]


def test_only_stores_or_only_atomics_are_no_race():
    body = """
    for k in T.Pipelined(8, num_stages=2):
        T.atomic_add(out[k, 0], row)
        T.copy(acc, out[k, 0])
    """
    assert check_dataflow(source(body)) == ()


def with_macro(name: str, statement: str, body: str) -> str:
    """Return such a file with a macro of ``(at, name)`` before the kernel."""
    macro = f"@T.macro\ndef macro(at, {name}):\n    {statement}\n\n\n"
    return source(body).replace("@T.prim_func", f"{macro}@T.prim_func")


@pytest.mark.parametrize(
    ("statement", "writes"),
    [
        ("return T.if_then_else(bias[at] > 0, T.exp(bias[at]), 0.0)", False),
        ("bias[at] = 0.0", True),
        ("bias[at] += 1.0", True),
        ("T.clear(bias)", True),
        ("_ = T.copy(bias, bias)", True),
        ("return T.atomic_add(bias[at], 1.0, return_prev=True)", True),
        ("return other(bias)", True),
        ('return T.call_extern("float32", "f", bias.data)', True),
    ],
    ids=["reads", "stores", "adds", "clears", "copies", "atomic", "another", "opaque"],
)
def test_a_macro_that_only_reads_writes_none_of_its_arguments(statement, writes):
    body = """
    for k in T.Pipelined(8, num_stages=2):
        x = macro(k, bias)
    """
    found = check_dataflow(with_macro("bias", statement, body))
    assert [finding.buffer for finding in found] == ["bias"] * writes


@pytest.mark.parametrize(("name", "findings"), [("table", 0), ("bias", 1)])
def test_a_macro_knows_the_types_of_what_it_is_handed_by_name(name, findings):
    text = with_macro(name, f"return T.max({name}[at], 0)", f"x = macro(0, {name})")
    assert len(lint_source(text)) == findings


def test_scalar_parameters_are_no_buffers():
    body = """
    for k in T.Pipelined(T.ceildiv(steps, 2), num_stages=2):
        T.copy(a[T.min(steps, k), 0], a_shared)
        f(steps)
        T.gemm(a_shared, p_shared, acc)
    """
    assert check_dataflow(source(body)) == ()
    assert lint_source(source(body)) == ()


LINTS = {
    "max": ("nan-max", "T.max", "acc[0, 0] = T.max(acc[0, 0], 0.0)"),
    "min-of-a-name": ("nan-max", "T.min", "x = acc[0, 0]\ny = x * 2.0\nacc[0, 0] = T.min(y, 6.0)"),
    "reduce-sum": ("reduce-16bit", "p", "T.reduce_sum(p, row, dim=1)"),
    "reduce": ("reduce-16bit", "p", 'T.reduce(buffer=p, out=row, reduce_type="max", dim=1)'),
    "alloc-global": ("alloc-global", "T.alloc_global", 'w = T.alloc_global((8,), "float32")'),
    "exp": ("transcendental-16bit", "bias", "acc[0, 0] = T.exp(bias[0])"),
    "tanh": ("transcendental-16bit", "b", "acc[0, 0] = T.tanh(b[0, 0] * T.bfloat16(2))"),
    "log-cast-late": ("transcendental-16bit", "p", 'row[0] = T.cast(T.log(p[0, 0]), "float32")'),
    "exp2-cast-down": ("transcendental-16bit", "p", "row[0] = T.exp2(T.cast(p[0, 0], HALF))"),
    "columns": ("sliced-copy", "a_shared", "T.copy(a_shared[:, 32:64], p)"),
    "first-element": ("sliced-copy", "a_shared", "T.copy(a_shared[0, 32], p[:, :])"),
    "by-name": ("sliced-copy", "b_shared", "T.copy(dst=p, src=b_shared[32:64, :])"),
}


@pytest.mark.parametrize(("rule", "buffer", "body"), LINTS.values(), ids=LINTS)
def test_each_lint_finds_its_fault(rule, buffer, body):
    (finding,) = lint_source(source(body))
    assert (finding.rule, finding.buffer) == (rule, buffer)
    assert finding.rule in RULE_IDS
    assert finding.line == source(body).count("\n")
    assert str(finding).startswith(f"line {finding.line}: [{rule}] {buffer}: ")


@pytest.mark.parametrize(
    "body",
    [
        "row[0] = T.clamp(acc[0, 0], 0.0, 6.0)",
        "last = T.min(steps, T.max(table[0], 8))",
        "T.reduce_sum(acc, row, dim=1)",
        'row[0] = T.exp(T.cast(bias[0], "float32"))',
        'row[0] = T.exp2(T.cast(p[0, 0], dtype="float32") * acc[0, 0])',
        "row[0] = T.tanh(acc[0, 0])",
        "T.copy(a_shared, p)",
        "T.copy(p, a_shared[:, 32:64])",
        "T.copy(a[0:64, 0:64], p)",
        "T.copy(a_shared[:, :], b_shared)",
    ],
)
def test_lints_leave_sound_operations_alone(body):
    assert lint_source(source(body)) == ()


def test_findings_come_by_line():
    body = (
        "acc[0, 0] = T.exp(bias[0])\nacc[0, 0] = T.max(acc[0, 0], 0.0)\nacc[0, 1] = T.exp(bias[1])"
    )
    found = lint_source(source(body))
    assert [finding.line for finding in found] == sorted(finding.line for finding in found)
    assert len(found) == 3


def test_code_outside_of_a_prim_func_is_not_read():
    text = source("T.clear(acc)") + "\n\ndef main():\n    return T.max(a[0], b[0])\n"
    assert lint_source(text) == () == check_dataflow(text)


def test_text_that_is_not_python_is_refused():
    with pytest.raises(SyntaxError):
        check_dataflow("def (")


def test_a_read_after_a_store_of_the_same_parallel_body_is_named():
    body = (
        "for i, j in T.Parallel(64, 64):\n"
        "    acc[i, j] = acc[i, j] + bias[j]\n"
        "    acc[i, j] = acc[i, j] * 2.0"
    )
    (found,) = lint_source(source(body))
    assert (found.rule, found.buffer) == ("stale-read", "acc")


def test_a_macro_s_tiles_are_known_by_their_names():
    """H29: what came in a tuple has no allocation to see."""
    body = (
        "@T.macro\n"
        "def consume(tiles, part):\n"
        "    q_shared, other = tiles\n"
        "    T.copy(other[:, 64:128], part)\n"
        "    T.copy(q_shared[:, 64:128], part)"
    )
    found = {(finding.rule, finding.line, finding.buffer) for finding in lint_source(source(body))}
    assert found == {("sliced-copy", source(body).count("\n"), "q_shared")}


def test_one_store_a_parallel_body_reads_freely():
    body = (
        "for i, j in T.Parallel(64, 64):\n"
        "    x = acc[i, j]\n"
        "    acc[i, j] = x * x + acc[i, j]\n"
        "for i, j in T.Parallel(64, 64):\n"
        "    acc[i, j] = acc[i, j] * 2.0"
    )
    assert lint_source(source(body)) == ()
