"""A replay in a process of its own, for tests that kill it: reads what to do from a JSON file, prints rows and report.

The last line of its output is one JSON object; a line "begun" goes before it, once the ledger is open.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from composer_replication.teacher_replay.replay_files import TraceToReplay
from composer_replication.teacher_replay.schedule import ReplayOptions, open_replay
from composer_replication.teacher_replay.teachers import resolve_teachers
from composer_replication.traces import Step


async def _replay(told: dict[str, Any]) -> dict[str, Any]:
    teachers = resolve_teachers(told["teachers"])
    traces = [
        TraceToReplay(f"trace {number}", [Step.of(state) for state in states])
        for number, states in enumerate(told["traces"])
    ]
    async with open_replay(teachers, ReplayOptions(**told["options"])) as replay:
        print("begun", flush=True)  # noqa: T201
        rows = [row.result() async for some in replay.run(traces) for row in some]
    return {"rows": rows, "report": replay.report.as_dict()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_replay(json.loads(Path(sys.argv[1]).read_text())))))  # noqa: T201
