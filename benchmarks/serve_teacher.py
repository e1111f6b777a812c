"""Questions to `serve-teacher --model smollm2`, one after another and eight at a time.

Each client asks its next question when it has its answer, as `replay` does. Every answer is 64 tokens long, decoded
greedily, after prompts of different lengths. "passes" are runs of the model, of which the first of each batch reads
the prompts; "answers_alike" is the share of answers that are the same, token for token, as one after another: where
two tokens are equally likely but for the rounding, a batch may choose the other one.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
from reporting import judged, machine, main, medians, take_turns, timed

from composer_replication.teacher_replay.serving import HuggingFaceTeacher, LocalTeachers

# By contestant: how many clients there are.
CLIENTS = {"one_after_another": 1, "eight_at_a_time": 8}
TOKENS = 64


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """In the child: one contestant's figures."""
    teacher = HuggingFaceTeacher.load("smollm2", device="cpu", max_new_tokens=TOKENS)
    teacher._ends.clear()  # every answer has the same length
    passes: list[int] = []
    teacher._model.register_forward_hook(lambda *_: passes.append(1))
    with LocalTeachers({"m": teacher}) as server, ThreadPoolExecutor(CLIENTS[name]) as pool:
        sdk = openai.OpenAI(base_url=server.base_url, api_key="none")

        def ask(number: int) -> str | None:
            said = f"Write {number} lines about " + "the sea, " * (number % 8 * 10) + "the sea."
            messages: Any = [{"role": "user", "content": said}]
            return sdk.chat.completions.create(model="m", messages=messages, temperature=0).choices[0].message.content

        ask(0)
        passes.clear()
        return timed(lambda: {"answers": list(pool.map(ask, range(_questions(arguments)))), "passes": len(passes)})


def _questions(arguments: argparse.Namespace) -> int:
    return 16 if arguments.quick else 32


def report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Let the contestants take turns, and compare."""
    questions, repeats = _questions(arguments), arguments.repeats or (1 if arguments.quick else 2)
    options = ["--quick"] if arguments.quick else []
    measured = take_turns("serve_teacher", [*CLIENTS] * repeats, options)
    alone = measured["one_after_another"][0]["answers"]
    for run in (run for runs in measured.values() for run in runs):
        answers = run.pop("answers")
        run["answers_alike"] = sum(map(str.__eq__, answers, alone)) / questions
    results = {name: medians(runs) for name, runs in measured.items()}
    first, second = (results[name] for name in CLIENTS)
    return {
        "benchmark": "serve_teacher",
        "machine": machine("torch", "transformers"),
        "shape": {"questions": questions, "tokens_each": TOKENS},
        "results": results,
        "columns": ("passes", "answers_alike"),
        "targets": [
            judged("passes of the model", second["passes"] / first["passes"], "<=0.25"),
            judged("time", second["seconds"] / first["seconds"], "<=1"),
        ],
    }


if __name__ == "__main__":
    main(report, measure=measure)
