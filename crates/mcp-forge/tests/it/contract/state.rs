//! What is known of a session, written about it, read of it, and forks.

use super::case::{Case, Difference, Step, case, run_in};

pub(super) const CASES: &[Case] = &[
    case(
        "the state names what the session holds",
        &[
            run_in(
                "a",
                "import json as j\nimport math\nx = [1, 2, 3]\ny = 'text'\ndef f(): pass\nclass C: pass",
            ),
            Step::State {
                session: "a",
                members: &[
                    "/introspection/x/length",
                    "/introspection/x/type",
                    "/introspection/y/repr",
                    "/all_variables",
                    "/imports",
                    "/functions",
                    "/classes",
                    "/changes/added",
                    "/state",
                    "/generation",
                ],
            },
        ],
        r#"completed
        session 1 fresh
        ---
        /introspection/x/length 3
        /introspection/x/type "list"
        /introspection/y/repr "'text'"
        /all_variables ["y", "x"]
        /imports {"math": "math", "j": "json"}
        /functions ["f"]
        /classes ["C"]
        /changes/added […"x"…]
        /state "live"
        /generation 1"#,
    ),
    case(
        "what is documented outlives the interpreter",
        &[
            run_in("a", "total = 12"),
            Step::Document {
                session: "a",
                variables: &[("total", "All of 2024")],
                note: "half done",
            },
            run_in("a", "import os; os._exit(1)"),
            Step::State {
                session: "a",
                // The first is waited for: the loss is written after it was answered.
                members: &[
                    "/lost_reason",
                    "/documented_variables",
                    "/note",
                    "/state",
                    "/generation",
                ],
            },
        ],
        r#"completed
        session 1 fresh
        ---
        documented 1
        ---
        crashed
        error Crashed: "…"
        session 1 lost "…"
        ---
        /lost_reason "…"
        /documented_variables {"total": "All of 2024"}
        /note "half done"
        /state "lost"
        /generation …"#,
    ),
    case(
        "a session that there is not cannot be documented",
        &[Step::Document {
            session: "nobody",
            variables: &[("x", "y")],
            note: "",
        }],
        r#"refused "…nobody…""#,
    ),
    case(
        "a file of a session can be read",
        &[
            run_in("a", "open('f.txt', 'w').write('naïve\\n');"),
            Step::File {
                session: "a",
                path: "f.txt",
            },
            Step::File {
                session: "a",
                path: "none.txt",
            },
        ],
        r#"completed
        session 1 fresh
        file "f.txt" 7
        ---
        content "naïve\n"
        ---
        refused "…none.txt…""#,
    ),
    case(
        "what is no plain file cannot be read",
        &[
            run_in(
                "a",
                "import os\nos.symlink('/etc/passwd', 'link'); os.mkfifo('fifo'); os.mkdir('dir')",
            ),
            Step::File {
                session: "a",
                path: "link",
            },
            Step::File {
                session: "a",
                path: "fifo",
            },
            Step::File {
                session: "a",
                path: "dir",
            },
            Step::File {
                session: "a",
                path: "../tmp/x",
            },
        ],
        r#"completed
        session 1 fresh
        ---
        refused "…link…"
        ---
        refused "…fifo…"
        ---
        refused "…dir…"
        ---
        refused "…""#,
    ),
    case(
        "a fork that cannot be is refused, and the session goes on",
        &[
            run_in(
                "a",
                "import threading\nstop = threading.Event()\nthreading.Thread(target=stop.wait).start()",
            ),
            Step::Fork { from: "a", to: "b" },
            run_in("a", "stop.set()\n'goes on'"),
        ],
        r#"completed
        session 1 fresh
        ---
        refused "…"
        ---
        completed
        result "goes on"
        session 1"#,
    ),
    Case {
        differs: &[
            Difference {
                engine: "native-cold",
                without: None,
                what: "no forks of sessions",
                reason: "a fork is a copy of the interpreter inside its sandbox, which only a zygote's keeper prepares for",
                expected: r#"completed
            session 1 fresh
            ---
            refused "only sessions that were forked from a warm interpreter can be forked, and this one was started by itself; …"
            ---
            completed
            result false
            session 1 fresh
            ---
            completed
            result 1
            session 1"#,
            },
            Difference {
                engine: "podman",
                without: None,
                what: "no forks of sessions",
                reason: "a fork is a copy of the interpreter inside its sandbox, which a container's relay does not prepare for",
                expected: r#"completed
            session 1 fresh
            ---
            refused "this engine cannot fork live sessions; …"
            ---
            completed
            result false
            session 1 fresh
            ---
            completed
            result 1
            session 1"#,
            },
        ],
        ..case(
            "a fork has all of its original's variables, and its own from then on",
            &[
                run_in("a", "x = 1"),
                Step::Fork { from: "a", to: "b" },
                run_in("b", "forked = 'x' in globals()\nx = 2\nforked"),
                run_in("a", "x"),
            ],
            r"completed
            session 1 fresh
            ---
            forked
            ---
            completed
            result true
            session 1
            ---
            completed
            result 1
            session 1",
        )
    },
];
