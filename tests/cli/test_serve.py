"""``growpage serve``: the OpenAI server of vLLM, started, used and stopped as an operator would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from tests.prometheus_server import free_port

pytestmark = pytest.mark.engine

MODEL = "SmolLM2-135M-Instruct"
PAGE_BYTES = 30 * 3 * 32 * 128 * 2


def processes_of(group: int) -> list[str]:
    """Command names of the processes that are left in a process group."""
    left = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        fields = rest.split()
        if int(fields[2]) == group and fields[0] != "Z":
            left.append(name)
    return left


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_path: Path) -> Iterator[str]:
    """The address of a server with the default model and a small budget; stopped by SIGTERM."""
    port = free_port()
    log = tmp_path_factory.mktemp("serve") / "server.log"
    environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("w") as sink:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "growpage", "serve"),
                *("--growpage-policy", "fixed", "--growpage-budget", "192"),
                *("--host", "127.0.0.1", "--port", str(port)),
                *("--block-size", "32", "--kv-cache-memory-bytes", str(PAGE_BYTES * 33)),
                *("--max-model-len", "1024", "--max-num-seqs", "8", "--enforce-eager"),
            ],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 240
            while True:
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < deadline, "the server did not start\n" + log.read_text()
                try:
                    if httpx.get(f"{address}/health", timeout=2).status_code == 200:
                        break
                except httpx.TransportError:
                    time.sleep(0.5)
            yield address
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            assert process.returncode in (0, -signal.SIGTERM)
            deadline = time.monotonic() + 20
            while processes_of(process.pid) and time.monotonic() < deadline:
                time.sleep(0.2)
            assert processes_of(process.pid) == []
        finally:
            if processes_of(process.pid):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def client(server: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0, timeout=120)


def complete(client: openai.OpenAI, prompt: str, tokens: int) -> str:
    answer = client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == tokens
    return answer.choices[0].text


def test_the_embedded_model_is_served_by_its_name(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Say hello."}],
        max_tokens=20,
        temperature=0,
    )
    assert "hello" in (answer.choices[0].message.content or "").lower()


def test_streamed_and_not_streamed_are_the_same(client: openai.OpenAI) -> None:
    prompt = "Write a long list of animals:"
    # Warm the prefix cache, so that both see the same one.
    complete(client, prompt, 8)
    whole = complete(client, prompt, 240)
    stream = client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=240,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    pieces = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert len(pieces) > 100
    assert "".join(pieces) == whole


def test_two_clients_at_once(server: str, client: openai.OpenAI) -> None:
    prompts = [f"Write a long list of {thing}:" for thing in ("plants", "rivers")]
    with ThreadPoolExecutor(2) as clients:
        answers = list(clients.map(lambda prompt: complete(client, prompt, 220), prompts))
    assert all(len(answer) > 220 for answer in answers)


def test_metrics_answer_and_the_pool_is_empty_at_the_end(server: str) -> None:
    text = httpx.get(f"{server}/metrics", timeout=10).text
    samples = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("vllm:")
    }
    assert re.search(r"^growpage_compressions_total\{.*\} [1-9]", text, re.MULTILINE), (
        "the answers were within their budget"
    )
    assert samples["vllm:num_preemptions_total"] == 0
    assert samples["vllm:kv_cache_usage_perc"] == 0
