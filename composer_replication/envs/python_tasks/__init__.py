"""Python tasks: write or repair a small function; examples are shown, other inputs decide."""

from composer_replication.envs.python_tasks.environment import PythonTasks
from composer_replication.envs.python_tasks.tasks import make_tasks

__all__ = ["PythonTasks", "make_tasks"]
