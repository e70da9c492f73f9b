"""The loop that most steps of most runs are taken in: one environment, learning by one step. The numbers of ``kernels.walk``, with all that
changes in hand and not in memory. Only ever compiled.

Places in arrays are unsigned here: a compiler that cannot rule out negative ones checks for them at every turn, and that takes a third
of the time.
"""

from __future__ import annotations

import numpy as np

from shoal.tabular.draws import coin, draw, half, other, share, unit
from shoal.tabular.kernels import among, any_action, choose, level_at, start_of, value
from shoal.tabular.memory import visit_pace
from shoal.tabular.rule import DOUBLE, EPSILON, GREEDY, RECENT, TAKEN, Kind

kind = Kind()


def num_of(rule):
    """How many actions there are: a constant, where the loop is compiled for it."""
    return kind.actions if kind.actions else rule.num_actions


def peek(rule, q, legal, row):
    """``kernels.look``."""
    num = num_of(rule)
    base, top, equals, first = row * num, -np.inf, 0, 0
    for a in range(num):
        x = q[np.uint64(base + a)]
        allowed = not kind.masked or legal[np.uint64(base + a)] != 0
        better, same = x > top and allowed, x == top and allowed
        equals = 1 if better else equals + (1 if same else 0)
        first = a if better else first
        top = x if better else top
    return top, equals, first


def peak(rule, q, legal, row):
    """``kernels.best`` for one table."""
    num = num_of(rule)
    base, top = row * num, -np.inf
    for a in range(num):
        x = q[np.uint64(base + a)]
        top = x if x > top and (not kind.masked or legal[np.uint64(base + a)] != 0) else top
    return top


def result(world, wf, base, bits):
    """``kernels.outcome``."""
    if world.even:
        return base + share(bits, world.outcomes)
    u, k = unit(bits), 0
    for j in range(world.chance + base, world.chance + base + world.outcomes - 1):
        k += u >= wf[np.uint64(j)]
    return base + k


def begin(world, wf, wi, key, episode):
    """The state that an episode starts in."""
    return wi[world.start + start_of(world, wf, unit(draw(other(key), episode)))]


def count(at, f, i, total, length, t):
    """Note an episode that ended."""
    k = i[at.ended] % RECENT
    f[at.returns + k], i[at.lengths + k], i[at.step + k], i[at.env + k] = total, length, t, 0
    i[at.ended] += 1
    f[at.return_sum] += total
    i[at.length_sum] += length


def walk_alone(rule, at, world, wf, wi, q, n, legal, f, i, first, stop, quota):
    """``kernels.walk`` for one environment."""
    place, row, action, moves = i[at.place], i[at.row], i[at.action], i[at.moves]
    episode, length, total, key = i[at.episode], i[at.length], f[at.total], i[at.key]
    level, t = level_at(rule, first), first
    quick = kind.target == GREEDY and kind.explore == EPSILON
    num = num_of(rule)
    while t < stop and episode < quota:
        if action < 0:
            bits = draw(key, 2 * moves)
            if quick:
                top, equals, best_action = peek(rule, q, legal, row)
                if half(bits) < level:
                    action = any_action(rule, legal, row, bits)
                else:
                    action = best_action
                    if equals > 1 and kind.ties:
                        action = among(rule, q, legal, row, top, equals, best_action, bits)
            else:
                action = choose(rule, q, n, legal, row, level, bits)
        cell, bits = row * num + action, draw(key, 2 * moves + 1)
        k = result(world, wf, (place * num + action) * world.outcomes, bits)
        gain, over, place = wf[np.uint64(world.reward + k)], wi[np.uint64(world.over + k)], wi[np.uint64(world.after + k)]
        row = place if kind.own_rows else wi[np.uint64(world.row + place)]
        action, boot, side = -1, 0.0, coin(bits)
        level = level_at(rule, t + 1)
        if quick:
            boot = 0.0 if over else rule.discount * peak(rule, q, legal, row)
        elif not over:
            if kind.target == TAKEN:
                action = choose(rule, q, n, legal, row, level, draw(key, 2 * moves + 2))
            boot = rule.discount * value(rule, q, legal, row, action, level, side)
        if kind.target == DOUBLE and side:
            cell += rule.cells
        written = np.uint64(cell)
        n[written] += 1
        q[written] += visit_pace(rule, n[written]) * (gain + boot - q[written])
        moves, length, total, t = moves + 1, length + 1, total + gain, t + 1
        if over or (world.limit and length >= world.limit):
            count(at, f, i, total, length, t - 1)
            episode, length, total, action = episode + 1, 0, 0.0, -1
            place = begin(world, wf, wi, key, episode)
            row = wi[world.row + place]
    i[at.place], i[at.row], i[at.action], i[at.moves] = place, row, action, moves
    i[at.episode], i[at.length], f[at.total] = episode, length, total
    return t - first


def duel_alone(rule, at, world, wf, wi, q, n, legal, f, i, first, stop, quota):
    """``duel.duel`` for one game, learning by one step: a row is looked at once, for what to do in it and for what it is worth."""
    row, mover, moves, length, episode, key = i[at.row], i[at.place], i[at.moves], i[at.length], i[at.episode], i[at.key]
    mine, yours = (i[at.cell + 1], i[at.cell]) if mover else (i[at.cell], i[at.cell + 1])  # of the mover, and of the other
    gained, lost = (f[at.gain + 1], f[at.gain]) if mover else (f[at.gain], f[at.gain + 1])
    t = first
    while t < stop and episode < quota:
        level, bits = level_at(rule, t), draw(key, 2 * moves)
        if kind.explore == EPSILON and kind.target == GREEDY:
            top, equals, action = peek(rule, q, legal, row)
            if half(bits) < level:
                action = any_action(rule, legal, row, bits)
            elif equals > 1 and kind.ties:
                action = among(rule, q, legal, row, top, equals, action, bits)
        else:
            top, action = 0.0, choose(rule, q, n, legal, row, level, bits)
        if mine >= 0:
            side = coin(draw(key, 2 * moves + 1)) if kind.target == DOUBLE else 0
            if not (kind.explore == EPSILON and kind.target == GREEDY):
                top = value(rule, q, legal, row, action, level, side)
            relax(rule, q, n, mine + side * rule.cells, gained + rule.discount * top)
        mine, gained, moves, length, t = row * rule.num_actions + action, 0.0, moves + 1, length + 1, t + 1
        reward = wf[np.uint64(world.reward + mine)]
        if wi[np.uint64(world.over + mine)]:
            for seat in range(2):
                cell, goal = (mine, gained + reward) if seat == 0 else (yours, lost - reward)
                if cell >= 0:
                    who = mover if seat == 0 else 1 - mover
                    side = coin(draw(key, 2 * moves - 1 + 2 * who)) if kind.target == DOUBLE else 0
                    relax(rule, q, n, cell + side * rule.cells, goal)
            count(at, f, i, -reward if mover else reward, length, t - 1)
            episode, length, mover, row = episode + 1, 0, 0, wi[world.start]
            mine, yours, gained, lost = -1, -1, 0.0, 0.0
        else:
            row, mover = wi[np.uint64(world.after + mine)], 1 - mover
            mine, yours, gained, lost = yours, mine, (lost - reward if yours >= 0 else lost), reward
    i[at.row], i[at.place], i[at.moves], i[at.length], i[at.episode] = row, mover, moves, length, episode
    i[at.cell + mover], i[at.cell + 1 - mover] = mine, yours
    f[at.gain + mover], f[at.gain + 1 - mover] = gained, lost
    return t - first


def relax(rule, q, n, cell, goal):
    """``memory.toward``."""
    place = np.uint64(cell)
    n[place] += 1
    q[place] += visit_pace(rule, n[place]) * (goal - q[place])
