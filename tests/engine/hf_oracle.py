"""What a budgeted engine should say, worked out a second time in plain Hugging Face transformers.

Written from the description of the algorithm and sharing no code with growpage: the model is
transformers' own in float32, the cache is one that this module cuts, and everything about budgets
is plain loops and NumPy in float64. One request at a time, no pages, no batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import DynamicCache, LlamaForCausalLM

SHORT, LONG = 0, 1


@dataclass(frozen=True)
class Rules:
    """How a request's cache is kept small. Sizes are in tokens, ``capacity`` too."""

    page: int
    capacity: int | None
    """Where the first boundary lies; none for plain transformers, which evicts nothing."""
    may_grow: bool = False
    """At a boundary, false: always evict (`fixed`); true: grow if ``delta > tau`` (`growpage`)."""
    score: str = "window"
    sink: int = 4
    protect_prompt: bool = False
    recent: int = 16
    window: int = 16
    page_quota: int = 8
    """Tokens that every page keeps."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the short and of the long query average."""
    mass: float = 0.9
    tau: float = 0.0
    warmup: int = 16


@dataclass
class Trace:
    """What happened to one request."""

    greedy: list[int] = field(default_factory=list)
    """The likeliest token at each place, given the tokens said before."""
    gaps: list[float] = field(default_factory=list)
    """How far the logit of the token that was said lies below the highest one."""
    logprobs: list[float] = field(default_factory=list)
    """Log-probability of the token that was said."""
    evicted: int = 0
    compressions: int = 0
    growths: int = 0
    deltas: list[float | None] = field(default_factory=list)
    """``D_p(short) - D_p(long)`` at each boundary; none while the averages were cold."""


class Oracle:
    """A float32 Llama model whose queries are watched."""

    def __init__(self, folder: Path | str) -> None:
        self.model: Any = LlamaForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        config = self.model.config
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.dim: int = config.head_dim
        self.theta: float = config.rope_parameters["rope_theta"]
        # Each layer's queries of the last forward pass, before RoPE: [tokens, heads, dim].
        self.queries: list[np.ndarray] = [np.empty(0)] * self.layers
        for index, layer in enumerate(self.model.model.layers):
            layer.self_attn.q_proj.register_forward_hook(partial(self._watch, index))

    def _watch(self, layer: int, _module: Any, _inputs: Any, output: torch.Tensor) -> None:
        self.queries[layer] = output[0].view(-1, self.heads, self.dim).double().numpy()

    def generate(self, prompt: list[int], new_tokens: int, rules: Rules) -> tuple[list[int], Trace]:
        """Say the likeliest token, ``new_tokens`` times, one forward pass each."""
        request = _Request(self, rules, prompt)
        said: list[int] = []
        logits = request.forward(prompt)[-1:]
        while True:
            said.append(int(logits.argmax()))
            request.note(logits, said[-1:])
            if len(said) == new_tokens:
                return said, request.trace
            request.meet_boundary()
            logits = request.forward(said[-1:])

    def follow(self, prompt: list[int], answer: list[int], rules: Rules) -> Trace:
        """Let the model read ``answer`` as if it had said it, and see what it would have said.

        By induction ``trace.greedy == answer`` if and only if :meth:`generate` says ``answer``. All
        tokens up to the next event take one forward pass, so this is much faster; and it goes on
        comparing after a near tie.
        """
        request = _Request(self, rules, prompt)
        request.note(request.forward(prompt)[-1:], answer[:1])
        read = 0
        while read < len(answer) - 1:
            request.meet_boundary()
            chunk = answer[read : min(read + request.room(), len(answer) - 1)]
            logits = request.forward(chunk)
            read += len(chunk)
            request.note(logits, answer[read - len(chunk) + 1 : read + 1])
        return request.trace


class _Request:
    """One request's cache, and what is remembered of its queries."""

    def __init__(self, oracle: Oracle, rules: Rules, prompt: list[int]) -> None:
        self.oracle = oracle
        self.rules = rules
        self.trace = Trace()
        self.cache = DynamicCache(config=oracle.model.config)
        self.prompt_tokens = len(prompt)
        self.prompt_whole = True
        self.capacity = rules.capacity
        self.position = 0  # logical: tokens read so far
        self.cached = 0  # physical: tokens in the cache, the same for all layers and heads
        self.decoded = 0
        shape = (oracle.layers, oracle.heads, oracle.dim)
        self.recent_queries = np.empty((0, *shape))  # before RoPE
        self.averages = np.zeros((2, *shape))
        self.delta: float | None = None

    def forward(self, tokens: list[int]) -> torch.Tensor:
        """Read ``tokens`` at their logical positions: the logits after each."""
        positions = torch.arange(self.position, self.position + len(tokens))
        with torch.inference_mode():
            output = self.oracle.model(
                torch.tensor([tokens]), past_key_values=self.cache, position_ids=positions[None]
            )
        queries = np.stack(self.oracle.queries, axis=1)  # [tokens, layers, heads, dim]
        for offset, query in enumerate(queries):
            if self.position + offset >= self.prompt_tokens:
                self.decoded += 1
                for which, beta in enumerate(self.rules.betas):
                    self.averages[which] = (1 - beta) * query + beta * self.averages[which]
        self.recent_queries = np.concatenate((self.recent_queries, queries))[-self.rules.window :]
        self.position += len(tokens)
        self.cached += len(tokens)
        if self.rules.may_grow and self.cached + 1 == self.capacity:
            self.delta = self.measure() if self.decoded >= self.rules.warmup else None
        return output.logits[0]

    def room(self) -> int:
        """Tokens that can be read before something has to be measured or evicted."""
        if self.capacity is None:
            return 1 << 30
        left = self.capacity - self.cached
        return left - 1 if self.rules.may_grow and left > 1 else left

    def note(self, logits: torch.Tensor, said: list[int]) -> None:
        """Take down what was likeliest, and how likely was what was ``said``."""
        chosen = logits.gather(-1, torch.tensor(said)[:, None])[:, 0]
        self.trace.greedy += logits.argmax(dim=-1).tolist()
        self.trace.gaps += (logits.amax(dim=-1) - chosen).tolist()
        self.trace.logprobs += (chosen - logits.logsumexp(dim=-1)).tolist()

    # ---- boundaries --------------------------------------------------------------------------

    def meet_boundary(self) -> None:
        """Before the next decode token is read: if the capacity is full, grow or evict."""
        if self.capacity is None or self.cached < self.capacity:
            return
        if self.rules.may_grow:
            self.trace.deltas.append(self.delta)
            if self.delta is None or self.delta > self.rules.tau:
                self.capacity += self.rules.page
                self.trace.growths += 1
                return
        keep = self.capacity - self.rules.page
        prefix = self.rules.sink
        protects = self.rules.protect_prompt and self.prompt_whole
        if protects and self.prompt_tokens + self.rules.recent <= keep:
            prefix = max(self.prompt_tokens, prefix)
        self.prompt_whole = prefix >= self.prompt_tokens
        self.evict(keep, prefix)

    def evict(self, keep: int, prefix: int) -> None:
        """Cut every layer and KV head down to its own ``keep`` tokens, in ascending order."""
        for number, layer in enumerate(self.cache.layers):
            keys, values = layer.keys[0], layer.values[0]  # [kv_heads, tokens, dim]
            survivors = []
            for head in range(self.oracle.kv_heads):
                scores = self.score(number, head, keys[head], values[head])
                survivors.append(torch.tensor(choose(scores, keep, prefix, self.rules)))
            layer.keys, layer.values = (
                torch.stack(
                    [of_head[kept] for of_head, kept in zip(content, survivors, strict=True)]
                )[None]
                for content in (keys, values)
            )
        self.trace.compressions += 1
        self.trace.evicted += self.cached - keep
        self.cached = keep

    def score(self, layer: int, head: int, keys: torch.Tensor, values: torch.Tensor) -> list[float]:
        """How much each cached token of one KV head is worth."""
        if self.rules.score == "streaming":
            return [float(token) for token in range(self.cached)]
        if self.rules.score == "summary" and self.decoded:
            weights = [
                self.attention(layer, head, average, self.position, keys)
                for average in self.corrected_averages()
            ]
            worth = np.max(weights, axis=(0, 1))  # over both averages and the group
        else:
            count = len(self.recent_queries)
            weights = []
            for index, query in enumerate(self.recent_queries):
                # Each query sees the keys up to its own token; what came later it gives nothing.
                later = count - 1 - index
                seen = keys[: len(keys) - later]
                of_group = self.attention(layer, head, query, self.position - 1 - later, seen)
                weights.append(np.pad(of_group, ((0, 0), (0, later))))
            worth = np.mean(np.max(weights, axis=1), axis=0)  # over the group, then the window
        norms = np.linalg.norm(values.double().numpy(), axis=-1)
        return (worth * norms).tolist()

    # ---- attention ---------------------------------------------------------------------------

    def attention(
        self, layer: int, head: int, query: np.ndarray, position: int, keys: torch.Tensor
    ) -> np.ndarray:
        """What the query heads of a KV head's group see: [group, tokens]."""
        group = self.oracle.heads // self.oracle.kv_heads
        rows = []
        for query_head in range(head * group, (head + 1) * group):
            turned = rotate(query[layer, query_head], position, self.oracle.theta)
            logits = keys.double().numpy() @ turned / np.sqrt(self.oracle.dim)
            weights = np.exp(logits - logits.max())
            rows.append(weights / weights.sum())
        return np.stack(rows)

    def corrected_averages(self) -> list[np.ndarray]:
        """The short and the long average without the bias of having started at zero."""
        return [
            average / (1 - beta**self.decoded)
            for average, beta in zip(self.averages, self.rules.betas, strict=True)
        ]

    def measure(self) -> float:
        """``D_p(short) - D_p(long)``, both averaged over layers and query heads."""
        widths: tuple[list[int], list[int]] = ([], [])
        for which, average in enumerate(self.corrected_averages()):
            for number, layer in enumerate(self.cache.layers):
                for head in range(self.oracle.kv_heads):
                    keys = layer.keys[0, head]
                    for row in self.attention(number, head, average, self.position, keys):
                        widths[which].append(width(row, self.rules.mass))
        return float(np.mean(widths[SHORT]) - np.mean(widths[LONG]))


def rotate(vector: np.ndarray, position: int, theta: float) -> np.ndarray:
    """RoPE as Llama has it: dimension ``i`` turns together with ``i + dim / 2``."""
    half = len(vector) // 2
    angles = position * theta ** (-np.arange(half) / half)
    x, y = vector[:half], vector[half:]
    return np.concatenate(
        (x * np.cos(angles) - y * np.sin(angles), y * np.cos(angles) + x * np.sin(angles))
    )


def width(attention: np.ndarray, mass: float) -> int:
    """The least number of tokens that together hold ``mass`` of the attention."""
    held = 0.0
    for count, weight in enumerate(sorted(attention.tolist(), reverse=True), start=1):
        held += weight
        if held >= mass:
            return count
    return len(attention)


def choose(scores: list[float], keep: int, prefix: int, rules: Rules) -> list[int]:
    """The tokens that stay: first and last ones, the best of each page, the best of the rest."""
    tokens = len(scores)
    kept = set(range(prefix)) | set(range(tokens - rules.recent, tokens))
    pages = [
        range(first, min(first + rules.page, tokens)) for first in range(0, tokens, rules.page)
    ]
    quota = rules.page_quota
    while sum(min(quota, len(set(page) - kept)) for page in pages) > keep - len(kept):
        quota -= 1  # it must fit whichever tokens are the best of their pages
    for page in pages:
        kept.update(sorted(page, key=lambda token: scores[token], reverse=True)[:quota])
    for token in sorted(range(tokens), key=lambda token: scores[token], reverse=True):
        if len(kept) == keep:
            break
        kept.add(token)
    return sorted(kept)
