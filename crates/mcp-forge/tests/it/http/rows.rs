//! The lines of `docs/security-tests.md` about the HTTP service, upstreams and the server's own
//! troubles: what is tried, and which tests try it.

use crate::rows::{Row, exist, lines, row};

const ROWS: &[Row] = &[
    row(
        "H1",
        "`..`, absolute paths, null bytes, encodings of them, long and deep names, as a file's name",
        "400, or a file of just that name",
        &["uploads::hostile_names_are_refused_and_nothing_is_left"],
    ),
    row(
        "H1",
        "links, FIFOs and directories of the session in the way of a file",
        "409; a link is never followed, and replaced as a link",
        &["uploads::links_devices_and_directories_of_the_session_are_not_written_through"],
    ),
    row(
        "H3",
        "files of no bytes, of the most and one more, without a length, with a wrong one; encodings, ranges, parts",
        "held to the byte: 413, 415, 400; nothing is left behind",
        &[
            "uploads::sizes_are_held_to_the_byte_and_quotas_hold",
            "uploads::one_principal_has_few_files_on_their_way_and_others_their_own",
        ],
    ),
    row(
        "H7",
        "a session is deleted, or its interpreter dies, while files are put into it",
        "a clean error; the next file starts it again",
        &[
            "uploads::a_session_that_ends_meanwhile_is_a_clean_error_and_one_that_ended_gets_its_files_back",
        ],
    ),
    row(
        "M1",
        "another principal's session, by every tool, resource and address",
        "as one that does not exist",
        &[
            "principals::what_is_somebody_elses_is_as_if_it_were_not_there",
            "principals::an_mcp_session_is_its_owners_only",
            "rest::sessions_and_their_files_are_their_owners",
        ],
    ),
    row(
        "M2",
        "lists, files, environments and states of others",
        "invisible",
        &[
            "principals::what_is_somebody_elses_is_as_if_it_were_not_there",
            "principals::a_volume_of_a_session_is_its_owners",
            "rest::a_state_is_kept_with_its_version_and_outlives_the_server",
            "environment_routes::a_foreign_environment_is_as_one_that_does_not_exist",
        ],
    ),
    row(
        "M1",
        "another principal's task, asked for, answered, cancelled",
        "as one that does not exist",
        &["tasks::a_task_outlives_its_connection_and_is_an_execution_of_its_owners"],
    ),
    row(
        "M3, M4",
        "names that the server made, guessed; other spellings of a name",
        "random; not found",
        &["troubles::names_that_are_made_cannot_be_guessed_and_are_written_in_one_way"],
    ),
    row(
        "M5",
        "many calls of two principals at once, each with a marker",
        "every answer has its own marker and no other",
        &[
            "principals::many_calls_at_once_never_cross",
            "crowd::a_thousand_calls_of_every_kind_never_cross",
        ],
    ),
    row(
        "M6",
        "a token that is taken out of the file, and a file that is broken",
        "401 at its next use, in an open conversation as well; nobody is let in",
        &["principals::a_token_that_is_taken_away_opens_nothing_from_then_on"],
    ),
    row(
        "M6",
        "an issuer's token that expires in an open conversation; an issuer's key that is taken back",
        "401 at its next use; the conversation is its owner's with another token, and nobody else's",
        &[
            "owners::a_token_that_expires_in_the_middle_of_a_session_opens_nothing_more",
            "owners::a_stream_without_an_end_ends_with_the_token_that_opened_it",
            "keys::a_new_key_is_found_and_an_old_one_forgotten",
            "keys::keys_that_are_old_are_read_again_though_nobody_asks",
        ],
    ),
    row(
        "M1, M5",
        "owners of one name from two issuers and the file of tokens; names that would lead elsewhere",
        "each has its own session and sees no other's",
        &["owners::a_name_is_another_principal_for_each_issuer_and_for_the_file"],
    ),
    row(
        "M7",
        "one principal asks for all that there is",
        "429 with a time to come back; others are served",
        &[
            "principals::who_is_over_a_quota_is_told_when_to_come_back_and_harms_nobody",
            "quotas::whoever_has_used_the_cpu_time_of_an_hour_waits_and_harms_nobody",
            "quotas::cpu_time_that_no_answer_tells_of_is_charged",
            "environment_routes::who_builds_too_often_is_told_when_to_come_back",
            "slots::room_goes_to_whoever_has_least_of_it",
            "slots::whoever_fills_the_queue_makes_room_for_another",
        ],
    ),
    row(
        "M8",
        "an issuer's token with one claim wrong or missing, or there twice: `aud`, `iss`, `exp`, `nbf`, `iat`, owner",
        "401 `invalid_token`; the same token with it right is let in",
        &["forged::a_claim_that_is_wrong_lets_nobody_in"],
    ),
    row(
        "M8",
        "`alg` `none` or another than the key's; a public key as a shared secret; critical headers; no signature, half of it, a stranger's",
        "401 `invalid_token`",
        &[
            "forged::a_signature_that_is_none_or_of_a_shared_secret_lets_nobody_in",
            "forged::a_header_that_is_wrong_lets_nobody_in",
        ],
    ),
    row(
        "M8",
        "a token that says where its key is: `jku`, `x5u`, `jwk`, `kid` as an address or a path",
        "401; nothing is fetched or opened",
        &["forged::nothing_that_a_token_names_is_opened_or_fetched"],
    ),
    row(
        "M8",
        "tokens of ever new keys; an issuer that is down, redirects, floods, or answers with keys that are none",
        "one read of its keys in a while; its tokens are refused, or its old keys used for a time; others are served",
        &[
            "keys::a_storm_of_unknown_keys_asks_the_issuer_once",
            "keys::an_issuer_cannot_send_the_server_elsewhere_or_drown_it",
            "keys::an_issuer_that_is_down_at_the_start_shuts_its_own_tokens_out_and_nobody_elses",
            "keys::keys_outlive_their_issuer_for_a_time",
            "keys::keys_are_taken_from_whom_the_certificate_names_only",
        ],
    ),
    row(
        "M9, M10",
        "an issuer's token whose scope is not enough",
        "403 that names the scopes and where to get them",
        &["metadata::a_scope_that_is_missing_is_named"],
    ),
    row(
        "M9, M10",
        "a token whose scope is not enough; an administrator's addresses with a user's token",
        "403 that says which scope",
        &[
            "hostile::without_a_token_there_is_nothing",
            "principals::the_audit_log_is_for_admins_and_names_who_asked",
            "environment_routes::an_administrator_approves_for_everybody_and_nobody_else_may",
            "door::what_was_done_is_counted_for_those_who_may_see_it",
        ],
    ),
    row(
        "N1, N2",
        "other names in `Host`; a name that comes to mean this machine; other web pages in `Origin`",
        "403, or 400 where it is none; a page gets no permission to read",
        &[
            "hostile::another_name_in_the_host_header_is_refused",
            "hostile::a_page_whose_name_comes_to_mean_this_machine_is_refused",
            "hostile::another_web_page_is_refused",
        ],
    ),
    row(
        "N3",
        "what a web page may send without asking: forms, plain text",
        "415, and nothing ran",
        &["hostile::another_web_page_is_refused"],
    ),
    row(
        "N4, N18",
        "no token, a wrong one, one in the address or a cookie, two; the metrics without one",
        "401; no token in the log",
        &["hostile::without_a_token_there_is_nothing"],
    ),
    row(
        "N5",
        "an address that others reach, without TLS",
        "the server does not start, and says what to set",
        &["lifecycle::what_is_not_safe_or_makes_no_sense_is_refused_with_the_fix"],
    ),
    row(
        "N6, N7, N8, N20, N21, N22",
        "broken, deep, large and ambiguous JSON; batches; odd ids; keys that are there twice, or in other letters; NUL",
        "400 with the code that the specification has for it",
        &[
            "hostile::what_is_not_one_message_is_refused_with_its_reason",
            "hostile::a_body_is_refused_before_it_is_read_whole",
        ],
    ),
    row(
        "N9",
        "errors that could tell of the machine",
        "told in short over HTTP: no places, no traces",
        &[
            "hostile::what_is_not_one_message_is_refused_with_its_reason",
            "troubles::without_an_audit_log_nothing_runs",
        ],
    ),
    row(
        "N10, N11",
        "headers that contradict the message; other methods; `Last-Event-ID` and `Mcp-Session-Id` where there are none",
        "400 with the specified code; 405",
        &[
            "door::headers_that_contradict_the_message_are_refused",
            "hostile::bytes_that_are_no_http_are_refused",
            "door::clients_of_every_version_are_served_at_one_address",
        ],
    ),
    row(
        "N12",
        "requests that never end, huge and many headers, two lengths, HTTP/2, too many connections",
        "refused or hung up on; others are served",
        &[
            "hostile::bytes_that_are_no_http_are_refused",
            "hostile::requests_that_never_end_and_clients_that_never_read_harm_nobody",
            "hostile::one_connection_too_many_is_told_so",
        ],
    ),
    row(
        "N13",
        "thousands of clients that say hello and are never heard of again",
        "memory stays level",
        &[
            "hostile::handshakes_that_are_left_behind_are_bounded",
            "handshakes::there_are_never_more_than_may_be_and_the_least_used_ones_go",
        ],
    ),
    row(
        "N14",
        "streams that nobody reads, that are left at every byte, that are asked for again and again",
        "bounded; others are served",
        &[
            "hostile::requests_that_never_end_and_clients_that_never_read_harm_nobody",
            "crowd::five_hundred_readers_and_some_who_never_read_harm_nobody",
            "crowd::readers_that_leave_anywhere_and_come_back_all_the_time_leave_nothing",
        ],
    ),
    row(
        "N15",
        "every operation of REST with values that its document allows, and with others (schemathesis)",
        "no 5xx; each status, type and body is as the document says; what it allows is taken and what it forbids refused",
        &["openapi::schemathesis"],
    ),
    row(
        "N16",
        "one idempotency key for two requests",
        "one run for the same one, 422 for another",
        &["rest::a_request_with_a_key_runs_once"],
    ),
    row(
        "N17",
        "cursors that were never given",
        "-32602",
        &["troubles::a_cursor_that_was_never_given_is_refused"],
    ),
    row(
        "N19",
        "cancels what is unknown, another's or ended; one progress token for two calls",
        "nothing of anybody's ends",
        &["troubles::what_is_cancelled_was_the_callers_own_and_running"],
    ),
    row(
        "N23",
        "the MCP project's conformance suite, in every version; FastMCP and SDKs of Python and TypeScript over HTTP",
        "all scenarios pass, against the program or the fixture behind its front door; each client works in its version",
        &[
            "conformance::conformance",
            "fastmcp_http::check",
            "over_http::check_basics",
        ],
    ),
    row(
        "L11",
        "an upstream gives its own token back, or hides characters in an error",
        "neither reaches the code or the model",
        &["bridge::errors_of_tools_lose_secrets_and_hidden_characters"],
    ),
    row(
        "L12",
        "upstreams that hang, flood, break off, lie about ids, never end, and redirect",
        "one sentence for the call, nothing for the others; headers stay with their origin",
        &[
            "bridge::upstreams_that_hang_flood_or_break_do_not_block_another",
            "bridge::a_gigabyte_in_one_line_ends_the_upstream_not_us",
            "bridge::floods_garbage_and_duplicates_do_not_disturb_answers",
            "bridge::a_call_without_answer_times_out_and_is_cancelled",
            "bridge::an_upstream_that_dies_in_a_call_is_not_asked_again_but_starts_again",
            "bridge::headers_do_not_follow_a_redirect_to_another_origin",
            "bridge::endless_bodies_and_refusals_over_http_end_in_one_sentence",
        ],
    ),
    row(
        "L13",
        "an upstream answers with links to files and scripts",
        "data, which nobody follows",
        &["bridge::sampling_and_roots_are_refused_and_links_are_data"],
    ),
    row(
        "P3",
        "signals: one, while code runs; one more",
        "what runs is finished and nobody new let in, then ended at the deadline; at once",
        &[
            "lifecycle::at_the_end_what_runs_is_finished_and_nobody_new_is_let_in",
            "lifecycle::a_turn_that_does_not_end_in_time_is_ended",
            "troubles::a_second_signal_ends_the_server_at_once",
        ],
    ),
    row(
        "P6",
        "no descriptors left; a disk that is full, stands still for ten seconds, becomes read-only",
        "503 with a time to come back, and served again when it is well; what only waited is done",
        &[
            "troubles::a_server_without_descriptors_refuses_and_recovers",
            "disks::a_full_disk_refuses_what_it_cannot_keep_and_recovers",
            "disks::a_disk_that_stands_still_loses_nothing",
            "disks::a_disk_that_became_read_only_refuses_what_it_cannot_keep",
        ],
    ),
    row(
        "P7",
        "the audit log's disk is full; its file is cut, deleted, a link; its directory is gone",
        "nothing runs that it cannot record; what is missing is counted in it",
        &[
            "audit::a_full_disk_refuses_records_leaves_no_piece_and_is_counted_when_it_has_room",
            "audit::a_file_that_was_cut_or_deleted_is_noticed_at_once",
            "audit::links_and_open_directories_are_refused",
            "audit::a_log_that_cannot_be_continued_refuses_every_record",
            "troubles::without_an_audit_log_nothing_runs",
        ],
    ),
    row(
        "P10",
        "secrets in the environment, tokens, code and the answers of upstreams; names that could break a line",
        "neither in the log nor in spans; each line of the log is one JSON object",
        &[
            "logged::every_line_is_one_object_and_no_secret_is_in_any",
            "logged::a_new_token_is_not_in_the_log",
            "traced::one_trace_goes_from_a_request_through_the_turn_to_both_upstreams",
        ],
    ),
    row(
        "P17",
        "limits of zero and below, values of a wrong kind, unknown keys, files that are none",
        "the server does not start; the sentence names the file and line, or the variable, and the key",
        &[
            "config::error_texts",
            "config::every_key_is_named_with_the_place_of_its_wrong_value",
            "config::a_file_that_is_none_is_named",
        ],
    ),
];

const SOURCES: &[(&str, &str)] = &[
    ("crowd", include_str!("crowd.rs")),
    ("disks", include_str!("disks.rs")),
    ("door", include_str!("door.rs")),
    ("environment_routes", include_str!("environment_routes.rs")),
    ("hostile", include_str!("hostile.rs")),
    ("lifecycle", include_str!("lifecycle.rs")),
    ("logged", include_str!("logged.rs")),
    ("principals", include_str!("principals.rs")),
    ("forged", include_str!("oauth/forged.rs")),
    ("keys", include_str!("oauth/keys.rs")),
    ("metadata", include_str!("oauth/metadata.rs")),
    ("owners", include_str!("oauth/owners.rs")),
    ("quotas", include_str!("quotas.rs")),
    ("rest", include_str!("rest.rs")),
    ("tasks", include_str!("tasks.rs")),
    ("traced", include_str!("traced.rs")),
    ("troubles", include_str!("troubles.rs")),
    ("uploads", include_str!("uploads.rs")),
    ("config", include_str!("../../../src/config/tests.rs")),
    ("bridge", include_str!("../bridge/mod.rs")),
    ("audit", include_str!("../../../src/audit/tests.rs")),
    ("handshakes", include_str!("../../../src/mcp/handshakes.rs")),
    ("slots", include_str!("../../../src/service/slots.rs")),
    (
        "conformance",
        include_str!("../../../src/cli/conformance/mod.rs"),
    ),
    (
        "openapi",
        include_str!("../../../../../tests/clients/openapi.py"),
    ),
    (
        "fastmcp_http",
        include_str!("../../../../../tests/clients/fastmcp_http.py"),
    ),
    (
        "over_http",
        include_str!("../../../../../tests/clients/over_http.py"),
    ),
];

/// The lines of `docs/security-tests.md`.
pub(crate) fn rows() -> impl Iterator<Item = String> {
    lines(ROWS)
}

#[test]
fn the_tests_that_are_named_exist() {
    exist(ROWS, SOURCES);
}
