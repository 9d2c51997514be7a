"""Compiles what a module of GPU tests runs, before its first test."""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import tilegen as tg
from tilegen.compile import binary


def compile_all(programs):
    """Compile programs on all cores; their binaries stay in the cache on disk."""
    texts = {program.digest: tg.dumps(program) for program in programs}
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, texts.values()))


def _compile(text):
    binary(tg.loads(text))
