"""Conformance of environments that live in Python: they are played, twice the same way where it matters. No JAX here."""

from __future__ import annotations

import copy
import warnings
from typing import Any, NamedTuple

import numpy as np

from shoal.testing.findings import Entry, Log, say_limit
from shoal.testing.host_world import World
from shoal.testing.leaf import Misfit, digest, faults, global_draws, looks_reset, pick, vector

TABLE = {
    "spec": Entry("spaces are declared", "shoal refuses the environment"),
    "reset": Entry("reset(seed) answers as it must", "the run stops with an EnvError"),
    "step": Entry("step answers five things and raises nothing", "the run stops with an EnvError"),
    "shape": Entry("observations have the declared shape", "the run stops with an EnvError"),
    "dtype": Entry("observations have the declared type", "shoal converts them to the declared type; digits may be lost"),
    "bounds": Entry("observations lie within the declared bounds", "shoal does not clip: the network sees them as they are"),
    "finite": Entry("observations and rewards are finite", "the run stops with an EnvError that names the step"),
    "reward": Entry("rewards are real numbers", "shoal converts to float32 what it can, and stops with an EnvError otherwise"),
    "flags": Entry("terminated and truncated are booleans", "shoal takes anything but 0 for an end"),
    "info": Entry("info is a dict with the declared keys", "evaluation stops with an EnvError where it needs the key"),
    "agents": Entry("rewards and flags have one entry per agent", "the run stops, or one agent gets another's reward"),
    "seeding": Entry("the same seed gives the same episode", "runs do not repeat, and a resume needs --inexact-resume"),
    "replay": Entry("an episode repeats after others have been played", "shoal makes a fresh copy for every episode"),
    "global_random": Entry("no process-wide generator is used", "environments disturb each other, and runs may not repeat"),
    "state": Entry("set_state brings back what get_state gave", "a resumed run continues from another place"),
    "final_observation": Entry("the last observation of an episode is its own",
                               "shoal would learn from another episode's start: do not reset inside step"),
    "autoreset": Entry("nothing starts by itself after an end", "shoal resets at every end itself: nothing is lost"),
    "truncation": Entry("a time limit is reported as truncated, not as terminated",
                        "shoal would value what lies beyond the limit at 0"),
    "limit": Entry("episodes end", "training runs on, evaluation cuts episodes at 100,000 steps: give --max-episode-steps"),
    "buffer": Entry("an observation stays as it was given", "shoal copies at once, so that training is right; others may not"),
    "action": Entry("actions are left as they were given", "shoal's record of the action would be wrong"),
    "action_bounds": Entry("the lowest and highest actions are accepted",
                           "the run stops with an EnvError once a policy goes so far"),
    "close": Entry("close can be called twice", "a run that ends early may report this instead of its cause"),
}
_CAP, _TOTAL = 1_000, 10_000  # steps of an episode without limit, and of all
_RESETS, _KEPT = 30, 200  # resets besides; observations kept per episode


class Episode(NamedTuple):
    seed: int
    actions: list[Any]
    trace: list[Any]  # what was answered, reset first
    first: np.ndarray  # the observation as numbers in a row
    middles: list[np.ndarray]
    final: np.ndarray | None  # None where the episode was cut here
    final_digest: Any
    terminated: bool
    truncated: bool

    @property
    def length(self) -> int:
        return len(self.actions)


def check_host(world: World, log: Log, episodes: int, seed: int, by_name: bool) -> None:
    """Play ``episodes`` episodes and more, and note in ``log`` what was found."""
    log.tried("spec", "reset", "step", "shape", "dtype", "bounds", "finite", "reward", "flags", "info", "buffer", "action")
    if world.agents:
        log.tried("agents")
    with global_draws() as used, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Gymnasium warns of some of what is found here
        try:
            _check(world, log, episodes, seed, by_name)
        except Misfit as misfit:
            log.fault(misfit.check, str(misfit))
    log.tried("global_random")
    if used:
        log.fault("global_random", f"{' and '.join(used)} changed while it was played")


def _check(world: World, log: Log, episodes: int, seed: int, by_name: bool) -> None:
    seeds = [int(s) for s in np.random.default_rng(seed).integers(0, 2**31, episodes + _RESETS)]
    first = _play(world, log, seeds[0], 0)
    again = _second_opinion(world, log, first)
    played, left = [first], _TOTAL - first.length
    for index in range(1, episodes):
        if left > 0:
            played.append(_play(world, log, seeds[index], index))
            left -= played[-1].length
    if again:
        log.tried("replay")
        for episode in (first, *sorted(played[1:], key=lambda each: each.length)[-2:]):  # long ones show what short ones hide
            if difference := _compare(episode.trace, _retrace(world, episode)):
                log.fault("replay", f"after {len(played) - 1} more, reset({episode.seed}) and the same actions gave {difference}")
    starts = [first.first] + [vector(world.obs, _reset(world, log, s)) for s in seeds[episodes:]]
    _check_variety(log, np.stack(starts), played)
    _check_ends(world, log, played, np.stack(starts))
    _check_truncation(world, log, played, by_name)
    _check_extremes(world, log, seeds[0])
    _check_state(world, log, seeds[0])
    _check_close(world, log)


def _second_opinion(world: World, log: Log, first: Episode) -> bool:
    """Whether the same seed gives the same episode on a new copy; where none can be made, at once on the same one."""
    log.tried("seeding")
    other = world.fresh()
    difference = _compare(first.trace, _retrace(other or world, first))
    if other:
        other.close()
    if difference:
        where = "on a new copy" if other else "on the same object, at once"
        log.fault("seeding", f"{where}, reset({first.seed}) and the same actions gave {difference}")
    return not difference


def _call(world: World, what: str, *args: Any) -> Any:
    """A call of the environment; whatever it raises is a finding."""
    try:
        return getattr(world, what)(*args)
    except Misfit:
        raise
    except Exception as error:  # the environment is someone else's code and may raise anything
        raise Misfit(what, f"{what} raised {type(error).__name__}: {error}") from error


def _reset(world: World, log: Log, seed: int) -> Any:
    obs = _call(world, "reset", seed)
    _check_obs(world, log, obs, "from reset")
    return obs


def _check_obs(world: World, log: Log, obs: Any, where: str) -> None:
    for leaf in world.obs:
        for check, detail in faults(leaf, pick(leaf, obs)):
            log.fault(check, f"{detail} ({where})")
            if check == "shape":
                raise Misfit(check, detail)


def _play(world: World, log: Log, seed: int, index: int) -> Episode:
    """One episode, at random; in every other one actions are held for a while, which gets further."""
    world.seed_actions(seed)
    draw = np.random.default_rng(seed)
    obs = _reset(world, log, seed)
    trace: list[Any] = [digest(obs)]
    actions: list[Any] = []
    middles: list[np.ndarray] = []
    first, action = vector(world.obs, obs), world.random_action()
    cap = min(world.limit, 5 * _CAP) + 2 if world.limit else _CAP
    gone = np.zeros(world.agents, bool)
    for t in range(cap):
        if index % 2 == 0 or draw.random() < 0.15:
            action = world.random_action()
        actions.append(copy.deepcopy(action))
        given, before = obs, digest(obs)
        obs, reward, terminated, truncated, info = _call(world, "step", action)
        where = f"at step {t} of episode {index}"
        _check_obs(world, log, obs, where)
        _check_rest(world, log, (reward, terminated, truncated, info), where)
        if digest(given) != before:
            log.fault("buffer", f"the observation given before changed {where}")
        if digest(action) != digest(actions[-1]):
            log.fault("action", f"the action was {actions[-1]} and became {action} {where}")
            action = copy.deepcopy(actions[-1])
        trace.append((digest(obs), digest(reward), digest(terminated), digest(truncated)))
        gone |= np.asarray(terminated, bool) | np.asarray(truncated, bool)
        if gone.all():
            ends = bool(np.any(terminated)), bool(np.any(truncated))
            return Episode(seed, actions, trace, first, middles, vector(world.obs, obs), digest(obs), *ends)
        if len(middles) < _KEPT:
            middles.append(vector(world.obs, obs))
    return Episode(seed, actions, trace, first, middles, None, None, False, False)


def _check_rest(world: World, log: Log, answer: tuple[Any, Any, Any, Any], where: str) -> None:
    reward, terminated, truncated, info = answer
    number = np.asarray(reward)
    if number.dtype.kind not in "iuf":
        log.fault("reward", f"reward is {reward!r}, a {type(reward).__name__} ({where})")
    elif number.shape != world.agents:
        log.fault("agents" if world.agents else "reward", f"reward has shape {number.shape}: expected {world.agents} ({where})")
    elif not np.isfinite(number).all():
        log.fault("finite", f"reward is {reward} ({where})")
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.asarray(flag).dtype != bool:
            log.fault("flags", f"{name} is {flag!r}, a {type(flag).__name__} ({where})")
        if np.shape(flag) != world.agents:
            log.fault("agents" if world.agents else "flags", f"{name} has shape {np.shape(flag)}: expected {world.agents}")
            raise Misfit("step", f"{name} cannot be read {where}")
    if not isinstance(info, dict):
        log.fault("info", f"info is a {type(info).__name__} ({where})")
    elif missing := [name for name in world.info if name not in info]:
        log.fault("info", f"info has no {missing[0]!r}, which the spec declares ({where})")
    elif extra := [str(name) for name in info if name not in world.info]:
        beyond = ", which the spec does not declare" if world.declares_info else ""
        log.note("info", f"info has {', '.join(extra[:5])}{beyond}", "shoal leaves it out")


def _retrace(world: World, episode: Episode) -> list[Any]:
    """The answers to the same seed and actions."""
    trace = [digest(_call(world, "reset", episode.seed))]
    for action in episode.actions:
        obs, reward, terminated, truncated, _ = _call(world, "step", copy.deepcopy(action))
        trace.append((digest(obs), digest(reward), digest(terminated), digest(truncated)))
    return trace


def _compare(one: list[Any], other: list[Any]) -> str:
    """Where two traces part, in words; empty where they do not."""
    parted = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
    if parted is None:
        return ""
    return "another first observation" if parted == 0 else f"another answer at step {parted - 1}"


def _check_variety(log: Log, starts: np.ndarray, played: list[Episode]) -> None:
    if (starts == starts[0]).all():
        same = len(played) > 1 and all(not _compare(one.trace[:1], played[0].trace[:1]) for one in played)
        if same:
            log.note("seeding", f"{len(starts)} seeds gave the same first observation", "fine if the start is fixed by nature")


def _check_ends(world: World, log: Log, played: list[Episode], starts: np.ndarray) -> None:
    """What is shown at an end and right after it."""
    ended = [episode for episode in played if episode.final is not None]
    middles = np.asarray([row for episode in played for row in episode.middles]).reshape(-1, starts.shape[1])
    if not ended:
        return
    log.tried("final_observation", "autoreset")
    finals = np.asarray([episode.final for episode in ended])
    if looks_reset(starts, middles, finals) or _resets_inside(world, ended):
        log.fault("final_observation", f"all {len(ended)} episodes ended on an observation that looks like the first of the next")
        return
    after = [row for row in (_beyond(world, episode) for episode in ended) if row is not None]
    if looks_reset(starts, middles, np.asarray(after).reshape(-1, starts.shape[1])):
        log.fault("autoreset", f"a step after the end began a new episode, {len(after)} times out of {len(ended)}")


def _resets_inside(world: World, ended: list[Episode]) -> bool:
    """Whether every last observation is, to the bit, what a reset without seed in place of the last step would have shown."""
    if world.declares_info or len(ended) < 3:  # shoal's own kind cannot be reset without a seed
        return False
    for episode in ended[:4]:
        world.reset(episode.seed)
        for action in episode.actions[:-1]:
            world.step(copy.deepcopy(action))
        if digest(world.reset(None)) != episode.final_digest:
            return False
    return True


def _beyond(world: World, episode: Episode) -> np.ndarray | None:
    """The observation after the end, if the environment answers there at all; it need not."""
    _retrace(world, episode)
    try:
        obs, _, terminated, truncated, _ = world.step(copy.deepcopy(episode.actions[-1]))
        return None if np.any(terminated) or np.any(truncated) else vector(world.obs, obs)
    except Exception:  # a refusal is the best answer here
        return None


def _check_truncation(world: World, log: Log, played: list[Episode], by_name: bool) -> None:
    log.tried("truncation", "limit")
    limit = world.limit
    at_limit = [episode for episode in played if limit > 1 and episode.length == limit and episode.final is not None]
    if len(at_limit) > 1 and all(episode.terminated for episode in at_limit):
        both = all(episode.truncated for episode in at_limit)
        log.fault("truncation", f"{len(at_limit)} episodes reached the limit of {limit} steps and all were reported as terminated"
                  + (" and truncated at once" if both else ""))
    twice = [episode for episode in played if episode.terminated and episode.truncated and episode.length != limit]
    if not world.agents and len(twice) > 1 and len(twice) == sum(episode.truncated for episode in played):
        log.fault("truncation", f"{len(twice)} episodes ended terminated and truncated at once, none truncated alone")
    if limit:
        if any(episode.length > limit for episode in played):
            say_limit(log, limit, by_name)
    elif all(episode.final is None for episode in played):
        total = sum(episode.length for episode in played)
        log.fault("limit", f"no episode ended in {total:,} steps, and no limit is declared")


def _check_extremes(world: World, log: Log, seed: int) -> None:
    for action in world.extreme_actions():
        log.tried("action_bounds")
        _call(world, "reset", seed)
        try:
            obs, *_ = _call(world, "step", copy.deepcopy(action))
            _check_obs(world, log, obs, f"after action {action}")
        except Misfit as misfit:
            log.fault("action_bounds", f"action {action}: {misfit}")


def _check_state(world: World, log: Log, seed: int) -> None:
    """From a state that was taken, the same actions must lead to the same answers, though others came between."""
    env = world.env
    if not (world.declares_info and hasattr(env, "get_state") and hasattr(env, "set_state")):
        return
    log.tried("state")
    world.seed_actions(seed)
    actions = [world.random_action() for _ in range(8)]
    _call(world, "reset", seed)
    world.step(actions[0])
    try:
        state = copy.deepcopy(env.get_state())
        one = [digest(world.step(copy.deepcopy(action))[:4]) for action in actions]
        world.reset(seed + 1)
        env.set_state(state)
        other = [digest(world.step(copy.deepcopy(action))[:4]) for action in actions]
    except Exception as error:  # the environment is someone else's code and may raise anything
        log.fault("state", f"{type(error).__name__}: {error}")
        return
    if difference := _compare([None, *one], [None, *other]):
        log.fault("state", f"after set_state the same actions gave {difference}")


def _check_close(world: World, log: Log) -> None:
    other = world.fresh()
    if other is None:  # someone else's object, perhaps still in use
        return
    log.tried("close")
    try:
        other.close()
        other.close()
    except Exception as error:  # the environment is someone else's code and may raise anything
        log.fault("close", f"raised {type(error).__name__}: {error}")
