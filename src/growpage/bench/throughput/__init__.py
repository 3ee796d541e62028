"""Tokens a second and latency of several contenders under the same load."""
