"""Triton kernels for what :mod:`growpage.budget` does in plain torch, which is their reference.

Needs torch and Triton alone. Importing this package imports neither, its modules import both, so
they are imported only where a kernel is launched. The caches that the kernels read and write are
``[layers, pages, kv_heads, page_tokens, 2 * dim]``, each token's key before its value, as vLLM's
logical ``[L, B, H, N, C]``; in memory the axes but the last may lie in any order.
"""
