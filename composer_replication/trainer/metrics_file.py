"""`metrics.jsonl`: every logged step as a line of JSON, in the order of the steps also across a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from composer_replication._whole_file import whole_file


class MetricsFile(TrainerCallback):  # type: ignore[misc]
    """Appends what a trainer logs to a file; lines of steps that a resumed run makes again are taken out first."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget what a killed run had logged beyond the checkpoint that this one starts from."""
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= state.global_step and state.global_step > 0:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue  # a line that was cut by a kill
        with whole_file(self.path, "metrics") as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Write one line."""
        if state.is_world_process_zero and logs:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": state.global_step, **logs}, default=float) + "\n")
