"""A setting stands once: keywords, types, configuration, documentation and defaults are all read from its field."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any, get_type_hints

import pytest
import trl

from composer_replication import compose_loss
from composer_replication.channels.fields import Settings, described
from composer_replication.channels.hint_distillation import HintDistillation, HintGate, TaidSchedule
from composer_replication.channels.policy import CrossEntropy, Grpo
from composer_replication.channels.preference import Preference
from composer_replication.channels.settings import (
    ChannelSettings,
    RolloutKeywords,
    TraceKeywords,
    Watch,
    keyword_docs,
)
from composer_replication.distillation import TAIDScheduler, dpo_loss, generalized_jsd_loss, simpo_loss
from composer_replication.run.loading import config_schema
from composer_replication.trainer import ComposerReplicationTrainer, TraceTrainer
from composer_replication.trainer.composer_trainer import TrainerKeywords

SECTIONS: tuple[type[Settings], ...] = (CrossEntropy, Grpo, HintDistillation, TaidSchedule, Preference, Watch)


def _without_markers(section: type[Settings]) -> dict[str, Any]:
    """The types of the keywords, as a type checker sees the fields."""
    types = get_type_hints(section)
    return {one.keyword.name: types[one.name] for one in described(section) if one.keyword is not None}


@pytest.mark.parametrize(("trainer", "listed"), [("rollouts", RolloutKeywords), ("traces", TraceKeywords)])
def test_type_checkers_and_docs_see_the_keywords_of_the_fields(trainer: Any, listed: Any) -> None:
    docs = keyword_docs(trainer)
    seen = get_type_hints(listed)
    assert seen.keys() == docs.keys()
    types = {name: one for section in SECTIONS for name, one in _without_markers(section).items()}
    assert seen == {name: types[name] for name in seen}
    assert all(len(text.partition(" Default: ")[0]) > 10 for text in docs.values()), docs


@pytest.mark.parametrize(
    ("trainer", "kind"),
    [(ComposerReplicationTrainer, "rollouts"), (TraceTrainer, "traces"), (compose_loss, "rollouts")],
)
def test_help_shows_them(trainer: Any, kind: Any) -> None:
    taken = inspect.signature(trainer).parameters if inspect.isfunction(trainer) else keyword_docs(kind)
    for name in keyword_docs(kind):
        assert (f"        {name}: " in trainer.__doc__) == (name in taken), name
    assert "alpha_sdpo: Weight of channel 2" in trainer.__doc__


def test_trls_own_arguments_are_seen_too() -> None:
    own = inspect.signature(trl.GRPOTrainer.__init__).parameters.keys() - {"self"}
    assert TrainerKeywords.__annotations__.keys() == own | RolloutKeywords.__annotations__.keys()


def test_the_configuration_has_every_setting_with_its_default() -> None:
    schema = config_schema()["$defs"]
    for section in (*SECTIONS[:-1], HintGate):
        properties = schema[section.__name__]["properties"]
        assert list(properties) == [one.name for one in described(section)]
        for one in described(section):
            if one.section is None and one.name != "trl":
                assert properties[one.name]["default"] == one.default
    for one in described(Watch):
        assert schema["TrainingSection"]["properties"][one.name]["default"] == one.default


@pytest.mark.parametrize(
    ("formula", "section", "names"),
    [
        (compose_loss, HintDistillation, {}),
        (compose_loss, Preference, {}),
        (TAIDScheduler, TaidSchedule, {"t_start": "t_start", "t_end": "t_end", "alpha": "alpha", "beta": "beta"}),
        (generalized_jsd_loss, HintDistillation, {"beta": "jsd_beta", "temperature": "temperature"}),
        (dpo_loss, Preference, {"beta": "dpo_beta"}),
        (simpo_loss, Preference, {"beta": "simpo_beta", "gamma": "simpo_gamma"}),
    ],
)
def test_formulas_have_the_same_defaults(formula: Any, section: type[Settings], names: dict[str, str]) -> None:
    parameters = inspect.signature(formula).parameters
    keywords = {one.keyword.name: one.name for one in described(section) if one.keyword is not None}
    pairs = names or {name: field for name, field in keywords.items() if name in parameters}
    assert pairs
    for argument, field in pairs.items():
        assert parameters[argument].default == getattr(section(), field), argument


def test_keywords_and_sections_say_the_same() -> None:
    by_keyword = ChannelSettings(alpha_sdpo=0.3, taid_t_start=0.2, hint_gate=None, dpo_variant="simpo", lm_weight=0.5)
    assert by_keyword == ChannelSettings(
        lm=CrossEntropy(weight=0.5),
        sdpo=HintDistillation(alpha=0.3, taid=TaidSchedule(t_start=0.2), gate=None),
        replay=Preference(variant="simpo"),
    )
    assert by_keyword.updated(beta_replay=0.7).replay == Preference(beta=0.7, variant="simpo")
    assert by_keyword.updated(beta_replay=0.7).sdpo == by_keyword.sdpo
    with pytest.raises(TypeError, match="ChannelSettings has no argument 'ema_rates': did you mean 'ema_rate'"):
        ChannelSettings(ema_rates=1.0)  # type: ignore[call-arg]


def test_a_setting_that_is_chosen_is_never_null() -> None:
    chosen = Preference(dpo_beta=None)  # type: ignore[arg-type]
    assert chosen.dpo_beta == 0.1
    assert Preference(variant="simpo", dpo_beta=None).dpo_beta is None  # type: ignore[arg-type]
    assert Preference(variant="dpo_norm", dpo_beta=None).dpo_beta == 0.1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"alpha_sdpo": -0.1}, "alpha_sdpo must be a finite number >= 0, got -0.1"),
        ({"alpha_sdpo": float("nan")}, "alpha_sdpo must be a finite number >= 0, got nan"),
        ({"sdpo_temperature": 0.0}, "sdpo_temperature must be a positive finite number, got 0.0"),
        ({"sdpo_jsd_beta": 1.2}, r"sdpo_jsd_beta must be in \[0, 1\], got 1.2"),
        ({"ema_rate": 0.0}, r"ema_rate must be in \(0, 1\], got 0.0"),
        ({"trust_region_mix": 1.0}, r"trust_region_mix must be in \(0, 1\), got 1.0"),
        ({"taid_t_end": 2.0}, r"taid_t_end must be in \[0, 1\], got 2.0"),
        ({"replay_batch_size": 1.5}, "replay_batch_size must be a positive whole number, got 1.5"),
        ({"inactive_patience": -1}, "inactive_patience must be a whole number >= 0, got -1"),
        ({"alpha_sdpo": None}, "alpha_sdpo must be given, got None"),
        ({"dpo_variant": None}, "dpo_variant must be one of 'dpo', 'simpo', 'dpo_norm', 'nll', got None"),
        ({"refresh_pairs_every": -1}, "refresh_pairs_every must be a whole number >= 0, got -1"),
        ({"refresh_margin": 0.0}, "refresh_margin must be a positive finite number, got 0.0"),
        ({"refresh_pairs_every": 5}, "refresh_margin must be given with refresh_pairs_every=5: the margin, in nats"),
        ({"refresh_margin": 2.0}, "refresh_margin=2 has no effect without refresh_pairs_every: give"),
        ({"taid_alpha": 0.0}, r"taid_alpha must be in \(0, 1\], got 0.0"),
        ({"taid_beta": 1.0}, r"taid_beta must be in \[0, 1\), got 1.0"),
        ({"hint_source": "errors"}, "hint_source must be one of 'error', 'sibling', 'both', got 'errors'"),
    ],
)
def test_values_out_of_range_are_named_by_keyword(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        ChannelSettings(**keywords)


def test_settings_need_no_torch() -> None:
    code = "import sys; from composer_replication.channels.settings import ChannelSettings; ChannelSettings(); "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
