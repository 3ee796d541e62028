from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from growpage.bench.recorder import Recorder, evenly, free_pages, pages_by_request


class Scheduler:
    """Answers ``schedule`` from a script of (pages by request, scheduled, preempted)."""

    def __init__(self, script):
        self.script: Iterator = iter(script)
        self.held: dict[str, int] = {}
        self.requests = {
            name: SimpleNamespace(request_id=name, num_tokens=50, num_computed_tokens=0)
            for name in ("a-1", "b-2", "other")
        }
        self.waiting: list = []
        pool = SimpleNamespace(
            num_gpu_blocks=11, get_num_free_blocks=lambda: 10 - sum(self.held.values())
        )
        manager = SimpleNamespace(
            req_to_blocks={},
        )
        self.kv_cache_manager = SimpleNamespace(
            block_pool=pool, coordinator=SimpleNamespace(single_type_managers=(manager,))
        )

    @property
    def running(self):
        return [self.requests[name] for name in self.held]

    def schedule(self):
        self.held, scheduled, preempted = next(self.script)
        (manager,) = self.kv_cache_manager.coordinator.single_type_managers
        manager.req_to_blocks = {name: [None] * count for name, count in self.held.items()}
        for name in preempted:
            self.requests[name].num_computed_tokens = 0
        for name, (start, count) in scheduled.items():
            self.requests[name].num_computed_tokens = start + count
        return SimpleNamespace(
            num_scheduled_tokens={name: count for name, (_, count) in scheduled.items()},
            preempted_req_ids=set(preempted),
        )


def record(script) -> Recorder:
    scheduler = Scheduler(script)
    seconds = iter(range(100))
    recorder = Recorder(
        scheduler, names={"a-1": "a", "b-2": "b"}, clock=lambda: float(next(seconds))
    )
    recorder.attach()
    for _ in script:
        scheduler.schedule()
    recorder.detach()
    return recorder


def test_counts_pages_and_residents_over_all_steps():
    recorder = record(
        [
            ({"a-1": 2, "b-2": 4}, {}, ()),
            ({"a-1": 3}, {}, ()),
            ({"a-1": 3, "b-2": 0}, {}, ()),
        ]
    )
    assert recorder.steps == 3
    assert recorder.mean_pages == pytest.approx((2 + 4 + 3 + 3) / 4)
    assert recorder.peak_pages == 4
    assert recorder.peak_resident == 2
    assert recorder.mean_resident == pytest.approx(4 / 3)


def test_what_went_through_the_model_before_is_recomputed():
    recorder = record(
        [
            ({"a-1": 1}, {"a-1": (0, 30)}, ()),  # prompt
            ({"a-1": 1}, {"a-1": (30, 1)}, ()),
            ({"b-2": 1}, {"b-2": (0, 5)}, ("a-1",)),
            ({"a-1": 1}, {"a-1": (16, 10)}, ()),  # 16 from the prefix cache, in two chunks
            ({"a-1": 1}, {"a-1": (26, 6)}, ()),  # the last one is new
        ]
    )
    assert recorder.recomputed_tokens == 15
    assert [(event.seconds, event.request) for event in recorder.preempted] == [(3.0, "a")]


def test_timeline_names_requests_and_keeps_both_ends():
    script = [({"a-1": step % 5 + 1, "other": 1}, {}, ()) for step in range(20)]
    timeline = record(script).timeline(limit=5)
    assert timeline.step[0] == 0
    assert timeline.step[-1] == 19
    assert len(timeline.step) == 5
    assert timeline.pages["a"][0] == 1
    assert timeline.pages["b"] == [0] * 5
    assert timeline.tokens["a"] == [50] * 5
    assert timeline.pages_used == [pages + 1 for pages in timeline.pages["a"]]


def test_leaves_the_scheduler_as_it_was():
    recorder = record([])
    assert recorder.scheduler.schedule.__func__ is Scheduler.schedule
    assert recorder.mean_pages == 0
    assert free_pages(recorder.scheduler) == 10


def test_asks_the_plugin_when_there_is_one():
    assert pages_by_request(SimpleNamespace(pages_by_request=lambda: {"a": 3})) == {"a": 3}


@pytest.mark.parametrize(("count", "limit"), [(0, 5), (3, 5), (5, 5), (6, 5), (1000, 7)])
def test_evenly(count, limit):
    kept = list(evenly(count, limit))
    assert len(kept) == min(count, limit)
    assert kept == sorted(set(kept))
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)
