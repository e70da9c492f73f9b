"""What a kernel is told: the numbers of a rule of learning, and where in a lane's two arrays everything lies.

A lane is one array of whole numbers and one of floats: compiled code passes two arrays on for nothing and twenty at a price, a checkpoint
is the two arrays, and so is what travels. The table itself lies apart, so that several may share it.
"""

from __future__ import annotations

from typing import NamedTuple

# families: when a table is written
ONE_STEP, N_STEP, TRACES, RETURNS, SWEEPING = range(5)
# targets: what a successor is taken to be worth
GREEDY, TAKEN, EXPECTED, DOUBLE = range(4)
# exploration
EPSILON, BOLTZMANN, UCB = range(3)
# schedules of exploration
CONSTANT, LINEAR, EXPONENTIAL = range(3)

RECENT = 100  # episodes that a mean return is taken over


class Kind(NamedTuple):
    """What kind of learning it is: constants to whoever compiles the kernels."""

    family: int = ONE_STEP
    target: int = GREEDY
    explore: int = EPSILON
    schedule: int = CONSTANT
    ties: int = 1  # 1: broken at random; 0: the first
    masked: int = 0  # 1: ``legal`` says what may be done
    replacing: int = 0  # traces: 1 replace, 0 accumulate
    by_visits: int = 0  # 1: the rate of a pair falls with its visits
    actions: int = 0  # how many there are, where a loop is compiled for just that; 0: any number
    own_rows: int = 0  # 1: likewise, where every state has its own row, of the same number


class Rule(NamedTuple):
    """Its numbers. A cell is row · actions + action; double learning's second table follows the first."""

    num_actions: int
    cells: int
    envs: int
    span: int  # places of memory per environment
    sweeps: int  # backups after a step
    outcomes: int  # that a model keeps of a pair
    discount: float
    rate: float
    rate_visits: float  # visits at which the rate has halved
    level_start: float  # epsilon or temperature
    level_end: float
    level_steps: float  # vector steps from one to the other
    level_log: float  # log(end / start)
    bonus: float  # UCB
    decay: float  # discount · lambda
    least: float  # smallest trace that is kept, smallest change that is swept on


class At(NamedTuple):
    """Where things begin in a lane's arrays; ``F`` in the one of floats, the others in the one of whole numbers. B environments."""

    key: int  # [B]: of its draws, 64 bits
    place: int  # [B]: state of its model
    row: int  # [B]: what it shows
    action: int  # [B]: what was decided beforehand; -1: nothing
    moves: int  # [B]: steps taken in all
    episode: int  # [B]: episodes that have ended
    length: int  # [B]: of the running episode
    total: int  # [B] F: its return so far
    # one step of all environments, between choosing and learning
    cell: int  # [B]; -1: this one rests
    coin: int  # [B]: which table double learning writes
    gain: int  # [B] F: reward
    next_place: int  # [B]
    next_row: int  # [B]
    alive: int  # [B] F: 0 where the process ended
    last: int  # [B]: 1 where the episode did
    boot: int  # [B] F: what is to come is worth, discounted; traces: the error
    # what an environment's episode is remembered by: places e · span to (e + 1) · span
    kept: int  # [B · span]: cells
    value: int  # [B · span] F: rewards, or traces
    used: int  # [B]: how many
    # episodes that ended; number k of the last ones is at k % RECENT
    ended: int  # [1]: how many
    length_sum: int  # [1]
    return_sum: int  # [1] F
    returns: int  # [RECENT] F
    lengths: int  # [RECENT]
    step: int  # [RECENT]: vector step at which each ended
    env: int  # [RECENT]
    # a model as it is learned: pair c has places c · outcomes to (c + 1) · outcomes
    seen: int  # [cells · outcomes]: how often
    after: int  # [cells · outcomes]: 2 · row + whether the episode ended there
    sum: int  # [cells · outcomes] F: of rewards
    known: int  # [cells]: outcomes of a pair
    link: int  # [cells · outcomes]: the next outcome that leads to the same row; -1: none
    head: int  # [rows]: the first
    heap: int  # [cells]: pairs, most urgent first
    stand: int  # [cells]: where a pair is in the heap; -1: not
    weight: int  # [cells] F: how urgent
    size: int  # [1]: of the heap
    lost: int  # [1]: outcomes for which there was no place


class World(NamedTuple):
    """A model as kernels read it: where its parts begin in an array of floats and one of whole numbers."""

    chance: int  # F
    reward: int  # F
    start_chance: int  # F
    after: int
    over: int
    start: int
    row: int
    num_starts: int
    outcomes: int
    limit: int
    even: int  # 1: all outcomes of a pair are as likely


WHOLE = 6  # numbers of a rule that are whole: those come first
FLOATS = ("total", "gain", "alive", "boot", "value", "return_sum", "returns", "sum", "weight")


def sizes(kind: Kind, rule: Rule) -> dict[str, int]:
    """How many numbers each part of a lane has."""
    swept = kind.family == SWEEPING
    pairs, rows = (rule.cells, rule.cells // rule.num_actions) if swept else (0, 0)
    own = {name: rule.envs for name in ("key", "place", "row", "action", "moves", "episode", "length", "total", "cell", "coin", "gain",
                                        "next_place", "next_row", "alive", "last", "boot", "used")}
    kept = dict.fromkeys(("kept", "value"), rule.envs * rule.span)
    ended = dict.fromkeys(("ended", "length_sum", "return_sum"), 1) | dict.fromkeys(("returns", "lengths", "step", "env"), RECENT)
    model = dict.fromkeys(("seen", "after", "sum", "link"), pairs * rule.outcomes) | dict.fromkeys(
        ("known", "heap", "stand", "weight"), pairs) | {"head": rows, "size": 1, "lost": 1}
    return own | kept | ended | model


def layout(kind: Kind, rule: Rule) -> tuple[At, int, int]:
    """Where everything lies, and how many floats and whole numbers there are."""
    floats, ints = len(Rule._fields) - WHOLE, len(At._fields) + WHOLE  # both begin with a header
    at, num = {}, sizes(kind, rule)
    for name in At._fields:
        if name in FLOATS:
            at[name], floats = floats, floats + num[name]
        else:
            at[name], ints = ints, ints + num[name]
    return At(**at), floats, ints


def headed(rule: Rule, at: At) -> tuple[list[float], list[int]]:
    """What a lane's floats and whole numbers begin with: how they are to be read. It is quicker found there than passed on."""
    return [float(x) for x in rule[WHOLE:]], [*at, *(int(x) for x in rule[:WHOLE])]
