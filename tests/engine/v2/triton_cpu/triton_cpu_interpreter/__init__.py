"""A Triton backend called ``cpu`` that compiles nothing: kernels run in Triton's interpreter.

vLLM's CPU build offers Model Runner V2 only where Triton has such a backend, and Triton's wheels
have none. With this folder's parent on the path and ``TRITON_INTERPRET=1``, V2's own kernels run.
"""
