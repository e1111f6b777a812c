"""House style: file tasks with tools that have synonyms. A house takes one of them, and only its errors say which."""

from composer_replication.envs.house_style.customs import Call, house_customs, right_calls
from composer_replication.envs.house_style.environment import HouseStyle
from composer_replication.envs.house_style.lessons import make_lessons
from composer_replication.envs.house_style.tasks import make_tasks

__all__ = ["Call", "HouseStyle", "house_customs", "make_lessons", "make_tasks", "right_calls"]
