//! The lines of `docs/security-tests.md` about environments: what is tried, and which tests try it.

use crate::rows::{Row, exist, lines};

const ROWS: &[Row] = &[
    Row {
        id: "J1",
        tried: "options in a package's place: other indexes, other files, directories, settings",
        must: "refused by name, before anything runs",
        tests: &[
            "requirement::hostile_specs_are_refused_each_for_its_reason",
            "builds::requests_are_refused_by_the_field",
        ],
        control: "`packages::uv_would_do_much_more_with_what_we_refuse`",
    },
    Row {
        id: "J2",
        tried: "line ends, NUL, comments, continuations and separators of Unicode in one",
        must: "refused; what is accepted is written in one safe way",
        tests: &[
            "requirement::hostile_specs_are_refused_each_for_its_reason",
            "requirement::whatever_is_accepted_is_written_safely_and_read_again",
        ],
        control: "`packages::uv_would_do_much_more_with_what_we_refuse`",
    },
    Row {
        id: "J3",
        tried: "addresses, paths, repositories and variables of the environment in one",
        must: "refused; uv reads what is accepted as the same package and nothing else",
        tests: &[
            "requirement::hostile_specs_are_refused_each_for_its_reason",
            "packages::what_we_accept_uv_reads_as_the_same_package_and_nothing_else",
        ],
        control: "`packages::uv_would_do_much_more_with_what_we_refuse`",
    },
    Row {
        id: "J4",
        tried: "other spellings of a blocked name: case, separators, letters that look alike",
        must: "one name or none",
        tests: &[
            "name::one_project_has_one_name",
            "name::what_only_looks_like_a_name_is_none",
            "requirement::hostile_specs_are_refused_each_for_its_reason",
            "hostile::a_dependency_is_judged_and_the_refusal_is_in_the_audit_log",
        ],
        control: "none: behaviour, not a layer",
    },
    Row {
        id: "J5",
        tried: "what only a dependency brings; a wheel of another name, version or hash",
        must: "judged as what was asked for; refused",
        tests: &[
            "builds::rules_hold_back_and_an_approval_lets_in",
            "hostile::a_dependency_is_judged_and_the_refusal_is_in_the_audit_log",
            "hostile::hostile_wheels_are_refused_and_write_nothing_elsewhere",
            "lock::files_say_the_package_and_the_version_that_they_are_of",
            "lock::a_package_under_a_condition_is_one_like_any_other",
            "answers::a_file_is_what_its_index_promised_or_is_not_installed",
        ],
        control: "with the true hash, in the same test",
    },
    Row {
        id: "J6",
        tried: "a name that two indexes have",
        must: "from the index that is named for it, or not at all",
        tests: &["builds::a_package_comes_from_its_own_index_or_not_at_all"],
        control: "with the name listed, in the same test",
    },
    Row {
        id: "J7",
        tried: "a package without a wheel, whose build is code",
        must: "refused; nothing of it runs",
        tests: &[
            "hostile::hostile_wheels_are_refused_and_write_nothing_elsewhere",
            "lock::what_is_not_a_wheel_of_a_listed_place_is_refused",
        ],
        control: "none: it is never asked for",
    },
    Row {
        id: "J8",
        tried: "wheels that climb, link, repeat, lie, and are too large by one file, by many or by their number",
        must: "refused or harmless; nothing elsewhere, the disk bounded",
        tests: &[
            "hostile::hostile_wheels_are_refused_and_write_nothing_elsewhere",
            "hostile::odd_wheels_are_refused_or_harmless",
            "hostile::what_is_too_large_or_takes_too_long_is_ended",
            "hostile::many_files_that_are_too_large_together_fill_no_disk",
            "hostile::an_import_that_forks_without_end_ends_with_its_sandbox",
            "tree::what_no_wheel_should_bring_is_refused_by_name",
            "uv::versions_with_known_holes_are_refused",
        ],
        control: "`hostile::wheels_of_the_operators_own_directory_are_built_without_an_index`",
    },
    Row {
        id: "J9",
        tried: "code that runs when an interpreter starts",
        must: "runs in sealed sandboxes only, never on the host, in a job or in a zygote",
        tests: &[
            "hostile::startup_files_run_in_sandboxes_only",
            "engines::no_code_of_an_environment_runs_before_the_seal",
        ],
        control: "outside it runs, in the same tests",
    },
    Row {
        id: "J10",
        tried: "names that are paths, options, too long, or taken",
        must: "refused by the field",
        tests: &[
            "environment_name::names_are_safe_as_parts_of_paths_and_as_tags",
            "builds::requests_are_refused_by_the_field",
            "builds::limits_of_requests_are_told",
            "lifecycle::one_principals_environments_are_nothing_to_another",
        ],
        control: "none: behaviour, not a layer",
    },
    Row {
        id: "J11",
        tried: "the same build by many clients of two servers",
        must: "made once",
        tests: &["builds::the_same_name_is_built_once_by_many_clients_of_two_servers"],
        control: "none: behaviour, not a layer",
    },
    Row {
        id: "J11",
        tried: "a build that is cancelled, or whose server is killed, in each phase",
        must: "nothing half can be used, and nothing is left",
        tests: &[
            "builds::a_cancelled_build_leaves_nothing",
            "builds::a_killed_server_leaves_no_half_environment",
            "hostile::a_build_that_ends_in_its_check_leaves_no_tree",
        ],
        control: "the same build to its end, in the same tests",
    },
    Row {
        id: "J11",
        tried: "a disk that is full in the middle of a build, at each of nine sizes",
        must: "a sentence that says so; nothing half can be used; with room it works",
        tests: &["disk::a_full_disk_ends_a_build_with_a_sentence_and_nothing_half"],
        control: "with room enough, in the same test",
    },
    Row {
        id: "J12",
        tried: "deletes, rebuilds and archives what code or a session has",
        must: "what runs goes on with what it has; the rest goes with the last of them",
        tests: &[
            "builds::code_and_sessions_run_with_the_environment_that_they_name",
            "lifecycle::what_is_in_use_is_not_removed",
            "lifecycle::a_rebuild_keeps_the_name_and_swaps_the_lock",
            "engines::a_tree_is_removed_only_when_nothing_uses_it",
            "pods::an_image_that_a_session_has_goes_when_the_next_server_starts",
        ],
        control: "unused, it is removed: in the same tests",
    },
    Row {
        id: "J13",
        tried: "an index that answers with errors, garbage, nothing, slowly, or without an end",
        must: "ended by time or bytes, with a sentence",
        tests: &[
            "answers::an_index_that_answers_badly_ends_a_build_with_a_sentence",
            "answers::an_index_that_never_ends_is_bounded_in_time_and_bytes",
            "gateway::uv_ends_whatever_an_index_does",
        ],
        control: "`answers::a_file_is_what_its_index_promised_or_is_not_installed`",
    },
    Row {
        id: "J13",
        tried: "an index that redirects to, or has its files at, other hosts, the cloud's metadata, files of the host",
        must: "not reached",
        tests: &[
            "answers::an_index_leads_nowhere_else",
            "gateway::a_redirect_to_an_address_within_leads_nowhere",
        ],
        control: "the same host as an index is reached, in the same test",
    },
    Row {
        id: "J14",
        tried: "lines of a Containerfile in a version of Python, a base image, a name",
        must: "refused by the field; there is no such file: an image is one layer over the operator's",
        tests: &[
            "builds::requests_are_refused_by_the_field",
            "podman::what_does_not_fit_is_refused_with_the_fix",
        ],
        control: "none: behaviour, not a layer",
    },
    Row {
        id: "J15",
        tried: "images that are not the operator's, by any spelling; a tree with links",
        must: "refused before the service is asked",
        tests: &[
            "builds::requests_are_refused_by_the_field",
            "podman::what_does_not_fit_is_refused_with_the_fix",
            "environment_name::only_our_own_images_name_an_environment",
            "podman::an_image_is_built_once_and_is_this_data_directorys",
        ],
        control: "none: behaviour, not a layer",
    },
    Row {
        id: "J16",
        tried: "code looks for, and writes to, uv's cache, a build's staging and other environments",
        must: "nothing found, nothing written, with an environment and without",
        tests: &[
            "walls::what_builds_keep_is_out_of_reach_of_code",
            "walls::a_package_of_one_environment_is_in_no_other",
            "pods::what_is_built_runs_in_containers_and_goes_with_its_name",
        ],
        control: "outside all of it is found and written, in the same test",
    },
    Row {
        id: "J16",
        tried: "code installs, writes to its packages, preloads a library",
        must: "its packages stay as they are, and so does the next sandbox",
        tests: &[
            "engines::nothing_can_be_installed_in_a_running_sandbox",
            "walls::what_is_preloaded_stays_in_its_sandbox",
            "podman::packages_are_the_environments_and_nothing_can_be_installed",
        ],
        control: "outside each works, in the same tests",
    },
    Row {
        id: "R17",
        tried: "the request's text on its way to uv",
        must: "only what was parsed and written anew, and what is installed is a judged lock's, by hash",
        tests: &[
            "packages::our_canonical_text_means_what_the_text_meant",
            "packages::a_lock_of_uv_comes_back_to_it_as_hashes",
            "lock::a_kept_lock_that_was_changed_is_refused",
        ],
        control: "another hash is refused, in the same test",
    },
    Row {
        id: "R18",
        tried: "a build that gets out: the rows `J` of build jobs",
        must: "nothing works",
        tests: &[
            "jobs::nothing_leads_out_of_a_job",
            "jobs::what_a_job_leaves_is_nobody_elses",
        ],
        control: "`jobs::each_way_out_works_without_what_holds_it`",
    },
    Row {
        id: "R18",
        tried: "a scanner that hangs, floods, lies, and looks around",
        must: "bounded and told; it sees its packages, its database and its answer",
        tests: &[
            "scans::a_scanner_that_misbehaves_is_bounded_and_told",
            "scans::a_scanner_reaches_nothing_but_its_answer",
        ],
        control: "`scans::what_a_scanner_finds_is_told_and_the_worst_is_refused`",
    },
];

/// Where the named tests are.
const SOURCES: &[(&str, &str)] = &[
    ("answers", include_str!("answers.rs")),
    ("builds", include_str!("builds.rs")),
    ("disk", include_str!("disk.rs")),
    ("engines", include_str!("engines.rs")),
    ("hostile", include_str!("hostile.rs")),
    ("lifecycle", include_str!("lifecycle.rs")),
    ("scans", include_str!("scans.rs")),
    ("walls", include_str!("walls.rs")),
    ("gateway", include_str!("../jobs/gateway.rs")),
    ("jobs", include_str!("../jobs/escape.rs")),
    ("packages", include_str!("../packages.rs")),
    ("podman", include_str!("../podman/environments.rs")),
    ("pods", include_str!("../podman/builds.rs")),
    (
        "environment_name",
        include_str!("../../../src/packages/environment_name.rs"),
    ),
    ("name", include_str!("../../../src/packages/name.rs")),
    (
        "requirement",
        include_str!("../../../src/packages/requirement/tests.rs"),
    ),
    ("lock", include_str!("../../../src/packages/lock/tests.rs")),
    ("tree", include_str!("../../../src/environments/tree.rs")),
    ("uv", include_str!("../../../src/environments/uv.rs")),
];

pub(crate) fn rows() -> impl Iterator<Item = String> {
    lines(ROWS)
}

#[test]
fn the_tests_that_are_named_exist() {
    exist(ROWS, SOURCES);
}
