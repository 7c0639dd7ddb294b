"""Progress that keeps its notes."""

from __future__ import annotations

from arithscope.utils.progress import Silent


class RecordedNotes(Silent):
    """Shows nothing, and keeps every note."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
