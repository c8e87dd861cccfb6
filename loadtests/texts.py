"""Texts of known length mixes, the same for every run of a seed."""

import random
from collections.abc import Callable

WORDS = """
able about above account across action active address after again agree air allow almost alone already always amount
animal answer area arrive article author autumn balance bank basket beach because bedroom before begin behind
believe better between bicycle bird board bottle bread bridge bright bring brother build bus business butter camera
capital careful carry castle catch central century chair change cheap choose church circle city clean clear climb
clock cloud coast coffee cold collect college colour common company complete contain copper corner cotton count
country couple cousin cover cross crowd culture current custom daily dance danger daughter deal decide deep degree
deliver depend desert detail develop dinner direct discover distance doctor double dress drive early earth easy edge
editor effect electric empty engine enjoy enough enter evening every exact example expect explain express extra fact
factory family
""".split()

Mix = Callable[[random.Random], int]


def short(rng: random.Random) -> int:
    """Search queries."""
    return rng.randint(2, 8)


def long(rng: random.Random) -> int:
    """Paragraphs."""
    return rng.randint(80, 180)


def lognormal(rng: random.Random) -> int:
    """Median 27 words, sigma 0.9, at most 180."""
    return min(max(round(rng.lognormvariate(3.2958, 0.9)), 1), 180)


def bimodal(rng: random.Random) -> int:
    """Queries beside documents."""
    return short(rng) if rng.random() < 0.8 else long(rng)


def equal(rng: random.Random) -> int:
    """All alike: packing gains nothing."""
    return 32


MIXES: dict[str, Mix] = {"short": short, "long": long, "lognormal": lognormal, "bimodal": bimodal, "equal": equal}


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(words))


def texts(mix: str, count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [text(rng, MIXES[mix](rng)) for _ in range(count)]
