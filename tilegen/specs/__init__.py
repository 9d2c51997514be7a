"""Specs: what is computed, one module a family."""
