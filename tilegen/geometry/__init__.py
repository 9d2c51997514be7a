"""Derived facts of a program, one module a family: grid, threads, shared memory, index text."""
