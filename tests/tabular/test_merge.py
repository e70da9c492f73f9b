"""Tables that become one: who saw a pair has a say in it, as often as it did, and nobody else."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.tabular.merge import merged


def table(q: list[float], n: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(q, np.float64), np.array(n, np.int64)


def test_values_are_weighed_by_visits_since():
    q, n = table([1.0, 1.0], [10, 0])
    values, counts = merged(q, n, [table([2.0, 4.0], [11, 2]), table([8.0, 7.0], [13, 1])])
    assert values.tolist() == [(1 * 2.0 + 3 * 8.0) / 4, (2 * 4.0 + 1 * 7.0) / 3]  # not by 11 and 13
    assert counts.tolist() == [14, 3]


def test_who_did_not_see_a_pair_does_not_dilute_it():
    """An even mean over eight would be an eighth of it."""
    q, n = table([0.0, 0.3], [0, 5])
    own = 0.1 + 0.2
    values, counts = merged(q, n, [table([own, 0.3], [3, 5])] + [table([0.0, 0.3], [0, 5])] * 7)
    assert values.tolist() == [own, 0.3] and counts.tolist() == [3, 5]


@pytest.mark.parametrize("visits", [1, 3, 7, 49, 10**9 + 7])
def test_one_visitor_is_taken_to_the_bit(visits: int):
    """visits · x / visits is not always x."""
    source = np.random.default_rng(1)
    own = source.normal(size=2000)
    q, n = np.zeros(2000), source.integers(0, 10**12, 2000)
    values, counts = merged(q, n, [(q, n), (own, n + visits), (q, n)])
    assert values.tobytes() == own.tobytes()
    assert (visits * own / visits != own).any() or visits == 1  # so it was no mean of one
    assert (counts == n + visits).all()


def test_what_nobody_saw_stays_to_the_bit():
    q = np.array([0.1, -0.0, 1e-320, 1e300, -7.3])
    n = np.array([0, 1, 2**40, 7, 0])
    values, counts = merged(q, n, [(q.copy(), n.copy()) for _ in range(5)])
    assert values.tobytes() == q.tobytes() and counts.tobytes() == n.tobytes()


def test_one_table_is_itself():
    source = np.random.default_rng(2)
    q, n = source.normal(size=500), source.integers(0, 9, 500)
    visits = source.integers(0, 3, 500)
    own = np.where(visits > 0, source.normal(size=500), q)
    own[::7] = source.normal(size=len(own[::7]))  # a model or a trace may change what was not visited
    values, counts = merged(q, n, [(own, n + visits)])
    assert values.tobytes() == own.tobytes() and (counts == n + visits).all()


def test_sums_are_in_the_order_of_the_tables():
    q, n = table([0.0], [0])
    parts = [(1e16, 1), (1.0, 3), (-1e16, 1)]
    for order in (parts, parts[::-1], [parts[0], parts[2], parts[1]]):
        total = 0.0
        for value, visits in order:
            total += visits * value
        assert merged(q, n, [table([value], [visits]) for value, visits in order])[0].tolist() == [total / 5]
    assert len({float(merged(q, n, [table([v], [k]) for v, k in order])[0][0]) for order in (parts, [parts[0], parts[2], parts[1]])}) == 2


def test_what_was_changed_unseen_is_the_mean_of_those_who_changed_it():
    """A model that is swept and a trace reach pairs that no step did."""
    q, n = table([1.0, 1.0, 1.0, 0.1], [0, 4, 4, 4])
    values, counts = merged(q, n, [table([3.0, 1.0, 0.1, 0.1], [0, 4, 4, 4]), table([8.0, 1.0, 1.0, 0.1], [0, 4, 4, 4]),
                                   table([1.0, 1.0, 1.0, 0.1], [0, 4, 4, 4])])
    assert values.tolist() == [5.5, 1.0, 0.1, 0.1] and counts.tolist() == n.tolist()


def test_who_saw_a_pair_outweighs_whose_model_changed_it():
    q, n = table([1.0], [0])
    values, counts = merged(q, n, [table([100.0], [0]), table([3.0], [2]), table([50.0], [0])])
    assert values.tolist() == [3.0] and counts.tolist() == [2]


def test_a_mean_lies_between_those_it_is_of_and_no_visit_is_lost():
    source = np.random.default_rng(3)
    q, n = source.normal(size=4000), source.integers(0, 2**45, 4000)
    visits = source.integers(0, 2**40, (6, 4000)) * (source.random((6, 4000)) < 0.5)
    theirs = np.where(visits > 0, source.normal(size=(6, 4000)), q)
    values, counts = merged(q, n, [(theirs[j], n + visits[j]) for j in range(6)])
    assert (counts == n + visits.sum(0)).all()
    seen = visits > 0
    low, high = np.where(seen, theirs, np.inf).min(0), np.where(seen, theirs, -np.inf).max(0)
    some = seen.any(0)
    assert ((low <= values + 1e-12) & (values <= high + 1e-12))[some].all() and 0 < (~some).sum() < 400
    exact = (visits * theirs).sum(0)[some] / visits.sum(0)[some]
    np.testing.assert_allclose(values[some], exact, rtol=1e-12, atol=1e-14)


def test_nothing_that_was_given_changes():
    q, n = table([1.0, 2.0], [1, 1])
    one, two = table([3.0, 2.0], [2, 1]), table([5.0, 4.0], [3, 1])
    merged(q, n, [one, two])
    assert [x.tolist() for x in (q, n, *one, *two)] == [[1.0, 2.0], [1, 1], [3.0, 2.0], [2, 1], [5.0, 4.0], [3, 1]]
