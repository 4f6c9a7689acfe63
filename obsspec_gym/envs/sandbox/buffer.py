"""A bounded record of output: however much is printed, memory stays small and every byte is counted."""

from __future__ import annotations


class OutputBuffer:
    """Keeps the first and the last half of what is fed to it.

    Args:
        limit: Bytes kept at most.

    Example:
        >>> buffer = OutputBuffer(4)
        >>> buffer.feed(b"abcdef")
        >>> bytes(buffer), buffer.total
        (b'abef', 6)
    """

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        """Takes the next bytes."""
        self.total += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            del self._tail[: len(self._tail) - self._half]

    def __bytes__(self) -> bytes:
        """Everything, or the two halves joined when ``total`` is over the limit."""
        return bytes(self._head + self._tail[max(0, len(self._tail) - self._half) :])
