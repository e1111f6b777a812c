"""From a log to a gradient: a Claude Code session becomes one optimiser step with all three channels live.

    python examples/log_to_gradient.py

The session is made up and written to a temporary folder; the model is tiny and random. Everything between them is what
a real run uses: the reader, the hints, the pairs, the collator and the loss.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from composer_replication._tiny import tiny_model, tiny_tokenizer
from composer_replication.channels.scoring import preference_logprobs
from composer_replication.hint_generator import LayeredHints, as_collator_hint
from composer_replication.ingestion import SYSTEM_PROMPT, ClaudeCodeIngester
from composer_replication.loss import LossComponents, compose_loss
from composer_replication.teacher_replay import TeacherCallResult, extract_dpo_pairs
from composer_replication.trainer.data_collator import CollatorConfig, CollatorStats, ComposerDataCollator

# What the agent does in the session: text, calls by id, and the answers to them. The edit quotes a line that the file
# does not have, which is the student's mistake; the next turn puts it right.
READS = {
    "r1": ("Read", {"file_path": "/shop/invoice.py"}),
    "r2": ("Read", {"file_path": "/shop/test_invoice.py"}),
}
WRONG = ("Edit", {"file_path": "/shop/invoice.py", "old_string": "return net * tax", "new_string": "return net + tax"})
RIGHT = ("Edit", {"file_path": "/shop/invoice.py", "old_string": "return net - tax", "new_string": "return net + tax"})
SESSION: list[tuple[str, dict[str, tuple[str, dict[str, str]]], dict[str, tuple[str, bool]]]] = [
    (
        "I read the code and its test.",
        READS,
        {
            "r1": ("1\tdef total(net, tax):\n2\t    return net - tax", False),
            "r2": ("1\tdef test_total():\n2\t    assert total(100, 19) == 119", False),
        },
    ),
    ("", {"e1": WRONG}, {"e1": ("<tool_use_error>String to replace not found in file.</tool_use_error>", True)}),
    ("", {"e2": RIGHT}, {"e2": ("The file /shop/invoice.py has been updated.", False)}),
    ("The sign was wrong; it is fixed.", {}, {}),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"} for argument in arguments},
                "required": arguments,
            },
        },
    }
    for name, description, arguments in (
        ("Read", "Read a file.", ["file_path"]),
        ("Edit", "Replace a text in a file.", ["file_path", "old_string", "new_string"]),
    )
]


@dataclass(frozen=True)
class Step:
    """One optimiser step: the losses before it, and what it did."""

    loss: LossComponents
    gradient_norm: float
    weight_change: float
    hinted_turns: list[str]
    hinted_contexts: list[str]
    stats: CollatorStats


def write_session(path: Path) -> Path:
    """The session as Claude Code writes it: one record per line, and one for each block of the assistant's."""
    records: list[dict[str, Any]] = []

    def record(role: str, content: Any, **message: Any) -> None:
        number = len(records)
        records.append(
            {
                "parentUuid": f"u{number - 1}" if number else None,
                "sessionId": "example",
                "cwd": "/shop",
                "version": "2.1.100",
                "type": role,
                "uuid": f"u{number}",
                "timestamp": f"2026-01-01T00:00:{number:02d}.000Z",
                "message": {"role": role, "content": content, **message},
            }
        )

    record("user", "test_total fails. Please fix it.")
    for turn, (text, calls, results) in enumerate(SESSION):
        blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        blocks += [
            {"type": "tool_use", "id": identity, "name": name, "input": arguments}
            for identity, (name, arguments) in calls.items()
        ]
        for block in blocks:
            record("assistant", [block], id=f"m{turn}", model="student")
        for identity, (answer, failed) in results.items():
            result = {"type": "tool_result", "tool_use_id": identity, "content": answer, "is_error": failed}
            record("user", [result])
    path.write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return path


def teacher_answers(state_id: str) -> list[TeacherCallResult]:
    """What two teachers would have done at a state; `replay_trace` asks real ones."""
    name, arguments = RIGHT
    action = f"[TOOL_USE] name={name} input={json.dumps(arguments)}"
    return [
        TeacherCallResult(
            state_id=state_id,
            teacher_slug=f"teacher-{number}",
            response_text=action,
            latency_s=0.0,
            prompt_tokens=0,
            completion_tokens=0,
            cost_usd=0.0,
            error=None,
        )
        for number in (1, 2)
    ]


def take_step(session: Path) -> Step:
    """Read the session, and train a tiny model on it for one step."""
    tokenizer = tiny_tokenizer("qwen2_5")
    model = tiny_model("qwen2", vocab_size=len(tokenizer))

    # The log becomes a trace; the reader has found the failing call, and whose mistake it was.
    (trace,) = ClaudeCodeIngester().traces(session)

    # Teachers are asked about the second turn, the one that went wrong.
    states = list(trace.states(system_prompt=SYSTEM_PROMPT))
    pairs = extract_dpo_pairs(states, teacher_answers(states[1]["state_id"]), tools=TOOLS)

    # The trace becomes a row, its error a hinted context, the pair two responses to one prompt.
    collator = ComposerDataCollator(
        tokenizer,
        CollatorConfig(hint_generator=as_collator_hint(LayeredHints()), system_prompt=SYSTEM_PROMPT),
    )
    batch = collator([{**trace.example(), "tools": TOOLS, "final_reward": 1.0, "dpo_pairs": pairs}])

    # The reference policy is the model before its first step.
    with torch.no_grad():
        chosen, rejected = preference_logprobs(model, batch)[0].chunk(2)
    batch |= {"dpo_chosen_ref_logprobs": chosen, "dpo_rejected_ref_logprobs": rejected}

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = compose_loss(model, batch, alpha_sdpo=0.1, beta_replay=0.05)
    loss.total.backward()
    gradient_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

    row, column = batch["sdpo_student_index"].T
    return Step(
        loss=loss,
        gradient_norm=float(gradient_norm),
        weight_change=max(
            float((now.detach() - then).abs().max()) for now, then in zip(model.parameters(), before, strict=True)
        ),
        hinted_turns=[tokenizer.decode(batch["input_ids"][row, column])],
        hinted_contexts=[tokenizer.decode(ids) for ids in batch["ctx_teacher_input_ids"]],
        stats=collator.stats,
    )


def show(step: Step) -> Table:
    table = Table(title="one step, from a Claude Code session", title_justify="left")
    for heading in ("channel", "loss", "active tokens"):
        table.add_column(heading, justify="left" if heading == "channel" else "right")
    for channel, name in (
        ("1 · cross-entropy of the answers", "lm_ce"),
        ("2 · hint self-distillation", "sdpo_jsd"),
        ("3 · trace-replay DPO", "trace_replay_dpo"),
    ):
        table.add_row(channel, f"{float(getattr(step.loss, name).detach()):.4f}", str(step.loss.active_tokens[name]))
    table.add_section()
    table.add_row("gradient norm", f"{step.gradient_norm:.3f}", "")
    table.add_row("largest change of a weight", f"{step.weight_change:.5f}", "")
    return table


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        step = take_step(write_session(Path(folder) / "session.jsonl"))
    console = Console()
    console.print(show(step))
    console.print("\nThe hint, and the turn that channel 2 learns from:", markup=False)
    console.print(step.hinted_contexts[0].rpartition("<|im_start|>system\n")[2], markup=False)


if __name__ == "__main__":
    main()
