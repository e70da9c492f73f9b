"""Choosing, stepping and learning, one number at a time. As they are, on lists, they are the plain table; ``compiled`` compiles them.

Within a step of all environments everything is read before anything is written; then every environment's change is applied, in order,
also where several concern the same pair. Nothing here may depend on how numbers are stored, nor call what rounds differently elsewhere.

Arguments, everywhere: ``rule`` and ``at``; the table ``q`` and its counters ``n``; ``legal`` by cell; a lane's floats ``f`` and whole
numbers ``i``; a model's floats ``wf`` and whole numbers ``wi``. ``e`` is an environment, ``t`` a vector step.
"""

from __future__ import annotations

import math

from shoal.tabular.draws import coin, draw, half, other, pick, share, unit
from shoal.tabular.elementary import exp, log
from shoal.tabular.memory import visit_pace
from shoal.tabular.rule import DOUBLE, GREEDY, RECENT, TAKEN, TRACES, At, Kind, Rule

kind = Kind()  # this and what is assigned at the end are others where the kernels are bound to another kind, see ``bound``

# choosing ------------------------------------------------------------------------------------------------------------


def level_constant(rule, t):
    """Epsilon or temperature at vector step ``t``."""
    return rule.level_start


def level_linear(rule, t):
    part = t / rule.level_steps
    return rule.level_end if part >= 1.0 else rule.level_start + (rule.level_end - rule.level_start) * part


def level_exponential(rule, t):
    part = t / rule.level_steps
    return rule.level_end if part >= 1.0 else rule.level_start * exp(rule.level_log * part)


def worth_single(rule, q, cell):
    """What a pair is taken to be worth by whoever acts."""
    return q[cell]


def worth_double(rule, q, cell):
    return q[cell] + q[rule.cells + cell]


def tries_single(rule, n, cell):
    """How often a pair was learned from."""
    return n[cell]


def tries_double(rule, n, cell):
    return n[cell] + n[rule.cells + cell]


def best(rule, q, legal, row):
    """The largest worth in a row."""
    base, top = row * rule.num_actions, -math.inf
    for cell in range(base, base + rule.num_actions):
        if kind.masked and not legal[cell]:
            continue
        x = worth(rule, q, cell)
        if x > top:
            top = x
    return top


def greedy(rule, q, legal, row, bits):
    """The best action of a row; among equals one at random, or the first."""
    top, equals, first = look(rule, q, legal, row)
    return first if equals < 2 or not kind.ties else among(rule, q, legal, row, top, equals, first, bits)


def look(rule, q, legal, row):
    """The largest worth in a row, how many actions have it, and the first of them."""
    base, top, equals, first = row * rule.num_actions, -math.inf, 0, 0
    for a in range(rule.num_actions):
        x = worth(rule, q, base + a)
        allowed = not kind.masked or legal[base + a] != 0
        better, same = x > top and allowed, x == top and allowed
        equals = 1 if better else equals + (1 if same else 0)
        first = a if better else first
        top = x if better else top
    return top, equals, first


def among(rule, q, legal, row, top, equals, first, bits):
    """One of the actions that are worth ``top``."""
    base, left = row * rule.num_actions, pick(bits, equals)
    for a in range(first, rule.num_actions):
        if kind.masked and not legal[base + a]:
            continue
        if worth(rule, q, base + a) == top:
            if left == 0:
                return a
            left -= 1
    return first


def any_action(rule, legal, row, bits):
    """Any action that is legal, each as likely."""
    if not kind.masked:
        return pick(bits, rule.num_actions)
    base, num = row * rule.num_actions, 0
    for a in range(rule.num_actions):
        if legal[base + a]:
            num += 1
    left = pick(bits, num)
    for a in range(rule.num_actions):
        if legal[base + a]:
            if left == 0:
                return a
            left -= 1
    return 0


def choose_epsilon(rule, q, n, legal, row, level, bits):
    """Any action with probability ``level``, else the best."""
    return any_action(rule, legal, row, bits) if half(bits) < level else greedy(rule, q, legal, row, bits)


def choose_boltzmann(rule, q, n, legal, row, level, bits):
    """Better actions more often: in proportion to exp(worth / temperature)."""
    base, top, total = row * rule.num_actions, best(rule, q, legal, row), 0.0
    for a in range(rule.num_actions):
        if not kind.masked or legal[base + a]:
            total += exp((worth(rule, q, base + a) - top) / level)
    left, chosen = half(bits) * total, -1
    for a in range(rule.num_actions):
        if kind.masked and not legal[base + a]:
            continue
        chosen = a
        left -= exp((worth(rule, q, base + a) - top) / level)
        if left < 0.0:
            break
    return chosen


def choose_ucb(rule, q, n, legal, row, level, bits):
    """The action with the largest upper bound; those never tried first, any of them. Auer et al. (2002), UCB1."""
    base, new, total, top, chosen = row * rule.num_actions, 0, 0, -math.inf, 0
    for cell in range(base, base + rule.num_actions):
        if kind.masked and not legal[cell]:
            continue
        total += tries(rule, n, cell)
        if tries(rule, n, cell) == 0:
            new += 1
    left = pick(bits, new) if new else 0
    spread = log(total) if total else 0.0
    for a in range(rule.num_actions):
        cell = base + a
        if kind.masked and not legal[cell]:
            continue
        tried = tries(rule, n, cell)
        if new:
            if tried == 0:
                if left == 0:
                    return a
                left -= 1
            continue
        x = worth(rule, q, cell) + rule.bonus * math.sqrt(spread / tried)
        if x > top:
            top, chosen = x, a
    return chosen


def decide(rule, at, q, n, legal, i, e, level):
    """What an environment does next."""
    row, action = i[at.row + e], i[at.action + e]
    if action < 0:
        action = choose(rule, q, n, legal, row, level, draw(i[at.key + e], 2 * i[at.moves + e]))
    cell = row * rule.num_actions + action
    if kind.family == TRACES and kind.target == GREEDY and worth(rule, q, cell) < best(rule, q, legal, row):
        i[at.used + e] = 0  # Watkins: what came before did not lead to what the best action would bring
    i[at.cell + e] = cell


# stepping a known world ----------------------------------------------------------------------------------------------


def roll(rule, at, world, wf, wi, f, i, e):
    """One step of an environment by its model."""
    pair = i[at.place + e] * rule.num_actions + i[at.cell + e] % rule.num_actions
    bits = draw(i[at.key + e], 2 * i[at.moves + e] + 1)
    k = outcome(world, wf, pair * world.outcomes, bits)
    place, over = wi[world.after + k], wi[world.over + k]
    i[at.coin + e] = coin(bits)
    f[at.gain + e] = wf[world.reward + k]
    i[at.next_place + e], i[at.next_row + e] = place, wi[world.row + place]
    f[at.alive + e] = 0.0 if over else 1.0
    i[at.last + e] = 1 if over or (world.limit and i[at.length + e] + 1 >= world.limit) else 0


def outcome(world, wf, base, bits):
    """Where a pair's outcome lies, of those that begin at ``base``."""
    if world.even:
        return base + share(bits, world.outcomes)
    u, k = unit(bits), 0
    for j in range(world.chance + base, world.chance + base + world.outcomes - 1):
        k += u >= wf[j]
    return base + k


def restart(at, world, wf, wi, i, e):
    """Let an environment begin its next episode: a draw by the episode's number."""
    i[at.place + e] = wi[world.start + start_of(world, wf, unit(draw(other(i[at.key + e]), i[at.episode + e])))]
    i[at.row + e] = wi[world.row + i[at.place + e]]


def start_of(world, wf, u):
    """Which start a number in [0, 1) stands for: how many cumulative chances it has passed."""
    low, high = 0, world.num_starts - 1
    while low < high:
        middle = (low + high) // 2
        if u >= wf[world.start_chance + middle]:
            low = middle + 1
        else:
            high = middle
    return low


# learning ------------------------------------------------------------------------------------------------------------


def value_greedy(rule, q, legal, row, taken, level, side):
    """What a row is worth to whoever stands there next: as much as its best action."""
    return best(rule, q, legal, row)


def value_taken(rule, q, legal, row, taken, level, side):
    """As much as what will be done there."""
    return q[row * rule.num_actions + taken]


def value_double(rule, q, legal, row, taken, level, side):
    """The best by one table, as the other values it. Van Hasselt (2010), "Double Q-learning"."""
    base, chosen, top = row * rule.num_actions, row * rule.num_actions, -math.inf
    mine = rule.cells if side else 0
    for cell in range(base, base + rule.num_actions):
        if q[mine + cell] > top and (not kind.masked or legal[cell]):
            chosen, top = cell, q[mine + cell]
    return q[rule.cells - mine + chosen]


def value_expected_epsilon(rule, q, legal, row, taken, level, side):
    """The mean over what may be done there."""
    base, num, total = row * rule.num_actions, 0, 0.0
    for cell in range(base, base + rule.num_actions):
        if not kind.masked or legal[cell]:
            num, total = num + 1, total + q[cell]
    return (1.0 - level) * best(rule, q, legal, row) + level * (total / num)


def value_expected_boltzmann(rule, q, legal, row, taken, level, side):
    base, total, weight, top = row * rule.num_actions, 0.0, 0.0, best(rule, q, legal, row)
    for cell in range(base, base + rule.num_actions):
        if not kind.masked or legal[cell]:
            part = exp((q[cell] - top) / level)
            weight, total = weight + part, total + part * q[cell]
    return total / weight


def read(rule, at, q, n, legal, f, i, e, level):
    """All that is needed of the table before it is written; ``level`` is the next step's."""
    row, action, boot = i[at.next_row + e], -1, 0.0
    if f[at.alive + e] > 0.0:
        if kind.target == TAKEN:
            action = choose(rule, q, n, legal, row, level, draw(i[at.key + e], 2 * i[at.moves + e] + 2))
        boot = rule.discount * value(rule, q, legal, row, action, level, i[at.coin + e])
    i[at.action + e] = -1 if i[at.last + e] else action
    if kind.family == TRACES:
        boot = f[at.gain + e] + boot - q[i[at.cell + e]]
    f[at.boot + e] = boot


def write_one_step(rule, at, q, n, legal, f, i, e):
    """One environment's change: its pair moves towards what it turned out to be worth."""
    cell = i[at.cell + e]
    if kind.target == DOUBLE and i[at.coin + e]:
        cell += rule.cells
    n[cell] += 1
    q[cell] += visit_pace(rule, n[cell]) * (f[at.gain + e] + f[at.boot + e] - q[cell])


def settle(at, f, i, e, t):
    """Move on: count the step, and the episode where it ended."""
    i[at.place + e], i[at.row + e] = i[at.next_place + e], i[at.next_row + e]
    i[at.moves + e] += 1
    i[at.length + e] += 1
    f[at.total + e] += f[at.gain + e]
    if i[at.last + e]:
        k = i[at.ended] % RECENT
        f[at.returns + k], i[at.lengths + k] = f[at.total + e], i[at.length + e]
        i[at.step + k], i[at.env + k] = t, e
        i[at.ended] += 1
        f[at.return_sum] += f[at.total + e]
        i[at.length_sum] += i[at.length + e]
        i[at.episode + e] += 1
        i[at.length + e], f[at.total + e] = 0, 0.0


def walk(rule, at, world, wf, wi, q, n, legal, f, i, first, stop, steps, quota):
    """Vector steps ``first`` to ``stop`` in a known world. An environment rests once it has taken ``steps`` or ended ``quota`` episodes.
    How many were taken: fewer where all rest."""
    level = level_at(rule, first)
    for t in range(first, stop):
        moved = False
        for e in range(rule.envs):
            if t - first >= steps[e] or i[at.episode + e] >= quota[e]:
                i[at.cell + e] = -1
            else:
                moved = True
                decide(rule, at, q, n, legal, i, e, level)
                roll(rule, at, world, wf, wi, f, i, e)
        if not moved:
            return t - first
        level = level_at(rule, t + 1)
        for e in range(rule.envs):
            if i[at.cell + e] >= 0:
                read(rule, at, q, n, legal, f, i, e, level)
        for e in range(rule.envs):
            if i[at.cell + e] >= 0:
                write(rule, at, q, n, legal, f, i, e)
                settle(at, f, i, e, t)
                if i[at.last + e]:
                    restart(at, world, wf, wi, i, e)
    return stop - first


# worlds that are stepped elsewhere -----------------------------------------------------------------------------------


def act(q, n, legal, f, i, t):
    """What each environment of a lane does at vector step ``t``; those that rest have a cell of -1 beforehand, the others any other."""
    rule, at = rule_of(f, i), at_of(i)
    level = level_at(rule, t)
    for e in range(rule.envs):
        if i[at.cell + e] >= 0:
            decide(rule, at, q, n, legal, i, e, level)


def learn(q, n, legal, f, i, t):
    """Learn from what each environment answered at vector step ``t``. ``next_place`` holds the row to go on from: where an episode has
    ended, that of the next one."""
    rule, at = rule_of(f, i), at_of(i)
    level = level_at(rule, t + 1)
    for e in range(rule.envs):
        if i[at.cell + e] >= 0:
            i[at.coin + e] = coin(draw(i[at.key + e], 2 * i[at.moves + e] + 1))
            read(rule, at, q, n, legal, f, i, e, level)
    for e in range(rule.envs):
        if i[at.cell + e] >= 0:
            write(rule, at, q, n, legal, f, i, e)
            settle(at, f, i, e, t)
            i[at.row + e] = i[at.place + e]


def turn(q, n, f, i, t, row, gain, onward):
    """``learn`` and the next ``act`` for a lane of one environment without masks; its next action. ``onward`` is -1 while an episode goes
    on; where it ended 2 · the row the next one begins at, and 1 more where it was cut off. Few arguments: each is a price on every step."""
    rule, at = rule_of(f, i), at_of(i)
    i[at.next_row], f[at.gain], f[at.alive], i[at.last], i[at.next_place] = row, gain, 1.0, 0, row
    if onward >= 0:
        f[at.alive], i[at.last], i[at.next_place] = float(onward & 1), 1, onward >> 1
    i[at.coin] = coin(draw(i[at.key], 2 * i[at.moves] + 1))
    level = level_at(rule, t + 1)
    read(rule, at, q, n, n, f, i, 0, level)  # nothing is masked: what is legal is not looked at
    write(rule, at, q, n, n, f, i, 0)
    settle(at, f, i, 0, t)
    i[at.row] = i[at.place]
    decide(rule, at, q, n, n, i, 0, level)
    return i[at.cell] % rule.num_actions


def at_of(i):
    """Where things lie, as a lane's whole numbers begin."""
    return At(i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7], i[8], i[9], i[10], i[11], i[12], i[13], i[14], i[15], i[16], i[17],
              i[18], i[19], i[20], i[21], i[22], i[23], i[24], i[25], i[26], i[27], i[28], i[29], i[30], i[31], i[32], i[33],
              i[34], i[35], i[36])


def rule_of(f, i):
    """The rule, as a lane's arrays begin."""
    return Rule(i[37], i[38], i[39], i[40], i[41], i[42], f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9])


level_at, worth, tries, choose, value, write = (
    level_constant, worth_single, tries_single, choose_epsilon, value_greedy, write_one_step)
