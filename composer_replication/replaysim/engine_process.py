"""One run of a data-juicer engine in a process of its own: it reads records and writes the remaining ones, as Parquet.

Data-juicer's configuration reaches into the whole process (standard output, the log, temporary files, the cache of
`datasets`, the environment), and Ray starts a cluster. All of it ends with this process, which ends with its parent.

Usage: python -m composer_replication.replaysim.engine_process JOB.json   (standard input: open as long as it may live)
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any


def main(job_path: Path) -> None:
    """Run a job (see `engines`) and write its result, or the error."""
    job = json.loads(job_path.read_text())
    folder = job_path.parent
    threading.Thread(target=_end_with_parent, args=(folder, job["sockets"]), daemon=True).start()
    try:
        run = {"data-juicer": _run_default, "ray": _run_ray}[job["executor"]]
        run(job, folder)
    except Exception as error:
        (folder / "error.txt").write_text(one_line(error), encoding="utf-8")
        raise


def one_line(error: Exception) -> str:
    """Return an error as one line: the message of the step that failed, without the traceback that engines add."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.search(r" on (chosen|rejected|pair|lesson) failed: ", line)]
    return (named or [f"{type(error).__name__}: {' '.join(lines)}"])[-1]


def _run_default(job: dict[str, Any], folder: Path) -> None:
    from data_juicer.core import DefaultExecutor
    from data_juicer.core.data import NestedDataset
    from datasets import Dataset

    from composer_replication.replaysim import pair_operators  # noqa: F401 - registers the operators

    parts = sorted(str(part) for part in (folder / "records").iterdir())
    records = NestedDataset(Dataset.from_parquet(parts, cache_dir=str(folder / "cache")))
    executor = DefaultExecutor(_configuration(job, folder))
    executor.run(dataset=records, skip_export=True).to_parquet(str(folder / "result.parquet"))


def _run_ray(job: dict[str, Any], folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet
    import ray
    from ray import cloudpickle

    from composer_replication.replaysim import pair_operators

    cloudpickle.register_pickle_by_value(pair_operators)
    # An address in RAY_ADDRESS is a cluster that stands already; without one, a small cluster comes and goes with us.
    own = {} if os.environ.get("RAY_ADDRESS") else _own_cluster(job)
    ray.init(log_to_driver=False, logging_level="ERROR", **own)
    try:
        if own and ray.util.get_node_ip_address() != "127.0.0.1":
            raise RuntimeError("Ray listens beyond this machine")
        from data_juicer.core.executor.ray_executor import RayExecutor
        from data_juicer.utils.constant import Fields

        ray.data.DataContext.get_current().enable_progress_bars = False
        executor = RayExecutor(_configuration(job, folder, dataset_path=str(folder / "records")))
        left = executor.run(skip_export=True).data
        tables = [table for table in left.iter_batches(batch_format="pyarrow", batch_size=None) if table.num_rows]
        if tables:
            table = pyarrow.concat_tables(tables)
            # Data-juicer puts a column for statistics beside our own: always empty, which Parquet cannot hold.
            wanted = [name for name in table.column_names if name != Fields.stats]
            pyarrow.parquet.write_table(table.select(wanted), folder / "result.parquet")
    finally:
        ray.shutdown()


def _own_cluster(job: dict[str, Any]) -> dict[str, Any]:
    return {"num_cpus": job["processes"], "include_dashboard": False, "_temp_dir": job["sockets"]}


def _configuration(job: dict[str, Any], folder: Path, **more: Any) -> Any:
    from data_juicer.config import get_init_configs

    configuration = get_init_configs(
        {
            "project_name": "pairs",
            "executor_type": "ray" if job["executor"] == "ray" else "default",
            "np": job["processes"],
            "work_dir": str(folder / "work"),
            "export_path": str(folder / "work" / "unused.jsonl"),
            "ds_cache_dir": str(folder / "cache"),
            "text_keys": ["chosen"],
            **more,
        }
    )
    # Not given to data-juicer's parser, which lets the arguments of one operator leak into the next of its name; and
    # by its default, an operator that fails would silently drop the batch.
    configuration.process = [
        {wrapper: {"step": step, "notes": str(folder / "notes"), "num_proc": job["processes"], "skip_op_error": False}}
        for wrapper, step in job["steps"]
    ]
    return configuration


def _end_with_parent(*folders: str | Path) -> None:
    """Wait until the parent closes our standard input, then end this process group and remove the folders."""
    # Not through `sys.stdin`: a thread that waits there holds its lock, and workers that are forked want to close it.
    os.read(0, 1)
    group = os.getpgrp()
    # From outside the group, and after its end: workers that still write would leave files behind.
    if os.fork() == 0:
        os.setsid()
        os.killpg(group, signal.SIGKILL)
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
