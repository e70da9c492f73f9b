"""Random numbers by address: the published generator's, the same in Python, NumPy and compiled, and as even as they should be."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from shoal.tabular import draws
from shoal.tabular.rule import Kind

NUM = 10_000
EDGES = (0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)
CRITICAL = {1: 10.83, 9: 27.88, 11: 31.26, 15: 37.70, 63: 103.44, 255: 330.52}  # chi-square at 0.999, by degrees of freedom


def addresses() -> tuple[np.ndarray, np.ndarray]:
    """uint64 keys, half of them from 2**63 on, and int64 counts [NUM]."""
    source = np.random.default_rng(5)
    keys = source.integers(0, 2**64, NUM, np.uint64)
    keys[:len(EDGES)] = EDGES
    counts = source.integers(0, 2**40, NUM)
    counts[:len(EDGES)] = (0, 1, 2**62, 2**40, 3, 2**63 - 1)
    return keys, counts


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2).sum() / expected)


def published(key: int, count: int) -> int:
    """SplitMix64 as it is published: a state that a constant is added to, and the output function."""
    state = key
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_the_first_outputs_are_those_that_are_published():
    """Of SplitMix64 seeded with 1234567, as its authors' C program prints them."""
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [draws.draw(1234567, count) for count in range(1, 6)] == outputs
    assert draws.draw(0, 0) == 0 and draws.draw(0, 1) == 0xE220A8397B1DCDAF


@pytest.mark.parametrize("key", EDGES)
def test_a_place_is_a_number_of_steps(key: int):
    assert [draws.draw(key, count) for count in range(40)] == [published(key, count) for count in range(40)]


def test_numpy_draws_what_python_draws():
    keys, counts = addresses()
    bits = draws.draw_batch(keys, counts)
    assert bits.dtype == np.uint64
    plain = [draws.draw(key, count) for key, count in zip(keys.tolist(), counts.tolist(), strict=True)]
    assert bits.tolist() == plain
    signed = keys.view(np.int64)
    assert (signed < 0).sum() > NUM // 3
    assert [draws.draw(key, count) for key, count in zip(signed.tolist(), counts.tolist(), strict=True)] == plain
    for num in (1, 2, 3, 7, 1000, 2**31):
        assert draws.pick_batch(bits, np.full(NUM, num)).tolist() == [draws.pick(b, num) for b in plain]
        assert draws.share_batch(bits, num).tolist() == [draws.share(b, num) for b in plain]
    for name in ("unit", "half", "coin"):
        assert getattr(draws, f"{name}_batch")(bits).tolist() == [getattr(draws, name)(b) for b in plain], name
    starts = draws.draw_batch(keys ^ np.uint64(draws.STARTS), counts)
    assert starts.tolist() == [draws.draw(draws.other(k), c) for k, c in zip(signed.tolist(), counts.tolist(), strict=True)]


def test_compiled_code_draws_what_python_draws():
    numba = pytest.importorskip("numba")
    from shoal.tabular import compiled

    kernels = compiled.load(Kind())
    draw, unit, half, pick, share, coin, other = (getattr(kernels, name) for name in ("draw", "unit", "half", "pick", "share", "coin",
                                                                                      "other"))

    @numba.njit
    def all_of(keys, counts, num, bits, whole, real):
        for j in range(len(keys)):
            x = draw(keys[j], counts[j])
            bits[j, 0], bits[j, 1] = x, draw(other(keys[j]), counts[j])
            whole[j, 0], whole[j, 1], whole[j, 2] = pick(x, num), share(x, num), coin(x)
            real[j, 0], real[j, 1] = unit(x), half(x)

    keys, counts = addresses()
    bits, whole, real = np.zeros((NUM, 2), np.uint64), np.zeros((NUM, 3), np.int64), np.zeros((NUM, 2))
    for num in (1, 7, 2**31):
        all_of(keys.view(np.int64), counts, num, bits, whole, real)  # keys lie in a lane as int64
        assert bits[:, 0].tolist() == draws.draw_batch(keys, counts).tolist()
        assert bits[:, 1].tolist() == draws.draw_batch(keys ^ np.uint64(draws.STARTS), counts).tolist()
        plain = bits[:, 0].tolist()
        assert whole.tolist() == [[draws.pick(b, num), draws.share(b, num), draws.coin(b)] for b in plain]
        assert real.tolist() == [[draws.unit(b), draws.half(b)] for b in plain]


def test_ranges():
    least, most = 0, 2**64 - 1
    assert (draws.unit(least), draws.half(least), draws.coin(least)) == (0.0, 0.0, 0)
    assert (draws.unit(most), draws.half(most), draws.coin(most)) == (1 - 2.0**-53, 1 - 2.0**-32, 1)
    for num in (1, 2, 3, 10, 2**32 - 1):
        assert (draws.pick(least, num), draws.share(least, num)) == (0, 0)
        assert (draws.pick(most, num), draws.share(most, num)) == (num - 1, num - 1)
    upper, lower = 0xFFFFFFFF << 32, 0xFFFFFFFF
    assert (draws.half(upper), draws.pick(upper, 9), draws.share(upper, 9)) == (1 - 2.0**-32, 0, 8)  # halves that share no bit
    assert (draws.half(lower), draws.pick(lower, 9), draws.share(lower, 9)) == (0.0, 8, 0)
    assert draws.unit(0x7FF) == 0.0 and draws.unit(0x800) == 2.0**-53  # the lowest bits are the coin's


@pytest.mark.parametrize("key", [0, draws.key(1, 0, 0), 2**63 + 12345])
def test_draws_under_a_key_are_even(key: int):
    """For consecutive places, and for the even ones and the odd ones, which choose and step."""
    for counts in (np.arange(64_000), 2 * np.arange(64_000), 2 * np.arange(64_000) + 1):
        bits = draws.draw_batch(np.full(len(counts), key, np.uint64), counts)
        parts = {255: np.bincount((draws.unit_batch(bits) * 256).astype(int), minlength=256),
                 63: np.bincount((draws.half_batch(bits) * 64).astype(int), minlength=64),
                 9: np.bincount(draws.pick_batch(bits, np.full(len(bits), 10)), minlength=10),
                 11: np.bincount(draws.share_batch(bits, 12), minlength=12),
                 1: np.bincount(draws.coin_batch(bits), minlength=2)}
        for freedom, found in parts.items():
            assert chi_square(found) < CRITICAL[freedom], (freedom, found)


def test_draws_of_neighbouring_keys_and_places_are_independent():
    """Pairs of draws fill a square evenly: of two environments, of one environment's two draws of a step, and of a start and a step."""
    num = 64_000
    keys = np.array([draws.key(3, 0, env) for env in range(2)], np.uint64)
    count = np.arange(num)

    def part(key: np.uint64, count: np.ndarray) -> np.ndarray:
        return (draws.unit_batch(draws.draw_batch(np.full(num, key), count)) * 16).astype(int)

    pairs = {"environments": (part(keys[0], count), part(keys[1], count)), "choice and step": (part(keys[0], 2 * count),
             part(keys[0], 2 * count + 1)), "start": (part(keys[0] ^ np.uint64(draws.STARTS), count), part(keys[0], 2 * count))}
    for name, (one, other) in pairs.items():
        assert chi_square(np.bincount(16 * one + other, minlength=256)) < CRITICAL[255], name


def test_a_key_is_its_address():
    """Little-endian blake2b of the address, so that nobody's choice of platform or library changes it."""
    assert draws.key(7, 1, 3) == int.from_bytes(hashlib.blake2b(b"table,7,1,3", digest_size=8).digest(), "little")
    keys = {draws.key(seed, stream, env) for seed in range(10) for stream in range(2) for env in range(100)}
    assert len(keys) == 2000 and all(0 <= key < 2**64 for key in keys)
    assert max(keys) >= 2**63
