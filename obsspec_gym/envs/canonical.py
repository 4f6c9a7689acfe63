"""Canonical text: what differs from run to run and means nothing is replaced by a name for it.

========== =================================================================================================
mask       stands for
========== =================================================================================================
<date>     ``2024-01-31``, ``2024-01-31T12:34:56.7Z``, ``Wed Jan 31 12:34:56 UTC 2024``, ``Jan 31 12:34``
<time>     ``12:34:56.789``, ``12:34``; seconds and nanoseconds since 1970
<duration> ``0m0.012s``, ``1.5 s``, ``12ms``, ``3 seconds``, ``453 MB/s``
<hash>     hexadecimal numbers of 7 to 128 digits with both letters and figures, UUIDs, ``0x7ffd...`` addresses
<pid>      ``pid 1234``, ``[1] 1234``, the first column of ``ps``, what bash says of a program that was killed
<load>     the three figures after ``load average:``
<temp>     the made-up part of names like ``/tmp/tmp.Wq3xYz8AbC``, ``/tmp/tmpab12cd_x``, ``/tmp/ccAbC123.o``
========== =================================================================================================

Masking looks at one line at a time, so what a finished line becomes is known as soon as it is finished.
"""

from __future__ import annotations

import re

# Nothing is masked that touches a mask: masked text stays as it is when it is masked again.
_BEFORE = r"(?<![\w.:>\-])"
_AFTER = r"(?![\w<]|[.:\-][\w<])"

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ZONE = r"(?:[ ]?(?:Z|UTC|GMT|[+\-]\d\d:?\d\d))"
_HEX = r"(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]"

_PATTERNS = {
    "date": (
        rf"\d{{4}}-\d\d-\d\d(?:[T_ ]{_CLOCK})?{_ZONE}?",
        rf"(?:{_DAY},?[ ]+)?{_MONTH}[ ]+\d{{1,2}},?[ ]+"
        rf"(?:{_CLOCK}(?:[ ](?:AM|PM))?{_ZONE}?(?:[ ]\d{{4}})?{_ZONE}?|\d{{4}})",
        rf"\d{{4}}/\d\d/\d\d(?:[ ]{_CLOCK})?",
        rf"{_DAY},[ ]\d{{1,2}}[ ]{_MONTH}[ ]\d{{4}}(?:[ ]{_CLOCK}{_ZONE}?)?",
    ),
    "time": (_CLOCK, r"(?:1[6-9]|2[0-2])\d{8}(?:\.\d+|\d{9})?"),
    "duration": (
        r"\d+m\d+(?:\.\d+)?s",
        r"\d+(?:\.\d+)?(?:e-\d+)?[ ]?(?:[nuµm]?s|[num]?secs?|seconds?|minutes?|hours?)",
        r"\d+(?:\.\d+)?[ ][kKMGT]?i?B/s",
    ),
    "hash": (
        r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
        r"0x[0-9a-f]{6,16}",
        rf"{_HEX}{{7,128}}",
    ),
}
_IN_CONTEXT = {
    # A mask here may touch what it belongs to.
    "temp": r"(?<=/tmp\.)[A-Za-z0-9]{6,}|(?<=/tmp/tmp)[a-z0-9_]{8}(?![\w<])|(?<=/tmp/cc)[A-Za-z0-9]{6}(?=\.[a-z])",
    "load": r"(?<=load average: )\d[\d., ]*",
    # The second of two hashes in ``3f9c1e7..a8b0d41``.
    "hash2": rf"(?<=[0-9a-f]\.\.){_HEX}{{7,64}}{_AFTER}",
    "pid": (
        r"(?<![\w>])(?<=pid[ =:])\d+(?![\w<])|(?<=PID[ =:])\d+(?![\w<])|(?<=pid:[ ])\d+(?![\w<])"
        r"|(?<=^\[\d\][ ])\d+$|(?<=^\[\d\]\+[ ][ ])\d+(?=[ ])"
        r"|^[ ]*\d+(?=[ ]+(?:\?|pts/\d+|tty\w*)[ ])"
        r"|(?<=: line \d: )[ ]*\d+(?=[ ][A-Z])|(?<=: line \d\d: )[ ]*\d+(?=[ ][A-Z])"
    ),
}

_MASKS = re.compile(
    "|".join(
        [f"(?P<{name}>{pattern})" for name, pattern in _IN_CONTEXT.items()]
        + [f"(?P<{name}>{_BEFORE}(?:{'|'.join(patterns)}){_AFTER})" for name, patterns in _PATTERNS.items()]
    ),
    re.MULTILINE,
)


def canonical(text: str) -> str:
    """The text with masks for dates, times, durations, hashes, process numbers and made-up file names.

    Args:
        text: Whole lines; what would be masked were it longer stays if it is cut in the middle.

    Example:
        >>> canonical("built 3f9c1e7 on 2024-01-31 12:34:56 in 1.25s")
        'built <hash> on <date> in <duration>'
    """
    return _MASKS.sub(lambda found: f"<{str(found.lastgroup).rstrip('2')}>", text)
