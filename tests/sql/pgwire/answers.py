"""What the protocol says of answers: which messages of a server may follow those of a client.

Notices and settings may come at any time, and are left out. A COPY that fails does so at any of the messages up to its
end, so that it is not known which of them are part of it: all that may be are tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_LEFT_OVER = frozenset({b"d", b"c", b"f", b"H"})
_ROWS = frozenset({b"D", b"H", b"d", b"c"})
_PLAIN = frozenset({b"T", b"D", b"C", b"I", b"H", b"d", b"c"})
_ANYTIME = frozenset({b"N", b"S"})


_ONE = {b"P": b"1", b"B": b"2", b"C": b"3"}


def are_answers(sent: Sequence[bytes], received: Sequence[bytes]) -> bool:
    """Whether messages may be answered so.

    Args:
        sent: kinds of the client's messages, of which the last is `X`.
        received: kinds of the server's messages, up to the end of the connection.
    """
    return _Matching(sent, [kind for kind in received if kind not in _ANYTIME]).goes_on(0, 0, skips=False)


class _Matching:
    """Requests and answers, of which some at the beginning are matched."""

    def __init__(self, sent: Sequence[bytes], answers: Sequence[bytes]) -> None:
        self._sent = sent
        self._answers = answers

    def _at(self, answer: int, *kinds: bytes) -> bool:
        return tuple(self._answers[answer : answer + len(kinds)]) == kinds

    def _pass(self, answer: int, kinds: frozenset[bytes]) -> int:
        while answer < len(self._answers) and self._answers[answer] in kinds:
            answer += 1
        return answer

    def goes_on(self, request: int, answer: int, *, skips: bool) -> bool:
        """Whether the rest may be answered by the rest."""
        kind, later = self._sent[request], request + 1
        if kind == b"X":
            return answer == len(self._answers)
        if kind == b"S":
            answer += not skips and self._at(answer, b"E")  # what was implicit may fail to be committed
            return self._at(answer, b"Z") and self.goes_on(later, answer + 1, skips=False)
        if skips or kind in _LEFT_OVER:
            return self.goes_on(later, answer, skips=skips)
        if kind == b"Q":
            return any(self.goes_on(*ended, skips=False) for ended in self._simple(later, answer))
        if kind == b"F":
            return self._at(answer, b"E", b"Z") and self.goes_on(later, answer + 2, skips=False)
        ends = self._extended(kind, later, answer)
        return any(self.goes_on(request, answer, skips=fails) for request, answer, fails in ends)

    def _simple(self, request: int, answer: int) -> Iterator[tuple[int, int]]:
        """Where a simple query ends."""
        answer = self._pass(answer, _PLAIN)
        if self._at(answer, b"Z"):
            yield request, answer + 1
        elif self._at(answer, b"E", b"Z"):
            yield request, answer + 2
        elif self._at(answer, b"G"):
            for later, fails in self._copied(request, answer + 1):
                if fails and self._at(answer + 1, b"E", b"Z"):
                    yield later, answer + 3
                elif not fails and self._at(answer + 1, b"C"):
                    yield from self._simple(later, answer + 2)

    def _extended(self, kind: bytes, request: int, answer: int) -> Iterator[tuple[int, int, bool]]:
        """Where one of the messages of an extended query ends, and whether it has failed."""
        if self._at(answer, b"E"):
            yield request, answer + 1, True
        elif kind in _ONE:
            if self._at(answer, _ONE[kind]):
                yield request, answer + 1, False
        elif kind == b"D":
            answer += self._at(answer, b"t")
            if self._at(answer, b"T") or self._at(answer, b"n"):
                yield request, answer + 1, False
        elif self._at(answer, b"G"):
            for later, fails in self._copied(request, answer + 1):
                if self._at(answer + 1, b"E" if fails else b"C"):
                    yield later, answer + 2, fails
        else:
            answer = self._pass(answer, _ROWS)
            if any(self._at(answer, end) for end in (b"C", b"s", b"I", b"E")):
                yield request, answer + 1, self._at(answer, b"E")

    def _copied(self, request: int, answer: int) -> Iterator[tuple[int, bool]]:
        """How far the messages of a COPY go, and whether it has failed."""
        end = next(at for at in range(request, len(self._sent)) if self._sent[at] not in {b"d", b"H", b"S"})
        if self._at(answer, b"E"):
            yield from ((at, True) for at in range(request, min(end + 2, len(self._sent))))
        elif self._sent[end] == b"c":
            yield end + 1, False
