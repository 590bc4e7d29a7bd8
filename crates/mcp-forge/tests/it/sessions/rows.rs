//! The lines of `docs/security-tests.md` about sessions: what is tried, and which tests try it.

use crate::rows::{Row, exist, lines, row};

const ROWS: &[Row] = &[
    row(
        "A10",
        "a thread of an ended call goes on printing",
        "told as output between calls, bounded, never as another call's",
        &[
            "real::what_a_thread_writes_later_never_belongs_to_another_turn",
            "turns::late_output_is_told_apart_and_bounded",
            "test_session_late::test_late_output_is_bounded_between_two_turns",
        ],
    ),
    row(
        "A11",
        "a timer of an ended call prints, displays and calls tools while the next one runs",
        "it is told of its own call, and its tool calls are refused",
        &[
            "test_session_late::test_a_timer_that_fires_in_the_next_turn_cannot_answer_for_it",
            "test_session::test_threads_of_an_earlier_turn_cannot_call",
        ],
    ),
    row(
        "A11",
        "a thread of an ended call writes a result to the socket itself while the next call runs",
        "that session is lost, and says so; no later call and no other session gets an answer that is not its own",
        &["hostile::a_forged_result_costs_the_session_and_no_other"],
    ),
    Row {
        control: "none is a layer; the session that left them must find them all by the same means",
        ..row(
            "D16",
            "looks for what another principal's session left: /tmp, /workspace, /dev/shm, variables of the environment, all writable memory",
            "nothing found, neither while that session lives nor after it",
            &["hostile::nothing_of_a_principals_session_is_found_in_anothers"],
        )
    },
    row(
        "G21",
        "rebinds, deletes, replaces builtins, modules and the display hook",
        "it stays in its session, and the answers stay right",
        &[
            "hostile::what_a_session_replaces_it_replaces_for_itself",
            "test_session::test_history",
            "test_session_ipython::test_history",
            "test_session_reference::test_the_same_is_seen",
        ],
    ),
    row(
        "G22",
        "1000 calls in one session",
        "no more descriptors, threads and memory of the server; the session's own growth is told",
        &[
            "hostile::a_thousand_turns_leave_nothing_in_the_server",
            "test_session::test_a_thousand_turns_leave_no_descriptor_and_no_thread",
        ],
    ),
    row(
        "K1",
        "1000 sessions at once; made and deleted at once; deleted twice, and while a call runs",
        "as many as there may be, the others told; deleted once; nothing left",
        &[
            "hostile::a_thousand_sessions_at_once_are_as_many_as_there_may_be",
            "lifecycle::many_are_made_and_deleted_at_once",
            "lifecycle::a_deleted_session_is_forgotten_whatever_it_was_doing",
            "lifecycle::one_principal_cannot_take_all_the_room",
        ],
    ),
    row(
        "K2",
        "100 calls at once in one session",
        "one after the other in their order; those beyond the queue are told",
        &[
            "hostile::a_hundred_calls_at_once_run_in_their_order",
            "turns::turns_run_in_the_order_of_their_calls_and_too_many_are_told",
        ],
    ),
    row(
        "K3",
        "cancels before, during compilation and the run, after the end, twice, and by another client",
        "the next call is right each time; another client's call goes on",
        &[
            "hostile::cancelled_at_any_time_the_next_call_is_right",
            "turns::a_dropped_call_is_interrupted_and_never_hits_the_next",
        ],
    ),
    row(
        "K4",
        "the idle time and the lifetime end while a call runs, and before a file is read",
        "a running call is not idle; at the lifetime it is cancelled and the loss told; files stay",
        &[
            "hostile::a_running_call_is_not_idle_and_ends_with_the_lifetime",
            "lifecycle::a_running_turn_is_not_idle_but_has_a_lifetime",
            "lifecycle::an_idle_session_is_warned_of_and_then_ends",
        ],
    ),
    row(
        "K5",
        "uses a session after its end, after a restart, and one of another principal",
        "unknown, in the same words; after a restart lost, and told",
        &[
            "lifecycle::a_deleted_session_is_forgotten_whatever_it_was_doing",
            "lifecycle::a_restart_is_a_loss_with_documentation_files_and_history_intact",
            "lifecycle::one_principals_sessions_are_unknown_to_another",
        ],
    ),
    row(
        "K6",
        "the client closes one direction or both while a call runs, in both eras of MCP",
        "the server and all below it end; the session is lost, and the next server says so",
        &[
            "hostile::a_client_that_goes_in_the_middle_of_a_turn_leaves_no_process",
            "protocol::a_client_that_leaves_ends_its_sessions_and_the_next_one_is_told",
        ],
    ),
    row(
        "K7",
        "a client that does not read while a call writes",
        "the call ends undisturbed, memory of the server bounded, the answer whole when it is read",
        &["hostile::a_client_that_does_not_read_holds_up_no_turn"],
    ),
    row(
        "K8",
        "stops a loop of numpy, a sleep, a tool call in flight, a child process, an await",
        "interrupted, the session kept, the next call right",
        &[
            "hostile::an_interrupt_ends_a_tool_call_in_flight_and_a_loop_of_numpy",
            "real::whatever_a_turn_waits_for_an_interrupt_ends_it_and_the_state_stays",
            "test_session_late::test_a_tool_call",
            "test_session_late::test_in_a_loop_of_numpy",
        ],
    ),
    row(
        "P1",
        "the server is killed while a session's call runs",
        "the session is lost, and the next server says so; its files and documentation stay",
        &["real::a_server_killed_in_the_middle_of_a_turn_is_a_loss_and_nothing_worse"],
    ),
    row(
        "P5",
        "the zygote's keeper, or the interpreter, is killed while a session's call runs",
        "the loss is told once, then a fresh interpreter with the session's files answers",
        &[
            "deaths::a_killed_keeper_is_a_loss_that_is_told_once",
            "deaths::a_killed_interpreter_is_a_loss_that_is_told_once",
        ],
    ),
    row(
        "P5",
        "the zygote is killed while a session's call runs",
        "the session goes on, and others can be started",
        &["deaths::a_killed_zygote_costs_a_session_nothing"],
    ),
];

/// These lines.
pub(crate) fn rows() -> impl Iterator<Item = String> {
    lines(ROWS)
}

#[test]
fn the_tests_that_are_named_exist() {
    let sources = [
        ("deaths", include_str!("deaths.rs")),
        ("hostile", include_str!("hostile.rs")),
        ("lifecycle", include_str!("lifecycle.rs")),
        ("protocol", include_str!("protocol.rs")),
        ("real", include_str!("real.rs")),
        ("turns", include_str!("turns.rs")),
        (
            "test_session",
            include_str!("../../../../../runner/tests/test_session.py"),
        ),
        (
            "test_session_ipython",
            include_str!("../../../../../runner/tests/test_session_ipython.py"),
        ),
        (
            "test_session_late",
            include_str!("../../../../../runner/tests/test_session_late.py"),
        ),
        (
            "test_session_reference",
            include_str!("../../../../../runner/tests/test_session_reference.py"),
        ),
    ];
    exist(ROWS, &sources);
}
