"""The features of vLLM's server under a budget that compresses every answer, and a short soak.

All tests share one server. Its requests hold at most three pages of 32 tokens, so that whoever has
more than 96 tokens has been compressed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion

from growpage.bench.server import Server, serve
from growpage.bench.soak import (
    AT_REST,
    BLOCK,
    ENVIRONMENT,
    MAX_MODEL_LEN,
    POOL_PAGES,
    Kind,
    Load,
    Outcome,
    server_flags,
    soak,
)
from growpage.models.smollm2 import DEFAULT_MODEL_NAME as MODEL

pytestmark = pytest.mark.engine

MAX_PAGES = 3
LONG = 4 * BLOCK
"""Tokens of an answer that does not fit in ``MAX_PAGES``."""
SOAK_SECONDS = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, smollm2_path: object) -> Iterator[Server]:
    flags = ["--growpage-policy", "elastic", "--growpage-min-pages", "2"]
    flags += ["--growpage-max-pages", str(MAX_PAGES), *server_flags()]
    # Compact JSON: a small model may go on with white space for ever.
    outputs = {"backend": "xgrammar", "disable_any_whitespace": True}
    flags += ["--structured-outputs-config", json.dumps(outputs)]
    log = tmp_path_factory.mktemp("under-load") / "server.log"
    with serve(flags, log, {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=120
    )


@pytest.fixture
def complete(client: openai.OpenAI) -> Callable[..., Completion]:
    """A greedy completion of ``LONG`` tokens, unless asked for something else."""

    def send(prompt: str | list[int], **changes: Any) -> Completion:
        settings: dict[str, Any] = {"max_tokens": LONG, "temperature": 0} | changes
        return client.completions.create(
            model=MODEL, prompt=prompt, extra_body={"ignore_eos": True}, **settings
        )

    return send


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 30) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s:g} seconds: {what}"
        time.sleep(0.1)


def wait_for_rest(server: Server) -> None:
    wait_until(
        lambda: AT_REST.items() <= server.metrics().items(), "no request, and no page in use"
    )


def held_pages(server: Server) -> int:
    return round(server.metrics()["vllm:kv_cache_usage_perc"] * POOL_PAGES)


def test_a_long_answer_holds_no_more_than_its_budget(
    server: Server, complete: Callable[..., Completion]
) -> None:
    before = server.metrics()["growpage_request_pages_sum"]
    complete("Write a long list of animals:")
    metrics = server.metrics()
    assert metrics["growpage_request_pages_sum"] - before == MAX_PAGES
    assert metrics["growpage_compressions_total"] > 0


def test_several_answers_to_one_prompt(complete: Callable[..., Completion]) -> None:
    answer = complete("Once upon a time", n=3, temperature=1.0, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.text for choice in answer.choices}) == 3
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert answer.usage and answer.usage.completion_tokens == 3 * LONG


def test_log_probabilities_of_every_token(complete: Callable[..., Completion]) -> None:
    choice = complete("Once upon a time", logprobs=3).choices[0]
    found = choice.logprobs
    assert found and found.tokens and found.token_logprobs and found.top_logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == LONG
    assert "".join(found.tokens) == choice.text
    for chosen, best in zip(found.token_logprobs, found.top_logprobs, strict=True):
        assert len(best) == 3
        assert chosen == max(best.values()) <= 0  # greedy


def test_an_answer_ends_before_its_stop_string(complete: Callable[..., Completion]) -> None:
    prompt = "Write about the sea."
    # Sampled: a greedy answer soon repeats itself, and has no string that comes late.
    sampling = {"temperature": 1.0, "seed": 1}
    text = complete(prompt, **sampling).choices[0].text
    # The first stretch of the last quarter that did not occur before.
    stop = next(
        text[at : at + 6]
        for at in range(3 * len(text) // 4, len(text))
        if text.index(text[at : at + 6]) == at
    )
    choice = complete(prompt, stop=[stop], **sampling).choices[0]
    assert choice.finish_reason == "stop"
    assert choice.text == text[: text.index(stop)]


def test_an_answer_by_json_schema(client: openai.OpenAI) -> None:
    number, kinds = 24, ["cat", "dog", "horse", "elephant"]
    schema = {
        "type": "object",
        "properties": {
            "animals": {
                "type": "array",
                "items": {"enum": kinds},
                "minItems": number,
                "maxItems": number,
            },
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["animals", "count"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "List animals as JSON."}],
        max_tokens=600,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "animals", "schema": schema},
        },
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert found.keys() == {"animals", "count"}
    assert len(found["animals"]) == number
    assert set(found["animals"]) <= set(kinds)
    assert answer.usage and answer.usage.total_tokens > MAX_PAGES * BLOCK


def test_an_answer_by_choice(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL,
        prompt="Is the sky blue? Answer:",
        max_tokens=8,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
    )
    assert answer.choices[0].text in ("yes", "no")


def test_a_client_that_hangs_up_leaves_nothing_behind(
    server: Server, client: openai.OpenAI
) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt="Write a long list of rivers:",
        max_tokens=1000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _ in zip(range(BLOCK), stream, strict=False):
        pass
    assert held_pages(server) > 0
    stream.close()
    wait_for_rest(server)


def test_a_client_that_gives_up_waiting_leaves_nothing_behind(server: Server) -> None:
    body = {"model": MODEL, "prompt": "Count:", "max_tokens": 1000, "ignore_eos": True}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.address}/v1/completions", json=body, timeout=3)
    wait_for_rest(server)


def test_a_prompt_over_the_longest_length_is_a_bad_request(
    complete: Callable[..., Completion],
) -> None:
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {MAX_MODEL_LEN}"):
        complete([1000] * (MAX_MODEL_LEN + 1))


def test_a_prompt_over_the_pool_fails_and_the_log_says_why(
    server: Server, complete: Callable[..., Completion]
) -> None:
    tokens = POOL_PAGES * BLOCK + 1
    with pytest.raises(openai.InternalServerError):
        complete([1000] * tokens)
    with pytest.raises(openai.APIError):
        list(complete([1000] * tokens, stream=True))
    lines = [line for line in server.log.read_text().splitlines() if "growpage: request" in line]
    assert len(lines) == 2
    assert all(f"fails: the prompt has {tokens} tokens" in line for line in lines)
    wait_for_rest(server)


def test_a_soak(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    report = asyncio.run(soak(server, Load(seconds=SOAK_SECONDS)))
    with capsys.disabled():
        console = Console()
        for table in report.tables():
            console.print(table)
    assert report.problems == []
    assert report.ended[Kind.WHOLE, Outcome.FINISHED] > 0
    assert report.ended[Kind.STREAM, Outcome.FINISHED] > 0
    assert report.ended[Kind.HANG_UP, Outcome.ABORTED] > 0
    assert report.peak_usage > 0.9
