"""Schedules: how a spec is computed, one module a family."""
