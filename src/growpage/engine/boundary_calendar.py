"""Who has to be looked at before a step, without looking at everybody."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

Entry = TypeVar("Entry", bound=Hashable)


class BoundaryCalendar(Generic[Entry]):
    """Files each entry under the pass at which it has to be looked at next.

    To be looked at too early costs a little time; too late would be a mistake. So an entry is due
    at every pass until it is filed under a later one, and then again from that one on.
    """

    def __init__(self) -> None:
        self._pass = 0
        self._filed: dict[int, set[Entry]] = {}
        self._pass_of: dict[Entry, int] = {}
        self._places: dict[Entry, int] = {}
        self._entered = 0

    def enter(self, entry: Entry) -> None:
        """Put the entry behind all others. It is due at the next pass."""
        self._entered += 1
        self._places[entry] = self._entered
        self.file(entry, 1)

    def leave(self, entry: Entry) -> None:
        """Forget the entry; one that is not there is all right."""
        self._take_out(entry)
        self._places.pop(entry, None)

    def file(self, entry: Entry, passes: int) -> None:
        """The entry, which has entered, is due when ``passes`` more have begun; at least one."""
        self._take_out(entry)
        due = self._pass + max(passes, 1)
        self._pass_of[entry] = due
        self._filed.setdefault(due, set()).add(entry)

    def file_all(self) -> None:
        """Everybody is due at the next pass."""
        for entry in self._places:
            self.file(entry, 1)

    def begin_pass(self) -> list[Entry]:
        """Begin a pass: those that are due, in the order in which they have entered."""
        self._pass += 1
        due = self._filed.pop(self._pass, set())
        if due:
            self._filed.setdefault(self._pass + 1, set()).update(due)
        return sorted(due, key=self._places.__getitem__)

    def _take_out(self, entry: Entry) -> None:
        due = self._pass_of.pop(entry, None)
        if due is not None:
            due = max(due, self._pass + 1)  # if it was due before, it is again
            entries = self._filed[due]
            entries.discard(entry)
            if not entries:
                del self._filed[due]
