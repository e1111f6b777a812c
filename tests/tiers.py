"""Which tests `make test-fast` and `make test` leave out, by the beginning of their ids under tests/.

Property tests (hypothesis) are fuzz wherever they are.
"""

from __future__ import annotations

TIERS = {
    # Starts processes or servers, sends signals, or waits for what others do.
    "process": (
        "_tiny/test_sample_replay.py",
        "cli/test_app.py",
        "cli/test_ingest_process.py",
        "cli/test_interrupts.py",
        "cli/test_recorded_session.py",
        "cli/test_replay_command.py",
        "cli/test_serve_teacher.py",
        "hint_generator/test_hint_generator_import.py",
        "hint_generator/test_judge.py",
        "ingestion/test_failures.py",
        "replaysim/test_normalize_engines.py",
        "replaysim/test_replay_and_normalize.py",
        "teacher_replay/serving/test_callable_teachers.py",
        "teacher_replay/serving/test_hf_teacher.py",
        "teacher_replay/serving/test_local_teachers.py",
        "teacher_replay/serving/test_serving_app.py",
        "teacher_replay/test_action_judge.py",
        "teacher_replay/test_budget_property.py",
        "teacher_replay/test_estimate.py",
        "teacher_replay/test_ledger_thread.py",
        "teacher_replay/test_metered_server.py",
        "teacher_replay/test_misbehaving_teachers.py",
        "teacher_replay/test_replay",
        "teacher_replay/test_shared_ledger.py",
        "test_doctor.py",
        "test_gpu_smoke.py",
        "test_import.py",
        "trainer/replay/test_reference_logprobs.py",
        "trainer/test_resume.py",
    ),
    # Trains a model, or loads a real one.
    "trainer": (
        "_tiny/test_kit.py::test_demo",
        "_tiny/test_kit.py::test_smollm2_speaks",
        "_tiny/test_tool_house.py::test_the_model_has",
        "_tiny/test_tool_house.py::test_trl",
        "cli/test_train.py",
        "teacher_replay/test_preference_rows.py::test_trl_trains",
        "test_loss.py::test_loss_falls",
        "test_loss.py::test_sdpo_alone",
        "test_reference_loop.py",
        "trainer/run/test_model_loading.py",
        "trainer/run/test_training_run.py",
        "trainer/teachers",
        "trainer/test_collator_alignment.py",
        "trainer/test_composer_trainer.py",
        "trainer/test_effort_rewards.py::test_trl",
        "trainer/test_trace_trainer.py",
    ),
    # Made-up or damaged input in great number.
    "fuzz": ("ingestion/test_fuzz.py", "ingestion/test_redaction_survivors.py::test_recall"),
    # Slow, and something quicker shows the same in `make test`.
    "full": (
        "_tiny/test_kit.py::test_smollm2_speaks",
        "_tiny/test_tool_house.py::test_the_model_has_its_habit_and_obeys_hints_and_errors[warm_up]",
        "ingestion/test_redaction_survivors.py::test_recall_on_more_seeds",
        "replaysim/test_normalize_engines.py::test_an_engine_gives_the_same_pairs_and_leaves_nothing[ray]",
        "replaysim/test_normalize_engines.py::test_ray_may_be_left_with_nothing",
        "teacher_replay/test_replay_killed.py::test_killed_at_random_moments_and_resumed",
        "test_gpu_smoke.py::test_the_script_itself",
        "test_reference_loop.py::test_all_channels_are_live_the_hints_are_taken_in",
        "trainer/test_resume.py::test_a_killed_run_equals_one_that_was_not[lora]",
    ),
}
