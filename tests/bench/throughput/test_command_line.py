"""Bad input is one clear sentence, and nothing is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from growpage.bench.contenders import Contender
from growpage.bench.throughput.experiment import Experiment, pool_pages
from growpage.bench.throughput.load import ClosedLoop, LoadRequest
from growpage.budget.errors import ConfigError
from growpage.cli.app import app


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["bench", "throughput", *arguments])
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fixd"], "policy is 'fixd', but must be one of full, fixed"),
        (["plain", "plain"], "two contenders are called 'plain'"),
        (["--clients", "4", "--request-rate", "1"], "give either"),
        (["--request-rate", "-1"], "--request-rate is -1, but must be"),
        (["--output-tokens", "many"], "'many' says no lengths; write 128 (always)"),
        (["--pool", "half"], "--pool is 'half', but must be a number of pages, or a share"),
        (["--pool", "0%"], "--pool is '0%', but must be"),
        (["--pool", "-3"], "--pool is '-3', but must be"),
        (
            ["plain", "--pool", "2", "--output-tokens", "200"],
            "plain would have a pool of 2 pages, and the longest request alone needs ",
        ),
        (
            ["elastic", "--pool", "1", "--prompt-tokens", "100"],
            "elastic would have a pool of 1 pages, and the longest prompt alone needs 4",
        ),
        (["fixed:budget=50"], "fixed:budget=50: budget is 50, but must be at least 64"),
        (["--requests-file", "nowhere.jsonl"], "cannot read the requests in nowhere.jsonl"),
        (["--tokenizer", "/nowhere"], "/nowhere has no tokenizer"),
        (["a", "b", "--url", "http://localhost:1"], "--url is one server, and 2 contenders"),
        (["--server", "--url", "http://localhost:1"], "--server starts engines, and --url names"),
        (["--pool", "9", "--url", "http://localhost:1"], "--pool starts engines, and --url names"),
        (
            ["--dtype", "float32", "--url", "http://localhost:1"],
            "--dtype starts engines, and --url",
        ),
        (["--url", "nonsense"], "--url nonsense is no server of vLLM that answers"),
    ],
)
def test_a_wrong_command_line(
    arguments: list[str], message: str, smollm2_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    given = ["--model", str(smollm2_path), "--requests", "4", "--out", str(out)]
    assert message in refused(*arguments, *given)
    assert not out.exists()


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        assert f"--url {url} is no server of vLLM that answers" in refused("--url", url)


def experiment(*contenders: Contender) -> Experiment:
    requests = [
        LoadRequest(id=str(tokens), prompt="", prompt_token_ids=[0] * 22, output_tokens=tokens)
        for tokens in (10, 42, 106)  # 1, 2 and 4 pages
    ]
    return Experiment(
        contenders=contenders,
        requests=requests,
        loads=[ClosedLoop(clients=2)],
        pools=["50%", "5"],
        rounds=1,
        block_size=32,
        max_num_seqs=2,
    )


def test_pools_are_shares_of_what_the_load_needs_at_once() -> None:
    ours = Contender(name="ours", settings={"policy": "elastic"})
    own = Contender(name="own", settings={"policy": "elastic"}, pool="100%")
    made = experiment(ours, own)
    assert made.needed_pages == 6
    assert [setting.pool_pages for setting in made.settings()] == [3, 5]
    assert made.settings()[0].pool_share == 0.5
    assert made.pages_of(ours, "50%") == 3
    assert made.pages_of(own, "50%") == 6
    assert pool_pages("20%", 1000) == 200


def test_the_baseline_is_plain_vllm_or_the_first() -> None:
    ours = Contender(name="ours", settings={"policy": "elastic"})
    plain = Contender(name="stock", settings=None)
    assert experiment(ours, plain).baseline == "stock"
    assert experiment(ours).baseline == "ours"


def test_only_what_grows_to_its_full_length_needs_a_pool_for_it() -> None:
    with pytest.raises(ConfigError, match="stock would have a pool of 3 pages"):
        experiment(Contender(name="stock", settings=None)).check()
    experiment(Contender(name="ours", settings={"policy": "elastic"})).check()
