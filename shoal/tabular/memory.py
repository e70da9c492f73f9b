"""Learning from more than the last step: several steps, traces, whole episodes, and a model that is swept. One number at a time, like
``kernels``, whose rules and arguments these share."""

from __future__ import annotations

import math

from shoal.tabular.rule import Kind

kind = Kind()  # another one where these are bound to it


def visit_pace(rule, visits):
    """The rate of learning at a pair's visit number ``visits``, counted from 1."""
    if kind.by_visits:
        return rule.rate * rule.rate_visits / (rule.rate_visits + (visits - 1))
    return rule.rate


def write_sweeping(rule, at, q, n, legal, f, i, e):
    """Note what a pair led to, and look at what follows from that."""
    cell = i[at.cell + e]
    n[cell] += 1
    note(rule, at, f, i, cell, f[at.gain + e], 2 * i[at.next_row + e] + (0 if f[at.alive + e] > 0.0 else 1))
    press(at, f, i, cell, abs(backup(rule, at, q, legal, f, i, cell) - q[cell]), rule.least)
    sweep(rule, at, q, legal, f, i)


def toward(rule, q, n, cell, goal):
    """Move a pair towards what it should be worth."""
    n[cell] += 1
    q[cell] += visit_pace(rule, n[cell]) * (goal - q[cell])


def keep(rule, at, f, i, e):
    """Keep a step; whether there is no room for another."""
    place = e * rule.span + i[at.used + e]
    i[at.kept + place], f[at.value + place] = i[at.cell + e], f[at.gain + e]
    i[at.used + e] += 1
    return i[at.used + e] == rule.span


def write_n_step(rule, at, q, n, legal, f, i, e):
    """Learn a step once ``span`` rewards are there, or the episode is over."""
    if keep(rule, at, f, i, e):
        settle_oldest(rule, at, q, n, f, i, e)
    while i[at.last + e] and i[at.used + e]:
        settle_oldest(rule, at, q, n, f, i, e)


def write_returns(rule, at, q, n, legal, f, i, e):
    """Learn all steps of an episode once it is over."""
    if keep(rule, at, f, i, e) or i[at.last + e]:
        settle_all(rule, at, q, n, f, i, e)


def settle_oldest(rule, at, q, n, f, i, e):
    """Learn an environment's oldest step from all rewards since, and forget it."""
    base, used, goal = e * rule.span, i[at.used + e], f[at.boot + e]
    for k in range(base + used - 1, base - 1, -1):
        goal = f[at.value + k] + (goal if k == base + used - 1 else rule.discount * goal)  # ``boot`` is discounted once already
    toward(rule, q, n, i[at.kept + base], goal)
    for k in range(base, base + used - 1):
        i[at.kept + k], f[at.value + k] = i[at.kept + k + 1], f[at.value + k + 1]
    i[at.used + e] = used - 1


def settle_all(rule, at, q, n, f, i, e):
    """Learn all of an environment's steps from what came after each, the newest first, and forget them."""
    base, used, goal = e * rule.span, i[at.used + e], f[at.boot + e]
    for k in range(base + used - 1, base - 1, -1):
        goal = f[at.value + k] + (goal if k == base + used - 1 else rule.discount * goal)
        toward(rule, q, n, i[at.kept + k], goal)
    i[at.used + e] = 0


def write_traces(rule, at, q, n, legal, f, i, e):
    """Let all pairs of the episode share an error, each by its trace."""
    base, used, cell, found = e * rule.span, i[at.used + e], i[at.cell + e], -1
    for k in range(base, base + used):
        if i[at.kept + k] == cell:
            found = k
    if found >= 0:
        f[at.value + found] = 1.0 if kind.replacing else f[at.value + found] + 1.0
    else:
        if used == rule.span:  # the oldest goes
            for k in range(base, base + used - 1):
                i[at.kept + k], f[at.value + k] = i[at.kept + k + 1], f[at.value + k + 1]
            used -= 1
        i[at.kept + base + used], f[at.value + base + used] = cell, 1.0
        used += 1
    n[cell] += 1
    left = base
    for k in range(base, base + used):
        other = i[at.kept + k]
        q[other] += visit_pace(rule, n[other]) * f[at.boot + e] * f[at.value + k]  # each at its own rate
        faded = f[at.value + k] * rule.decay
        if faded >= rule.least:
            i[at.kept + left], f[at.value + left] = i[at.kept + k], faded
            left += 1
    i[at.used + e] = 0 if i[at.last + e] else left - base


# a model, and sweeping it --------------------------------------------------------------------------------------------


def note(rule, at, f, i, cell, gain, after):
    """Count an outcome of a pair."""
    base = cell * rule.outcomes
    for k in range(base, base + i[at.known + cell]):
        if i[at.after + k] == after:
            i[at.seen + k] += 1
            f[at.sum + k] += gain
            return
    if i[at.known + cell] == rule.outcomes:
        i[at.lost] += 1
        return
    k = base + i[at.known + cell]
    i[at.known + cell] += 1
    i[at.after + k], i[at.seen + k], f[at.sum + k] = after, 1, gain
    i[at.link + k] = i[at.head + after // 2]
    i[at.head + after // 2] = k


def backup(rule, at, q, legal, f, i, cell):
    """What a pair is worth by the model: the mean over its outcomes so far."""
    base, total, seen = cell * rule.outcomes, 0.0, 0
    for k in range(base, base + i[at.known + cell]):
        seen += i[at.seen + k]
        total += f[at.sum + k]
        if i[at.after + k] % 2 == 0:
            total += rule.discount * (i[at.seen + k] * top_of(rule, q, legal, i[at.after + k] // 2))
    return total / seen


def top_of(rule, q, legal, row):
    base, top = row * rule.num_actions, -math.inf
    for cell in range(base, base + rule.num_actions):
        if q[cell] > top and (not kind.masked or legal[cell]):
            top = q[cell]
    return top


def sweep(rule, at, q, legal, f, i):
    """Set the most urgent pairs right, and see who follows from them. Moore and Atkeson (1993), "Prioritized sweeping"."""
    for _ in range(rule.sweeps):
        if i[at.size] == 0:
            return
        cell = pop(at, f, i)
        q[cell] = backup(rule, at, q, legal, f, i, cell)
        k = i[at.head + cell // rule.num_actions]
        while k >= 0:
            before = k // rule.outcomes
            if i[at.after + k] % 2 == 0:
                press(at, f, i, before, abs(backup(rule, at, q, legal, f, i, before) - q[before]), rule.least)
            k = i[at.link + k]


def press(at, f, i, cell, weight, least):
    """Have a pair looked at, the sooner the heavier; what weighs less than it does already changes nothing."""
    k = i[at.stand + cell]
    if weight <= least or (k >= 0 and weight <= f[at.weight + cell]):
        return
    if k < 0:
        k = i[at.size]
        i[at.size] += 1
    f[at.weight + cell] = weight
    while k > 0:
        above = i[at.heap + (k - 1) // 2]
        if f[at.weight + above] >= weight:
            break
        i[at.heap + k], i[at.stand + above] = above, k
        k = (k - 1) // 2
    i[at.heap + k], i[at.stand + cell] = cell, k


def pop(at, f, i):
    """Take the most urgent pair."""
    cell = i[at.heap]
    i[at.stand + cell] = -1
    i[at.size] -= 1
    size, moved, k = i[at.size], i[at.heap + i[at.size]], 0
    while 2 * k + 1 < size:
        down = 2 * k + 1
        if down + 1 < size and f[at.weight + i[at.heap + down + 1]] > f[at.weight + i[at.heap + down]]:
            down += 1
        if f[at.weight + i[at.heap + down]] <= f[at.weight + moved]:
            break
        i[at.heap + k] = i[at.heap + down]
        i[at.stand + i[at.heap + k]] = k
        k = down
    if size:
        i[at.heap + k], i[at.stand + moved] = moved, k
    return cell
