"""What of a sweep `make test` tries at once, and what it leaves to `make test-slow`. Nothing is left out of both."""

import collections

import pytest
from hypothesis import settings

SWEEPS = {
    "algorithms/advantage_transforms/test_all_advantage_transforms.py::test_columns_of_half_the_width_are_computed_with_in_the_whole_width_and_none_is_written_to": 3,  # noqa: E501
    "algorithms/advantages/test_all_estimators.py::test_another_task_changes_nothing_for_this_one": 3,
    "algorithms/advantages/test_all_estimators.py::test_columns_of_half_the_width_are_computed_with_in_the_whole_width": 4,  # noqa: E501
    "algorithms/advantages/test_all_estimators.py::test_epsilon_is_added_to_every_deviation": 3,
    "algorithms/advantages/test_all_estimators.py::test_it_says_what_loops_over_floats_say": 6,
    "algorithms/advantages/test_all_estimators.py::test_no_column_is_written_to": 3,
    "algorithms/advantages/test_all_estimators.py::test_the_order_of_trajectories_matters_to_nobody": 3,
    "algorithms/advantages/test_all_estimators.py::test_what_tasks_and_roles_are_called_matters_to_nobody": 3,
    "analysis/test_appendix.py::test_an_appendix_of_a_run_has_every_metric_interval_seed_and_version": 0,
    "analysis/test_comparison.py::test_what_cannot_be_compared": 2,
    "analysis/test_first_difference.py::test_a_difference_in_the_record_is_found_at_its_place": 2,
    "analysis/test_first_difference.py::test_a_key_and_the_first_result_that_it_changes_are_reported": 1,
    "analysis/test_first_difference.py::test_a_longer_run_is_compared_as_far_as_both_go": 0,
    "analysis/test_first_difference.py::test_another_seed_samples_other_tokens_or_tasks_in_the_first_step": 0,
    "analysis/test_first_difference.py::test_equal_runs_have_no_difference": 0,
    "assembly/test_column_requirements.py::test_it_says_what_is_read_and_who_would_provide_it": 5,
    "assembly/test_preflight.py::test_a_step_that_does_not_fit_says_what_would": 1,
    "chat/formats/test_argument_values.py::test_arguments_that_are_not_a_strict_object_are_malformed": 14,
    "chat/formats/test_argument_values.py::test_text_of_a_string_stays_as_it_is_however_the_schema_declares_it": 18,
    "chat/formats/test_attacks.py::test_a_call_that_is_cut_in_a_value_does_not_contain_the_next_call": 12,
    "chat/formats/test_attacks.py::test_a_string_is_declared_by_every_keyword_of_members": 12,
    "chat/formats/test_attacks.py::test_a_tool_of_any_name_is_called_or_the_format_rejects_it": 30,
    "chat/formats/test_attacks.py::test_names_and_keys_in_python_syntax_may_be_any_word": 10,
    "chat/formats/test_attacks.py::test_nothing_of_a_call_is_streamed_however_the_tokens_cut_it": 12,
    "chat/formats/test_attacks.py::test_repeated_markers_and_openings_end_and_are_never_calls": 10,
    "chat/formats/test_blocks.py::test_markers_are_single_tags": 6,
    "chat/test_export_template.py::test_tools_that_whetstone_puts_into_the_system_message_are_in_the_exported_template": 4,  # noqa: E501
    "chat/test_forged_tokens.py::test_a_tool_can_neither_close_its_turn_nor_open_another": 10,
    "chat/test_forged_tokens.py::test_what_a_server_says_of_its_tools_forges_nothing": 10,
    "chat/test_public_reports_formats.py::test_python_style_calls_are_read_exactly_or_reported": 10,
    "cli/test_export.py::test_merged_weights_opened_by_transformers_say_what_the_policy_says": 1,
    "cli/test_mistakes.py::test_a_mistake_is_answered_in_a_line": 15,
    "cli/test_mistakes_of_other_libraries.py::test_mistake_is_answered_in_one_line_with_key_and_remedy": 4,
    "cli/test_mistakes_of_other_libraries.py::test_values_that_are_meant_are_accepted": 1,
    "cli/test_models.py::test_what_cannot_be_added_is_one_line_and_leaves_nothing": 3,
    "cli/test_real_calls.py::test_a_check_calls_no_tool_that_does_not_declare_that_it_reads": 4,
    "cli/test_real_calls.py::test_a_check_with_permission_calls": 2,
    "cli/test_real_calls.py::test_a_permission_in_the_recipe_is_for_runs_and_not_for_checks": 1,
    "cli/test_real_calls.py::test_a_permission_of_a_run_can_be_taken_back": 1,
    "cli/test_real_calls.py::test_a_person_is_asked_once": 1,
    "cli/test_real_calls.py::test_a_run_without_permission_is_refused_before_it_starts": 6,
    "cli/test_real_calls.py::test_tools_of_every_recipe_of_the_package_only_read": 10,
    "cli/test_serve.py::test_a_checkpoint_is_found_by_its_step_and_has_its_own_weights": 0,
    "environments/test_adapters.py::test_no_verifier_of_reasoning_gym_runs_what_was_said": 1,
    "environments/test_adapters.py::test_odd_answers_of_reasoning_gym_are_wrong_and_no_fault": 2,
    "environments/test_agent.py::test_a_foreign_agents_episode_has_the_tokens_of_the_same_loop_at_home": 2,
    "environments/test_remote.py::test_what_is_no_question_is_refused_and_the_server_goes_on": 5,
    "environments/test_textarena.py::test_who_says_nothing_wins_no_game": 3,
    "environments/test_worlds.py::test_episodes_in_any_interleaving_are_what_they_are_alone": 3,
    "environments/test_worlds.py::test_held_out_tasks_are_never_trained_on_whatever_seed_and_levels": 3,
    "inference/test_blocks.py::test_log_probs_in_half_precision_are_those_of_a_full_pass_up_to_its_rounding": 1,
    "inference/test_engine_contract.py::TestContract::test_each_token_says_which_weights_drew_it": 1,
    "inference/test_local.py::test_a_fork_is_the_same_bit_for_bit_whether_its_parent_is_still_held_or_not": 1,
    "inference/test_local.py::test_a_long_prompt_is_computed_in_pieces_while_others_speak": 1,
    "inference/test_local.py::test_bit_for_bit_the_same_whatever_the_company_the_evictions_and_the_pieces": 1,
    "inference/test_local.py::test_cancelling_in_the_middle_of_a_prompt_leaves_the_others_alone": 1,
    "inference/test_local.py::test_logprobs_and_entropies_are_those_of_a_full_pass_over_turns_of_many_episodes": 1,
    "inference/test_local.py::test_more_requests_than_may_wait_are_asked_to_wait_outside": 1,
    "inference/test_local.py::test_weights_change_in_the_middle_as_was_asked": 2,
    "inference/test_served.py::test_a_good_engine_passes_every_check": 1,
    "inference/test_served.py::test_an_answer_that_is_none_is_a_line": 3,
    "learning/columns/test_added_columns.py::test_what_is_wrong_with_one_is_said_before_anything_is_sampled": 6,
    "learning/test_flex.py::test_all_branches_at_once_are_what_each_is_by_itself": 1,
    "learning/test_gradient_noise.py::test_the_result_does_not_depend_on_micro_batches": 1,
    "learning/test_gradient_noise.py::test_the_result_is_that_of_gradients_computed_group_by_group": 1,
    "learning/test_learner.py::test_every_family_of_models_is_computed_as_trees": 1,
    "learning/test_learner.py::test_the_loss_falls_on_a_fixed_batch": 1,
    "learning/test_off_policy.py::test_kept_log_probs_take_the_old_ones_place_where_the_mode_says": 4,
    "learning/test_off_policy.py::test_only_what_was_drawn_behind_what_is_trained_says_whether_sampler_and_learner_agree": 2,  # noqa: E501
    "learning/test_sequences.py::test_in_a_run_it_does_not_matter_which_segments_share_a_pass": 1,
    "learning/test_sequences.py::test_loss_and_gradient_are_those_of_all_tokens_at_once": 6,
    "learning/test_sequences.py::test_the_loss_that_is_reported_is_the_one_that_is_optimised": 1,
    "learning/test_updates.py::test_nothing_left_is_no_update_and_no_failure": 1,
    "network/test_answers.py::test_headers_without_end_are_given_up": 1,
    "network/test_connections.py::test_a_partial_head_ends_the_connection": 2,
    "own_data/test_dataset_formats.py::test_a_marked_message_is_not_trained": 10,
    "own_data/test_dataset_formats.py::test_a_marked_row_is_not_trained": 12,
    "own_data/test_dataset_formats.py::test_an_empty_answer_is_not_trained": 10,
    "own_data/test_dataset_formats.py::test_thoughts_are_read_in_every_format": 10,
    "own_data/test_dataset_formats.py::test_tools_are_a_column_of_every_format": 8,
    "own_data/test_dataset_formats.py::test_tools_have_no_parameters_of_other_tools": 8,
    "own_data/test_sensitive.py::test_value_is_found_once_as_a_whole": 12,
    "own_data/test_trained_turns.py::test_no_token_of_an_excluded_turn_is_trained": 10,
    "policies/test_policy.py::test_adapters_saved_loaded_and_saved_again_are_the_same_policy": 1,
    "recipe/test_yaml_text.py::test_a_recipe_that_is_too_much_is_refused_in_a_line": 5,
    "recipe/test_yaml_text.py::test_a_specification_is_read_as_carefully": 1,
    "recipe/test_yaml_text.py::test_so_is_an_override": 1,
    "record/test_moved_run.py::test_a_folder_with_run_and_data_is_moved": 0,
    "record/test_moved_run.py::test_a_model_is_moved": 0,
    "record/test_moved_run.py::test_a_run_directory_alone_is_moved": 0,
    "record/test_moved_run.py::test_content_that_changed_is_reported_with_the_file": 1,
    "record/test_moved_run.py::test_data_is_moved_and_named": 0,
    "record/test_moved_run.py::test_the_recipe_file_continues_the_run_after_both_were_moved": 0,
    "reporting/test_alarms.py::test_a_run_that_does_not_change_rarely_raises_the_alarm_of_success_and_a_fall_raises_it_soon": 0,  # noqa: E501
    "reporting/test_metric_names.py::test_every_name_a_small_run_writes_is_in_it": 1,
    "reporting/test_noise_advice.py::test_why_prints_it": 0,
    "rewards/answers/test_symbolic.py::test_what_is_the_same": 4,
    "rewards/worlds/test_sql_result.py::test_what_does_not_run_is_wrong_and_changes_nothing": 5,
    "rewards/worlds/test_unit_tests.py::test_no_trick_passes": 8,
    "rollout/test_deadlines.py::test_a_tool_that_hangs_at_close_ends_the_wait_and_is_named": 1,
    "rollout/test_deadlines.py::test_a_tool_that_hangs_at_open_is_an_infrastructure_failure_that_names_it": 2,
    "rollout/test_deadlines.py::test_an_engine_that_never_answers_is_an_infrastructure_failure": 1,
    "sandbox/test_attacks.py::test_a_call_that_takes_its_supervisor_with_it_is_a_crash_of_its_own": 1,
    "sandbox/test_hostile_guest.py::test_a_supervisor_that_talks_nonsense_is_gone": 2,
    "scaling/test_learner_group.py::test_what_a_rank_is_asked_comes_to_the_loss_and_gradient_of_one_process": 1,
    "serving/test_cut_answers.py::test_answer_cut_after_a_complete_call_reports_length": 2,
    "serving/test_interventions.py::test_a_persons_words_get_likelier_and_what_was_learned_can_be_unlearned": 1,
    "serving/test_interventions.py::test_why_says_which_tokens_of_the_two_are_trained": 1,
    "serving/test_limits.py::test_15_mebibytes_are_rejected_before_a_character_is_tokenized": 2,
    "serving/test_native.py::test_an_episode_through_the_endpoint_is_the_native_one_token_for_token": 1,
    "serving/test_required_calls.py::test_one_call_is_made_if_parallel_calls_are_switched_off": 2,
    "serving/test_required_calls.py::test_required_call_has_valid_arguments_in_every_api": 3,
    "serving/test_reward_range.py::test_a_scorer_that_returns_no_such_reward_has_failed": 3,
    "serving/test_token_logprobs.py::test_bytes_of_tokens_are_those_of_the_text": 4,
    "serving/test_wires.py::test_a_conversation_has_the_same_tokens_through_every_api": 1,
    "test_fuzz.py::test_a_few_inputs_find_nothing": 3,
    "test_json_lines.py::test_any_bytes_are_read_or_are_one_error_with_its_place": 2,
    "test_light.py::test_a_seam_loads_few_modules_of_ours_and_nothing_heavy": 5,
    "test_python.py::test_what_is_only_looked_at_loads_no_torch_and_few_modules": 5,
    "test_readme.py::test_every_command_on_the_tool_of_the_readme_trains": 4,
    "test_recipe.py::test_whatever_a_file_holds_is_told_in_a_line": 8,
    "tools/database/test_process.py::test_a_process_somebody_else_kills_is_replaced": 1,
    "tools/database/test_process.py::test_two_episodes_side_by_side": 1,
    "tools/database/test_process.py::test_what_cannot_be_interrupted_is_killed_and_the_next_query_runs": 2,
    "tools/database/test_process.py::test_what_was_committed_outlives_a_process_that_had_to_be_killed": 1,
    "tools/test_backend_failures.py::test_a_status_of_the_backend_is_retried_by_any_client": 3,
    "tools/test_backend_failures.py::test_a_status_that_the_request_caused_is_the_models_and_is_not_retried": 1,
    "tools/test_backend_failures.py::test_a_tool_with_side_effects_is_not_called_again_once_the_request_was_sent": 1,
    "tools/test_backend_failures.py::test_an_operation_of_openapi_and_a_search_take_the_same_path": 1,
    "tools/test_backend_failures.py::test_calls_in_one_thread_do_not_overlap_and_have_their_whole_time": 0,
    "tools/test_backend_failures.py::test_retry_after_holds_back_all_calls_of_the_tool": 0,
    "tools/test_mcp_restart.py::test_a_failing_proxy_is_a_failure_of_infrastructure": 2,
    "tools/test_mcp_restart.py::test_a_restart_costs_the_episodes_under_way_and_no_later_one": 1,
    "tools/test_one_definition.py::test_a_new_tool_trains_unchanged_in_two_recipes": 1,
    "tools/test_results.py::test_a_value_of_any_type_is_json": 30,
    "tools/test_signatures.py::test_a_value_of_any_type_is_received_as_that_type": 14,
    "tools/test_sql.py::test_what_leads_out_of_the_database_is_refused": 8,
    "training/test_background_evaluation.py::test_every_step_is_evaluated_and_training_is_the_same": 1,
    "training/test_continuing.py::test_a_chain_of_stages_continues_with_its_own_recipe_and_does_not_change": 0,
    "training/test_continuing.py::test_a_change_is_shown_by_why_the_report_the_viewer_and_the_summary_of_a_run": 0,
    "training/test_continuing.py::test_a_key_that_cannot_change_is_refused_and_nothing_is_written": 3,
    "training/test_continuing.py::test_a_run_continues_with_its_own_recipe": 0,
    "training/test_continuing.py::test_a_stopped_run_changes_after_its_checkpoint_and_discards_unused_groups": 0,
    "training/test_continuing.py::test_keys_without_an_effect_on_results_are_stored_without_a_change": 0,
    "training/test_continuing.py::test_replay_repeats_the_updates_before_and_after_a_change": 0,
    "training/test_continuing.py::test_sampling_that_runs_ahead_by_timing_discards_groups_of_the_earlier_recipe": 0,
    "training/test_continuing.py::test_the_rate_after_a_change_of_the_schedule_is_reported_and_used": 0,
    "training/test_continuing.py::test_the_recipe_of_every_era_is_the_one_the_run_had": 0,
    "training/test_failing.py::test_a_world_that_fails_is_said_once_and_nothing_goes_on": 2,
    "training/test_failing.py::test_where_every_reward_fails_the_run_stops_with_the_cause": 2,
    "training/test_failing.py::test_where_what_it_stands_on_is_not_there_the_run_stops_with_the_cause": 2,
    "training/test_judged_run.py::test_a_chain_of_stages_judges_each_against_its_own_start": 0,
    "training/test_judged_run.py::test_a_constant_reward_is_one_line_after_the_second_step": 0,
    "training/test_judged_run.py::test_a_resumed_run_stores_the_alarms_of_a_whole_one": 0,
    "training/test_judged_run.py::test_a_run_of_an_earlier_release_is_read_and_judged": 0,
    "training/test_judged_run.py::test_the_last_lines_of_the_command_judge_the_stages": 0,
    "training/test_kept.py::test_a_killed_run_keeps_the_same_checkpoint": 0,
    "training/test_kept.py::test_a_run_ends_with_the_weights_of_its_best_validation": 0,
    "training/test_kept.py::test_the_start_is_a_candidate_without_a_supervised_stage": 0,
    "training/test_long_prompts.py::test_a_run_goes_on_and_says_how_many_it_left_out": 1,
    "training/test_provenance.py::test_a_run_stores_versions_machine_and_digests": 0,
    "training/test_provenance.py::test_code_is_copied_on_request_except_files_with_secrets": 0,
    "training/test_provenance.py::test_edited_code_is_refused_in_one_line_and_accepted_on_request": 1,
    "training/test_provenance.py::test_unchanged_code_resumes_without_a_word": 0,
    "training/test_real_tools.py::test_trees_of_episodes_lead_the_interpreter_back_by_its_calls": 1,
    "training/test_reinforcement.py::test_running_ahead_every_group_is_consumed_once_and_none_is_too_old": 1,
    "training/test_start_from.py::test_a_chain_of_stages_starts_from_a_checkpoint": 0,
    "training/test_start_from.py::test_a_checkpoint_that_does_not_fit_is_one_line": 2,
    "training/test_start_from.py::test_a_run_starts_with_the_weights_of_a_checkpoint": 1,
    "training/test_start_from.py::test_a_started_run_that_is_killed_resumes_to_the_same_weights": 0,
    "training/test_start_from.py::test_all_state_continues_the_optimizer_and_restarts_the_schedule": 0,
    "training/test_start_from.py::test_the_command_in_the_refusal_of_a_change_starts_a_new_run": 0,
    "training/test_train_step.py::test_what_cannot_be_is_refused_before_anything_is_sampled": 8,
}
"""By test, how many of its parameters `make test` tries, one as far from the next as can be; slow are the others."""


def thinned(items):
    """The items that `SWEEPS` leaves to the slow tier."""
    of_tests = collections.defaultdict(list)
    for item in items:
        name = item.nodeid.partition("[")[0].removeprefix("tests/")
        if name in SWEEPS and item.get_closest_marker("slow") is None:
            of_tests[name].append(item)
    left = []
    for name, each in of_tests.items():
        kept = {k * len(each) // SWEEPS[name] for k in range(SWEEPS[name])}
        left += [item for place, item in enumerate(each) if place not in kept]
    return left


def mostly_slow(values, *, quick):
    """Each value as a parameter of a test; all but those named are marked slow.

    Args:
        values: What to try: plain values, or parameters of pytest.
        quick: The values that `make test` tries, or the ids of the parameters; each must be among `values`.
    """
    parameters = [value if hasattr(value, "marks") else pytest.param(value) for value in values]
    named = [parameter.id if parameter.id is not None else parameter.values[0] for parameter in parameters]
    assert all(name in named for name in quick), f"{[name for name in quick if name not in named]}: not in the sweep"
    return [
        parameter
        if name in quick
        else pytest.param(*parameter.values, marks=[*parameter.marks, pytest.mark.slow], id=parameter.id)
        for parameter, name in zip(parameters, named, strict=True)
    ]


def examples(most, **options):
    """Settings of a property that tries `most` examples in `make test-slow`, and as many as the profile says before."""
    return settings(max_examples=min(most, settings.default.max_examples), deadline=None, **options)
