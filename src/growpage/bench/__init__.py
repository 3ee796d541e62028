"""Benchmarks: workloads, runs, figures and reports."""
