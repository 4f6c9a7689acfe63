"""Vocabularies: the names that generated tasks are made of, and the disjoint ones held out for evaluation."""

# ruff: noqa: SIM905 (a block of words reads better than a list of literals)

from __future__ import annotations

import enum
from collections.abc import Collection
from random import Random

TRAIN_WORDS: tuple[str, ...] = tuple(
    """
    acorn amber anchor apple april arrow aspen atlas autumn badge bamboo banjo barley basil beacon berry birch
    blanket bottle branch brass breeze brick bridge bronze brush bucket butter button cabin cable cactus camel
    candle canoe canvas carbon carpet castle cedar chalk cherry chess chime cider circle citrus clover cobalt
    cocoa comet copper coral corner cotton cradle crane crayon cricket crystal daisy dancer delta desert diamond
    dolphin donkey dragon drum eagle early echo elbow ember engine falcon feather fennel ferry fiddle field flint
    flute forest fossil fountain galaxy garden garlic gecko ginger glacier goose grain granite grape gravel hammer
    harbor hazel helmet heron hickory honey horizon humble igloo indigo island ivory jacket jaguar jasmine jelly
    jigsaw jungle kayak kernel kettle kitten koala ladder lagoon lantern laurel lemon lilac linen lizard lotus
    lumber magnet mango maple marble market meadow melon mentor mirror mosaic muffin napkin nectar needle nickel
    nutmeg oasis ocean olive onion orbit orchid otter oyster paddle palace panda parrot pebble pepper piano
    pickle pigeon pillow pirate planet plaza plum pocket polar poppy potato prairie pumpkin puzzle quartz quill
    rabbit radish raven ribbon river robin rocket rose rubber saddle saffron salmon sandal satin scarlet shadow
    shell silver sketch smoke socket spark spider spruce squid stable steam stone summer sunset swan table tango
    temple thistle thunder tiger timber toast tomato topaz tower trout tulip tunnel turtle valley vanilla velvet
    violet violin walnut water whale willow window winter yellow yogurt zebra zenith
    """.split()
)
HELD_OUT_WORDS: tuple[str, ...] = tuple(
    """
    almond apron bagel balcony beaver biscuit blossom bonnet buffalo cabbage caramel carrot cello chapel chimney
    cinnamon cobra coconut cookie cougar curtain cypress dagger denim dune emerald fabric fig fjord
    gazelle geyser goblet guitar hamster hemlock hornet jade jewel juniper lavender lemur lobster magpie mammoth
    marigold meteor mitten monsoon mustard obelisk opal osprey pelican penguin pendant pistachio plateau pretzel
    python quail raisin rhubarb sailor sapphire scarf sequoia sparrow spinach sponge squirrel sultan tapir
    teapot trumpet tundra turnip umbrella vulture waffle walrus wombat
    """.split()
)

_RESERVED = frozenset(
    "and app build built cases check conf count data default echo error fail file files find fix from has have in is "
    "let limit lines make max module modules number out part passed put rules run serve submit sum test tests "
    "the unpack want word words".split()
)
TERMINAL_RESERVED = frozenset(
    "audit bundle change changes clean collect crontab disk index items job keys lint load main manifest needs order "
    "package policy probe public quota reload service simulate start sums verify version".split()
)
"""Names that the scenes of the suite ``terminal`` use themselves, besides those of ``basics``."""
_ONSETS = "b c d f g h j k l m n p r s t v w z br cr dr fl gr pl sl st tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m"]


class Vocabulary(enum.Enum):
    """Which words a split draws its names from."""

    TRAIN = "train"
    """:data:`TRAIN_WORDS`, and made-up words without end."""
    HELD_OUT = "held-out"
    """:data:`HELD_OUT_WORDS` only; no training task contains one."""


class Words:
    """Draws distinct words: none is drawn twice, and none contains another (a ``sed`` could hit the wrong one).

    Args:
        rng: Where the randomness comes from.
        vocabulary: What to draw from.
        reserved: Words never to draw, besides those that are never drawn.
    """

    def __init__(self, rng: Random, vocabulary: Vocabulary, reserved: Collection[str] = ()) -> None:
        self._rng = rng
        self._vocabulary = vocabulary
        self._reserved = _RESERVED.union(reserved)
        self._drawn: list[str] = []

    def draw(self) -> str:
        """A word that has not been drawn yet."""
        while True:
            word = self._candidate()
            if word not in self._reserved and not any(word in other or other in word for other in self._drawn):
                self._drawn.append(word)
                return word

    def several(self, count: int) -> list[str]:
        """``count`` distinct words."""
        return [self.draw() for _ in range(count)]

    def _candidate(self) -> str:
        if self._vocabulary is Vocabulary.HELD_OUT:
            return self._rng.choice(HELD_OUT_WORDS)
        if self._rng.random() < 0.4:
            return self._rng.choice(TRAIN_WORDS)
        word = made_up_word(self._rng)
        return self._rng.choice(TRAIN_WORDS) if word in HELD_OUT_WORDS else word


def made_up_word(rng: Random) -> str:
    """A word that does not exist: two or three syllables, or the head of one word and the tail of another.

    Whoever has to copy such words cannot learn how they go on from how they begin.
    """
    if rng.random() < 0.4:
        syllables = rng.choice((2, 2, 3))
        return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(syllables))
    head, tail = rng.choice(TRAIN_WORDS), rng.choice(TRAIN_WORDS)
    return head[: rng.randint(2, 4)] + tail[-rng.randint(2, 4) :]
