"""SWE-agent `.traj` files: `{"trajectory", "history", "info"}`, of one run or of several attempts.

`history` is the chat that the model saw; `trajectory` has each step once more, with the messages that were sent for it
(`query`), which shows whose results had been elided by then, and with replies that the agent discarded and asked for
again. Where a file has no usable history, the steps are read instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from composer_replication.ingestion.chat_conversation import AgentTurns
from composer_replication.ingestion.chat_messages import assistant_turn, text_of
from composer_replication.ingestion.formats import Head, LogFormat, ReadOptions
from composer_replication.ingestion.log_file import LogFile
from composer_replication.ingestion.loose_json import fields, items, known, name_of, objects, reward_of, text_at
from composer_replication.ingestion.shell_commands import PROTOCOLS
from composer_replication.ingestion.statistics import IngestionStats
from composer_replication.traces import Trace, Turn, parse_arguments

NAME = "swe_agent"
_ELIDED = "Old environment output:"
_EXITS = ("Exit due to ", "Exiting due to ", "Exit because ")


def sniff(head: Head) -> bool:
    """A document with steps of actions and observations, and the run's history or its outcome beside them."""
    document = fields(head.document)
    attempts = [fields(attempt) for attempt in items(document.get("attempts"))]
    return any(_is_run(run) for run in (document, *attempts))


def _is_run(run: dict[str, Any]) -> bool:
    steps = run.get("trajectory")
    if not isinstance(steps, list) or not isinstance(run.get("history", run.get("info")), list | dict):
        return False
    acts = any("action" in fields(step) and "observation" in fields(step) for step in steps)
    chat = any("role" in fields(entry) and "agent" in fields(entry) for entry in items(run.get("history")))
    return acts or chat


def read(log: LogFile, options: ReadOptions, stats: IngestionStats) -> Iterator[Trace]:
    """One trace per attempt and agent. The agent that speaks first is the main one, the others are its sub-agents."""
    document = log.document(stats)
    if document is None:
        return
    root = fields(document)
    attempts = items(root.get("attempts"))
    if not attempts:
        yield from _run(log, log.stem, root, root, options, stats)
    for number, attempt in enumerate(attempts):
        # The document repeats its best attempt at the top, so the attempts are all there is.
        yield from _run(log, f"{log.stem}#{number}", root, fields(attempt), options, stats)


def _run(
    log: LogFile, trace_id: str, root: dict[str, Any], run: dict[str, Any], options: ReadOptions, stats: IngestionStats
) -> Iterator[Trace]:
    steps = _objects(run.get("trajectory"), "step", stats)
    by_agent: dict[str, list[dict[str, Any]]] = {}
    for entry in _objects(run.get("history"), "history entry", stats):
        by_agent.setdefault(text_at(entry, "agent") or "", []).append(entry)
    for agent, entries in list(by_agent.items()):
        if all(entry.get("is_demo") is True for entry in entries):
            # A demonstration under another agent's name is in no agent's context.
            stats.skip("demonstration of another agent", len(entries))
            del by_agent[agent]
    if not any(entry.get("role") == "assistant" for entries in by_agent.values() for entry in entries):
        by_agent = {}
    main = next(iter(by_agent), "")
    describe = _Description(log, root, run, steps)
    if not by_agent:
        reader = _Reader([], stats)
        reader.read_steps(steps)
        if reader.turns:
            yield describe.trace(trace_id, reader)
        else:
            stats.skip("run without steps")
    for agent, entries in by_agent.items():
        if agent != main and not options.subagents:
            stats.skipped_subagent += 1
            continue
        reader = _Reader(steps if agent == main else [], stats)
        reader.read_history(entries)
        if reader.turns and agent == main:
            yield describe.trace(trace_id, reader)
        elif reader.turns:
            yield describe.trace(f"{trace_id}#{agent}", reader, parent=trace_id)


def _objects(value: Any, what: str, stats: IngestionStats) -> list[dict[str, Any]]:
    given, found = items(value), objects(value)
    if len(found) < len(given):
        stats.skip(f"{what} that is not an object", len(given) - len(found))
    return found


class _Description:
    """The facts about a run, besides its turns."""

    def __init__(self, log: LogFile, root: dict[str, Any], run: dict[str, Any], steps: list[dict[str, Any]]) -> None:
        self._log = log
        info = fields(run.get("info")) or fields(root.get("info"))
        # SWE-agent writes its configuration as JSON inside JSON.
        config, _ = parse_arguments(run.get("replay_config") or root.get("replay_config"))
        agent = fields(config.get("agent"))
        problem = fields(config.get("problem_statement"))
        declared = text_at(fields(fields(agent.get("tools")).get("parse_function")), "type")
        self._protocols = (declared,) if declared in PROTOCOLS else ("thought_action", "xml_thought_action")
        state, _ = parse_arguments(steps[0].get("state") if steps else None)
        self._version = text_at(info, "swe_agent_version")
        self._model = text_at(fields(agent.get("model")), "name")
        self._cwd = text_at(state, "working_dir")
        self._reward = reward_of(info, run, root)
        self._meta = known(
            {
                "instance_id": text_at(problem, "id") or text_at(root, "instance_id"),
                "exit_status": text_at(info, "exit_status"),
                "submission": text_at(info, "submission"),
                "model_stats": info.get("model_stats"),
                "environment": text_at(run, "environment"),
            }
        )

    def trace(self, trace_id: str, reader: _Reader, *, parent: str | None = None) -> Trace:
        return Trace(
            trace_id=trace_id,
            turns=reader.turns,
            source=self._log.source(NAME, version=self._version),
            parent=parent,
            model=self._model,
            cwd=self._cwd,
            final_reward=self._reward if parent is None else None,
            meta=known({**self._meta, "text_protocol": reader.protocol(self._protocols)}),
        )


class _Reader(AgentTurns):
    """The history of one agent to turns, with the steps of the run beside it."""

    def __init__(self, steps: list[dict[str, Any]], stats: IngestionStats) -> None:
        super().__init__(stats)
        self._steps = steps
        self._next_step = 0
        self._without_step = 0
        self._cleared: set[str] = set()
        self._exited = False

    def read_history(self, entries: list[dict[str, Any]]) -> None:
        step: dict[str, Any] | None = None
        for entry in entries:
            role = entry.get("role")
            if role == "assistant":
                step = None if entry.get("is_demo") is True else self._step_of(entry)
                self._assistant(entry, step)
            elif role in ("user", "tool"):
                self._answer(entry)
            elif role == "system":
                self.turns.append(Turn(role="system", content=text_of(entry.get("content"))))
            else:
                self._stats.skip(f"role {name_of(role)}")
        if step is not None and self.calls.waiting and text_of(step.get("observation")):
            # Old versions end the history with the action that ends the run; the step has what came of it.
            self.result(self.calls.waiting[0], text_of(step.get("observation")))
        self._passed("step that is not in the history", len(self._steps))

    def read_steps(self, steps: list[dict[str, Any]]) -> None:
        """The turns without a history: the messages sent for the first step, then the steps."""
        sent = items(steps[0].get("query")) or items(steps[0].get("messages")) if steps else []
        for message in sent:
            if fields(message).get("role") in ("system", "user"):
                origin = "prompt" if message["role"] == "user" else None
                self.turns.append(Turn(role=message["role"], content=text_of(message.get("content")), origin=origin))
        for step in steps:
            text = text_of(step.get("response")) or text_of(step.get("thought"))
            if not text and not text_at(step, "action"):
                self._stats.skip("step without a reply")
                continue
            self._assistant({**step, "content": text}, None)
            observation = text_of(step.get("observation"))
            if self.calls.waiting:
                self.result(self.calls.waiting[0], observation)
            elif observation and not self._exited:
                self.turns.append(Turn(role="user", content=observation, origin="format_error"))

    def _step_of(self, entry: dict[str, Any]) -> dict[str, Any] | None:
        """Find the step of an assistant message. The steps before it have no message of their own."""
        reply = text_of(entry.get("content"))
        for number in range(self._next_step, len(self._steps)):
            step = self._steps[number]
            if text_of(step.get("response")) == reply and (step.get("action") or "") == (entry.get("action") or ""):
                self._passed("reply that the agent asked for again", number)
                self._next_step = number + 1
                return step
        self._without_step += 1
        return None

    def _passed(self, reason: str, number: int) -> None:
        """Count the steps up to this one, but for those of messages that differ from their step (edited files)."""
        passed = number - self._next_step - self._without_step
        self._without_step = 0
        if passed > 0:
            self._stats.skip(reason, passed)

    def _assistant(self, entry: dict[str, Any], step: dict[str, Any] | None) -> None:
        action = entry.get("action")
        turn = assistant_turn(entry, self._stats, step=len(self.turns))
        acts = isinstance(action, str) and action.strip() != "" and not action.startswith("exit_")
        if turn.content.startswith(_EXITS) and not acts and not turn.tool_calls:
            # The agent speaks in the model's place when a limit ends the run.
            self._exited = True
            self._stats.skip("exit message")
            return
        if entry.get("is_demo") is True:
            turn.origin, turn.repeats = "demo", True
        turn.clears = self._newly_elided(step)
        self.reply(turn, [str(action).strip()] if acts else [])

    def _newly_elided(self, step: dict[str, Any] | None) -> list[str]:
        """Calls whose results the messages sent for this step no longer have, and those for the step before had."""
        sent = items(fields(step).get("query")) or items(fields(step).get("messages"))
        asked = [fields(message) for message in sent if fields(message).get("role") in ("user", "tool")]
        ours = [turn for turn in self.turns if turn.role in ("user", "tool")]
        if len(asked) != len(ours):
            return []
        elided: list[str] = []
        for message, turn in zip(asked, ours, strict=True):
            if turn.tool_call_id is None or turn.tool_call_id in self._cleared:
                continue
            text = text_of(message.get("content"))
            if text.startswith(_ELIDED) and text != turn.content:
                elided.append(turn.tool_call_id)
        self._cleared.update(elided)
        return elided

    def _answer(self, entry: dict[str, Any]) -> None:
        text = text_of(entry.get("content"))
        demo = "demo" if entry.get("is_demo") is True else None
        if self._exited:
            self._stats.skip("exit message")
            return
        if entry.get("role") == "tool":
            given = [one for one in items(entry.get("tool_call_ids")) if isinstance(one, str)]
            self.result(given[0] if given else text_at(entry, "tool_call_id"), text, origin=demo)
        elif self.next_is_result:
            self.result(self.calls.waiting[0], text, origin=demo)
        else:
            refused = bool(self.turns) and self.turns[-1].role == "assistant"
            origin = demo or ("format_error" if refused else "prompt")
            self.turns.append(Turn(role="user", content=text, origin=origin))


FORMAT = LogFormat(NAME, sniff, read)
