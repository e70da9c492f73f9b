"""Games of two who move in turn and learn in one table. One number at a time, like ``kernels``, whose rules and arguments these share.

Game g has seats 2g and 2g + 1. A seat's move is learned from when it is its turn again, by what happened in between, or when the game ends:
the one who wins it with a move gets the reward, and the other, whose last move let it happen, as much less than nothing.
"""

from __future__ import annotations

from shoal.tabular.draws import coin, draw
from shoal.tabular.kernels import best, choose, level_at, value, worth, write
from shoal.tabular.rule import GREEDY, RECENT, TRACES, Kind

kind = Kind()


def duel(rule, at, world, wf, wi, q, n, legal, f, i, first, stop, steps, quota):
    """Vector steps ``first`` to ``stop``, a move in every game each. How many were taken: fewer where all games rest."""
    for t in range(first, stop):
        moved, level = False, level_at(rule, t)
        for g in range(0, rule.envs, 2):
            i[at.place + g + 1] = 0
            if t - first < steps[g] and i[at.episode + g] < quota[g]:
                moved = True
                i[at.place + g + 1] = 1  # it moves
                consider(rule, at, q, n, legal, f, i, g, level)
        if not moved:
            return t - first
        for g in range(0, rule.envs, 2):
            if i[at.place + g + 1]:
                move(rule, at, world, wf, wi, q, n, legal, f, i, g, t)
    return stop - first


def consider(rule, at, q, n, legal, f, i, g, level):
    """Choose the next move of a game, and see what the mover's last one has come to."""
    seat, row = g + i[at.place + g], i[at.row + g]
    bits = draw(i[at.key + g], 2 * i[at.moves + g])
    action = choose(rule, q, n, legal, row, level, bits)
    i[at.action + seat] = action
    if i[at.cell + seat] >= 0:
        i[at.next_row + seat], f[at.alive + seat], i[at.last + seat] = row, 1.0, 0
        i[at.coin + seat] = coin(draw(i[at.key + g], 2 * i[at.moves + g] + 1))
        boot = rule.discount * value(rule, q, legal, row, action, level, i[at.coin + seat])
        f[at.boot + seat] = f[at.gain + seat] + boot - q[i[at.cell + seat]] if kind.family == TRACES else boot


def move(rule, at, world, wf, wi, q, n, legal, f, i, g, t):
    """Learn from the mover's last move, and make the next."""
    seat = g + i[at.place + g]
    cell = i[at.row + g] * rule.num_actions + i[at.action + seat]
    if i[at.cell + seat] >= 0:
        write(rule, at, q, n, legal, f, i, seat)
    if kind.family == TRACES and kind.target == GREEDY and worth(rule, q, cell) < best(rule, q, legal, i[at.row + g]):
        i[at.used + seat] = 0
    i[at.cell + seat], f[at.gain + seat] = cell, 0.0
    i[at.moves + g] += 1
    i[at.length + g] += 1
    reward = wf[world.reward + cell]
    if wi[world.over + cell]:
        finish(rule, at, world, wi, q, n, legal, f, i, g, reward, t)
    else:
        f[at.gain + seat] = reward
        if i[at.cell + 2 * g + 1 - seat] >= 0:
            f[at.gain + 2 * g + 1 - seat] -= reward
        i[at.row + g], i[at.place + g] = wi[world.after + cell], 1 - i[at.place + g]


def finish(rule, at, world, wi, q, n, legal, f, i, g, reward, t):
    """The game is over: both seats learn from their last moves, and the next game begins."""
    mover = g + i[at.place + g]
    for seat in (mover, 2 * g + 1 - mover):
        if i[at.cell + seat] >= 0:
            f[at.gain + seat] += reward if seat == mover else -reward
            i[at.next_row + seat], f[at.alive + seat], i[at.last + seat] = i[at.row + g], 0.0, 1
            i[at.coin + seat] = coin(draw(i[at.key + g], 2 * i[at.moves + g] - 1 + 2 * (seat - g)))
            f[at.boot + seat] = f[at.gain + seat] - q[i[at.cell + seat]] if kind.family == TRACES else 0.0
            write(rule, at, q, n, legal, f, i, seat)
            i[at.cell + seat] = -1
    k = i[at.ended] % RECENT
    f[at.returns + k], i[at.lengths + k] = reward if mover == g else -reward, i[at.length + g]
    i[at.step + k], i[at.env + k] = t, g
    i[at.ended] += 1
    f[at.return_sum] += f[at.returns + k]
    i[at.length_sum] += i[at.length + g]
    i[at.episode + g] += 1
    i[at.length + g], i[at.place + g], i[at.row + g] = 0, 0, wi[world.start]
