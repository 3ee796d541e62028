"""Requests that are drawn, and those of a file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from growpage.bench.throughput import bench_serve
from growpage.bench.throughput.load import ClosedLoop, Lengths, LoadRequest, OpenLoop
from growpage.bench.throughput.requests import draw_requests, load_tokenizer, read_requests
from growpage.budget.errors import ConfigError

TEN = Lengths(10, 10)


class Words:
    """A token is a word."""

    def __init__(self) -> None:
        self._words: list[str] = []

    def __call__(self, text: str) -> SimpleNamespace:
        words = text.split()
        self._words += [word for word in words if word not in self._words]
        return SimpleNamespace(input_ids=[self._words.index(word) for word in words])

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        return " ".join(self._words[token] for token in token_ids)


def draw(seed: int) -> list[LoadRequest]:
    return draw_requests(Words(), 20, Lengths(5, 80), Lengths(16, 256, log=True), seed)


def test_drawn_requests_have_the_lengths_that_were_asked_for() -> None:
    requests = draw(seed=1)
    assert len({each.id for each in requests}) == 20
    for each in requests:
        assert 5 <= len(each.prompt_token_ids) == len(each.prompt.split()) <= 80
        assert 16 <= each.output_tokens <= 256
        assert each.tokens == len(each.prompt_token_ids) + each.output_tokens
    assert len({each.output_tokens for each in requests}) > 10
    assert len({each.prompt for each in requests}) == 20


def test_the_seed_decides_everything() -> None:
    assert draw(seed=1) == draw(seed=1)
    assert draw(seed=1) != draw(seed=2)


def test_a_real_tokenizer_sees_in_the_text_what_the_engine_gets(smollm2_path: Path) -> None:
    tokenizer = load_tokenizer(smollm2_path)
    for each in draw_requests(tokenizer, 8, Lengths(5, 80), TEN, seed=0):
        assert tokenizer(each.prompt).input_ids == each.prompt_token_ids
        assert 4 <= len(each.prompt_token_ids) <= 81


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path} has no tokenizer; name a folder that has"):
        load_tokenizer(tmp_path)


def lines(file: Path, *rows: object) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_requests_of_a_file(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "requests.jsonl",
        {"question": "How many?", "answer": "7"},
        {"prompt": "Tell me more", "max_tokens": 99},
        {"prompt": "And now?"},
    )
    file.write_text(file.read_text() + "\n")
    found = read_requests(Words(), file, None, TEN, seed=0)
    assert [each.prompt for each in found] == ["How many?", "Tell me more", "And now?"]
    assert [each.output_tokens for each in found] == [10, 99, 10]
    assert read_requests(Words(), file, 2, TEN, seed=0) == found[:2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "x"}], r"line 1, has no text as 'prompt' or 'question'"),
        ([{"prompt": "x"}, ["x"]], r"line 2, has no text as"),
        ([{"prompt": "x", "max_tokens": 0}], r"line 1: max_tokens is 0, but must be an integer"),
        ([{"prompt": "x", "max_tokens": "9"}], r"line 1: max_tokens is '9', but must be"),
        ([], r"holds 0 requests, and 3 were asked for"),
        ([{"prompt": "x"}], r"holds 1 requests, and 3 were asked for"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, rows: list[object], message: str) -> None:
    file = lines(tmp_path / "requests.jsonl", *rows)
    with pytest.raises(ConfigError, match=message):
        read_requests(Words(), file, 3, TEN, seed=0)


def test_a_file_that_is_no_json_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    with pytest.raises(ConfigError, match=r"cannot read the requests in .*requests\.jsonl"):
        read_requests(Words(), file, None, TEN, seed=0)
    file.write_text("{")
    with pytest.raises(ConfigError, match="line 1, is no JSON"):
        read_requests(Words(), file, None, TEN, seed=0)


def test_vllms_own_benchmark_gets_the_same_requests_in_the_same_order() -> None:
    requests = draw(seed=3)
    assert [json.loads(line) for line in bench_serve.dataset(requests).splitlines()] == [
        {"prompt": each.prompt, "output_tokens": each.output_tokens} for each in requests
    ]


@pytest.mark.parametrize(
    ("load", "pace"),
    [
        (ClosedLoop(clients=8), "--max-concurrency 8"),
        (OpenLoop(rate=2.5, burstiness=0.5, seed=3), "--request-rate 2.5 --burstiness 0.5"),
    ],
)
def test_vllms_own_benchmark_gets_the_same_pace(load: ClosedLoop | OpenLoop, pace: str) -> None:
    script = bench_serve.script([load], 20, 3, model="m", tokenizer="/a folder")
    command = script.splitlines()[-1]
    assert command.startswith('${BENCH_SERVE:-vllm bench serve} --base-url "$server" ')
    assert f" {pace} --seed 3 " in command
    assert "--tokenizer '/a folder'" in command
    assert "--num-prompts 20 --ignore-eos" in command
