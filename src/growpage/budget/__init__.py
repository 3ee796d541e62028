"""The algorithm: query summaries, working sets, eviction scores, survivor selection, policies.

Pure functions and small classes on tensors; nothing here knows about vLLM.
"""
