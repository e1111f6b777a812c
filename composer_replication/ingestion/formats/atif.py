"""Harbor's Agent Trajectory Interchange Format (ATIF), versions 1.0 to 1.8: one JSON document of steps.

A step of the agent holds its message, its calls and what came of them. Two things change what the model saw: a step
with `extra.context_management.boundary` begins the context anew, and steps copied from an earlier file
(`is_copied_context`) or made without a model (`llm_call_count: 0`) are context, no states of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from composer_replication.ingestion.chat_conversation import AgentTurns
from composer_replication.ingestion.chat_messages import calls_of, joined, text_of
from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.loose_json import (
    fields,
    is_nonzero,
    items,
    known,
    name_of,
    objects,
    reward_of,
    text_at,
    time_of,
    usage_of,
)
from composer_replication.ingestion.shell_commands import command_blocks
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Turn

NAME = "atif"
_KEYSTROKES = re.compile(r"<keystrokes\b[^>]*>(.*?)</keystrokes>", re.DOTALL)


def sniff(head: Head) -> bool:
    """A document that names an ATIF version and has steps."""
    version = fields(head.document).get("schema_version")
    return isinstance(version, str) and version.startswith("ATIF") and isinstance(head.document.get("steps"), list)


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """The trajectory, and with `options.subagents` the ones embedded in it; else each of those is counted."""
    document = log.document(stats)
    if document is None:
        return
    waiting: list[tuple[str, str | None, Any]] = [(log.stem, None, document)]
    while waiting:
        trace_id, parent, trajectory = waiting.pop()
        if parent is not None and not options.subagents:
            stats.skipped_subagent += 1
        elif items(fields(trajectory).get("steps")):
            trace = _trace(log, trace_id, parent, trajectory, stats)
            if trace.turns:
                yield trace
        else:
            stats.skip("trajectory without steps")
        waiting += reversed(list(_embedded(trace_id, trajectory)))


def _embedded(trace_id: str, trajectory: Any) -> Iterator[tuple[str, str | None, Any]]:
    """Sub-agents of a trajectory: embedded documents, and Claude Code's, whose steps are among the main ones."""
    root = fields(trajectory)
    children = items(root.get("subagent_trajectories")) or items(fields(root.get("extra")).get("subagent_trajectories"))
    for number, child in enumerate(children):
        name = text_at(fields(child), "trajectory_id") or str(number)
        yield f"{trace_id}#{name}", trace_id, child
    aside: dict[str, list[Any]] = {}
    for step in items(root.get("steps")):
        if (agent := _sidechain(step)) is not None:
            aside.setdefault(agent, []).append({**step, "extra": {**step["extra"], "is_sidechain": False}})
    shared = {key: value for key, value in root.items() if key in ("schema_version", "session_id", "agent")}
    for name, steps in aside.items():
        yield f"{trace_id}#{name}", trace_id, {**shared, "steps": steps}


def _sidechain(step: Any) -> str | None:
    extra = fields(fields(step).get("extra"))
    if extra.get("is_sidechain") is not True:
        return None
    return text_at(extra, "agent_id") or text_at(extra, "agentId") or "sidechain"


def _trace(log: LogFile, trace_id: str, parent: str | None, root: dict[str, Any], stats: IngestionStats) -> Trace:
    agent = fields(root.get("agent"))
    name = text_at(agent, "name")
    reader = _Reader(stats, agent=name)
    for step in root["steps"]:
        if not isinstance(step, dict):
            stats.skip("step that is not an object")
        elif _sidechain(step) is None:
            reader.add(step)
    final = fields(root.get("final_metrics"))
    extra = fields(root.get("extra"))
    meta = {
        "agent": name,
        "agent_version": text_at(agent, "version"),
        "trajectory_id": text_at(root, "trajectory_id"),
        "continued_trajectory_ref": text_at(root, "continued_trajectory_ref"),
        "notes": text_at(root, "notes"),
        "final_metrics": final,
        "extra": {key: value for key, value in extra.items() if key != "subagent_trajectories"},
    }
    return Trace(
        trace_id=trace_id,
        turns=reader.turns,
        source=log.source(NAME, version=text_at(root, "schema_version")),
        session_id=text_at(root, "session_id"),
        parent=parent,
        model=text_at(agent, "model_name"),
        tools=objects(agent.get("tool_definitions")),
        final_reward=reward_of(extra, final, fields(final.get("extra"))),
        meta=known(meta),
    )


class _Reader(AgentTurns):
    """Steps to turns, one at a time."""

    def __init__(self, stats: IngestionStats, *, agent: str | None) -> None:
        super().__init__(stats)
        self._agent = agent

    def add(self, step: dict[str, Any]) -> None:
        source = step.get("source")
        change = fields(fields(step.get("extra")).get("context_management"))
        if source == "agent":
            self._agent_step(step)
        elif source == "user":
            self._say("user", text_of(step.get("message")), step, origin="prompt")
        elif source != "system":
            self._stats.skip(f"step source {name_of(source)}")
        elif not change:
            self._system_step(step)
        if change and source in ("agent", "system"):
            self._context_changed(step, change)

    def _say(self, role: Any, text: str, step: dict[str, Any], *, origin: str | None = None) -> None:
        self.put(Turn(role=role, content=text, origin=origin, timestamp=time_of(step.get("timestamp"))))

    def _system_step(self, step: dict[str, Any]) -> None:
        text = joined([text_of(step.get("message")), *self._contents(step)])
        if all(turn.role == "system" for turn in self.turns):
            self._say("system", text, step)
        elif self._agent == "openhands":
            # Its events about itself ("Added workspace context"): the step has their titles, the model saw none.
            self._stats.skip("system step about the harness")
        else:
            self._say("user", text, step, origin="system")

    def _context_changed(self, step: dict[str, Any], change: dict[str, Any]) -> None:
        """A boundary "replace" leaves of the context what its observation says; the rest adds to it or trims it."""
        anew = change.get("boundary") == "replace"
        summary = joined(self._contents(step))
        self.begins_anew = self.begins_anew or anew
        if summary and (anew or step.get("source") == "system"):
            self._say("user", summary, step, origin="summary" if anew else "system")
        elif step.get("source") == "system":
            # With "replace" the next step begins the context; what another boundary took away, the log does not say.
            self._stats.skip("context boundary without content")

    def _agent_step(self, step: dict[str, Any]) -> None:
        turn = Turn(
            role="assistant",
            content=text_of(step.get("message")),
            thinking=text_of(step.get("reasoning_content")),
            id=str(step["step_id"]) if isinstance(step.get("step_id"), int | str) else None,
            model=text_at(step, "model_name"),
            usage=usage_of(step.get("metrics")),
            timestamp=time_of(step.get("timestamp")),
            repeats=step.get("is_copied_context") is True or step.get("llm_call_count") == 0,
        )
        logged = items(step.get("tool_calls"))
        turn.tool_calls = calls_of(logged, self._stats, step=len(self.turns))
        self.reply(turn, _commands(turn.content) if not logged and _result_records(step) else [])
        self._results(step)

    def _results(self, step: dict[str, Any]) -> None:
        results = _result_records(step)
        flagged = fields(step.get("extra")).get("tool_result_is_error") is True and len(results) == 1
        # Results with an id go first to their calls; those without take, in order, what is left.
        named = [self.calls.answered(text_at(fields(one), "source_call_id")) for one in results]
        turns: list[Turn] = []
        for result, call_id in zip(results, named, strict=True):
            if not isinstance(result, dict):
                self._stats.skip("result that is not an object")
                continue
            if call_id is None and result.get("content") is None:
                self._stats.skip("result without content")
                continue
            if call_id is None and self.calls.waiting:
                call_id = self.calls.answered(self.calls.waiting[0])
            turns.append(
                Turn(
                    role="tool",
                    content=text_of(result.get("content")),
                    tool_call_id=call_id,
                    is_error=flagged or _failed(result),
                    timestamp=time_of(step.get("timestamp")),
                )
            )
        # Results without a call come last: nothing may come between a call and its result.
        for turn in sorted(turns, key=lambda one: one.tool_call_id is None):
            self.put(turn)

    def _contents(self, step: dict[str, Any]) -> list[str]:
        return [text_of(fields(result).get("content")) for result in _result_records(step)]


def _result_records(step: dict[str, Any]) -> list[Any]:
    return items(fields(step.get("observation")).get("results"))


def _failed(result: dict[str, Any]) -> bool:
    for place in (result, fields(result.get("extra"))):
        if place.get("is_error") is True:
            return True
        if is_nonzero(place.get("exit_code", place.get("returncode"))):
            return True
    return False


def _commands(text: str) -> list[str]:
    """The command of a reply without tool calls: the keystrokes of Terminus (JSON or XML), or a block of shell.

    Terminus sends all its keystrokes and gets one screen back, so they are one call.
    """
    keys: list[str] = _KEYSTROKES.findall(text)
    start, end = text.find("{"), text.rfind("}")
    if not keys and 0 <= start < end:
        try:
            reply = msgspec.json.decode(text[start : end + 1].encode("utf-8", "surrogatepass"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            reply = None
        sent = [fields(command).get("keystrokes") for command in items(fields(reply).get("commands"))]
        keys = [one for one in sent if isinstance(one, str)]
    return ["".join(keys)] if any(keys) else command_blocks(text)


FORMAT = LogFormat(NAME, sniff, read)
