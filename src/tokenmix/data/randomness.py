"""Randomness without state: every number is a pure function of a key, so any worker can make any example at any time.

A generator with a state has to run forward to reach example n. Here a 64-bit key is made from (seed, epoch, index, …)
and the numbers are a hash of that key and a counter (SplitMix64's output function), computed for a whole batch at once.

>>> keys = key(7, 0, np.arange(3))                   # seed 7, epoch 0, examples 0, 1, 2
>>> bool((key(7, 0, np.array([2])) == keys[2:]).all())
True
>>> sorted(permute(np.arange(5), 5, key(7)).tolist())
[0, 1, 2, 3, 4]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

UInts = NDArray[np.uint64]
Ints = NDArray[np.int64]

_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ / golden ratio: SplitMix64's step from one counter to the next
_ROUNDS = 8  # of the Feistel network; 4 already pass for large domains, small ones want more


def _mix(x: UInts) -> UInts:
    """SplitMix64's finaliser: a bijection of 64-bit words whose output bits each depend on all input bits."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _words(values: ArrayLike) -> UInts:
    if isinstance(values, int):
        return np.array([values & _WORD], dtype=np.uint64)
    return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def key(seed: int, *parts: ArrayLike) -> UInts:
    """One 64-bit key per element of the broadcast ``parts`` (integers or integer arrays), at least one-dimensional."""
    state = _mix(_words(seed) + _GOLDEN)
    for part in parts:
        state = _mix((state ^ _mix(_words(part) + _GOLDEN)) + _GOLDEN)
    return state


def bits(keys: UInts, counters: ArrayLike) -> Ints:
    """32 random bits (as int64) for each key and counter, broadcast against each other."""
    words = _mix(keys + _words(counters) * _GOLDEN)
    return (words >> np.uint64(32)).astype(np.int64)


def below(random_bits: Ints, limit: ArrayLike) -> Ints:
    """Integers uniform in 0 … limit − 1 (limit up to 2³¹) out of 32 random bits each."""
    return (random_bits * np.asarray(limit, dtype=np.int64)) >> 32


def choose(keys: UInts, items: ArrayLike, picks: ArrayLike) -> NDArray[np.bool_]:
    """Pick a uniformly random subset in every row, all rows at once.

    Row r has ``items[r]`` entries, of which ``picks[r]`` are chosen. The rows lie one after another in the flat answer.
    Floyd's algorithm: pick number s is drawn from the first n − k + s + 1 items; if it is already taken, the last of
    those is taken instead. So the cost goes with the picks, not with the items, and nothing is sorted.

    >>> choose(key(0, np.arange(2)), items=[4, 6], picks=[2, 3]).reshape(-1, 2).sum()
    np.int64(5)
    """
    rows = len(keys)
    items = np.broadcast_to(np.asarray(items, dtype=np.int64), (rows,))
    picks = np.broadcast_to(np.asarray(picks, dtype=np.int64), (rows,))
    first, total = np.cumsum(items) - items, int(items.sum())
    steps = np.arange(int(picks.max(initial=0)))[:, None]  # [picks, 1] against [rows]
    last = items - picks + steps
    drawn = first + below(bits(keys[None, :], steps + 1), last + 1)
    instead = first + last
    done = steps >= picks  # a row that has its picks goes on picking a place behind the end
    if done.any():
        drawn[done] = instead[done] = total
    chosen = np.zeros(total + 1, dtype=bool)
    for pick, otherwise in zip(drawn, instead, strict=True):
        chosen[np.where(chosen[pick], otherwise, pick)] = True
    return chosen[:total]


def permute(position: ArrayLike, size: int, permutation_key: UInts) -> Ints:
    """Where ``position`` goes in a random permutation of 0 … size − 1, without ever building the permutation.

    A Feistel network is a bijection of the 2^b words with 2^b ≥ size; a word that falls outside is sent through again
    (cycle walking, fewer than two passes on average). ``permutation_key`` is one key, or one for each position.
    """
    words = _words(position)
    if words.size and int(words.max()) >= size:
        raise ValueError(f"position {int(words.max())} is outside a permutation of {size} items")
    keys = np.broadcast_to(permutation_key, words.shape)
    width = max(2, (size - 1).bit_length())
    low_bits = np.uint64(width // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(width - width // 2)) - np.uint64(1)
    out = words.copy()
    outside = np.arange(words.size)
    while outside.size:
        high, low, current = out[outside] >> low_bits, out[outside] & low_mask, keys[outside]
        for turn in range(0, _ROUNDS, 2):
            high = high ^ (_mix(current + low * _GOLDEN + np.uint64(turn)) & high_mask)
            low = low ^ (_mix(current ^ (high * _GOLDEN + np.uint64(turn + 1))) & low_mask)
        out[outside] = (high << low_bits) | low
        outside = outside[out[outside] >= size]
    return out.astype(np.int64)
