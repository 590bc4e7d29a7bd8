//! Tools as functions: calls, answers, failures, refusals. `upstream.py` has the tools.

use super::case::{Case, Step, Turn, case, run, run_in, run_with, turn};

pub(super) const CASES: &[Case] = &[
    case(
        "a tool is called like a function and gives plain data",
        &[run_with(&["kit_echo"], "kit_echo(x={'a': [1, None, 'é']})")],
        r#"completed
        result {"got": {"a": [1, null, "é"]}}
        tool kit_echo ok 25 -> 51"#,
    ),
    case(
        "a positional argument",
        &[run_with(&["kit_size"], "kit_size('four')['length']")],
        "completed\nresult 4\ntool kit_size ok 12 -> 36",
    ),
    case(
        "an argument that is not passed is left to the tool",
        &[run_with(
            &["kit_count"],
            "[kit_count(3), kit_count(3, unit='b'), kit_count(3, unit=None)]",
        )],
        r#"completed
        result ["3 a", "3 b", "3 a"]
        tool kit_count ok 7 -> 29
        tool kit_count ok 18 -> 29
        tool kit_count ok 7 -> 29"#,
    ),
    case(
        "a plain text that looks like a number stays a text",
        &[run_with(
            &["kit_count"],
            "[type(kit_count(1)).__name__, kit_count.__name__, kit_count.__doc__.split('.')[0]]",
        )],
        "completed\nresult [\"str\", \"kit_count\", \"Does count\"]\ntool kit_count ok 7 -> 29",
    ),
    case(
        "calls from many threads are answered side by side",
        &[run_with(
            &["kit_meet"],
            "
            from concurrent.futures import ThreadPoolExecutor
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda _: kit_meet(place='threads', guests=8), range(8)))
            [answer['met'] for answer in answers]",
        )],
        r"completed
        result [8, 8, 8, 8, 8, 8, 8, 8]
        tool kit_meet ok 30 -> 33 (times 8)",
    ),
    case(
        "awaited calls are answered side by side",
        &[run_with(
            &["kit_meet"],
            "
            import asyncio
            answers = await asyncio.gather(*(kit_meet.aio('loop', 3) for _ in range(3)))
            [answer['met'] for answer in answers]",
        )],
        r"completed
        result [3, 3, 3]
        tool kit_meet ok 27 -> 33 (times 3)",
    ),
    case(
        "a call in a loop that was run by the code itself",
        &[run_with(
            &["kit_echo"],
            "
            import asyncio
            async def main(): return (await kit_echo.aio(x=1))['got']
            asyncio.run(main())",
        )],
        "completed\nresult 1\ntool kit_echo ok 7 -> 33",
    ),
    case(
        "an argument of one megabyte",
        &[run_with(
            &["kit_size"],
            "kit_size('s' * 1_000_000)['length']",
        )],
        "completed\nresult 1000000\ntool kit_size ok 1000008 -> 42",
    ),
    case(
        "an answer of ten megabytes",
        &[run_with(
            &["kit_big"],
            "
            answer = kit_big(10_000_000)
            [len(answer), set(answer)]",
        )],
        "completed\nresult [10000000, [\"b\"]]\nrepr \"[10000000, {'b'}]\"\ntool kit_big ok 14 -> 10000026",
    ),
    case(
        "arguments above 16 MiB are refused before they are sent",
        &[run_with(
            &["kit_size"],
            "
            try: kit_size('s' * (17 << 20))
            except ToolError as error: told = [error.kind, error.message]
            told",
        )],
        r#"completed
        result ["invalid_arguments", "the arguments are too large: over 16 MiB as JSON"]"#,
    ),
    case(
        "an answer above the cap is a failure of the kind limit",
        &[run_with(
            &["kit_big"],
            "
            try: kit_big(16_790_000)
            except ToolError as error: told = [error.kind, error.tool]
            told",
        )],
        r#"completed
        result ["limit", "kit_big"]
        tool kit_big limit 14 -> …"#,
    ),
    case(
        "an answer far above the cap costs the upstream its connection, which is made anew",
        &[run_with(
            &["vast_big", "vast_echo"],
            "
            try: vast_big(17_000_000)
            except ToolError as error: told = error.kind
            [told, vast_echo(x=1)['got']]",
        )],
        r#"completed
        result ["upstream", 1]
        tool vast_big upstream 14 -> …
        tool vast_echo ok 7 -> 33"#,
    ),
    case(
        "several texts are a list",
        &[run_with(&["kit_texts"], "kit_texts()")],
        "completed\nresult [\"one\", \"two\"]\ntool kit_texts ok 2 -> …",
    ),
    case(
        "no content is None",
        &[run_with(&["kit_nothing"], "print(kit_nothing())")],
        "completed\nstdout \"None\\n\"\ntool kit_nothing ok 2 -> …",
    ),
    case(
        "an image has bytes and shows itself",
        &[run_with(
            &["kit_image"],
            "
            image = kit_image()
            image.save('/tmp/i.png')
            display(image)
            [image.data == open('/tmp/i.png', 'rb').read(), image.mime_type, len(image.data)]",
        )],
        r#"completed
        result [true, "image/png", 8]
        display text/plain "<Media image/png, 8 bytes; .data, .save(path)>"; image/png "iVBORw0KGgo="
        tool kit_image ok 2 -> …"#,
    ),
    case(
        "a resource has its address and its text",
        &[run_with(
            &["kit_page"],
            "page = kit_page()\n[page.uri, page.mime_type, page.text]",
        )],
        r#"completed
        result ["kit://a", "text/plain", "page"]
        tool kit_page ok 2 -> …"#,
    ),
    case(
        "a tool that fails raises ToolError with its words",
        &[run_with(&["kit_fail"], "kit_fail(why='no such thing')")],
        r#"raised
        error ToolError: "kit_fail: no such thing (tool)"
        at 1 in <module>
        tool kit_fail tool 23 -> 41"#,
    ),
    case(
        "a ToolError that is caught says kind, tool and message",
        &[run_with(
            &["kit_fail"],
            "
            try: kit_fail('w')
            except ToolError as error: told = [error.kind, error.tool, error.message]
            told",
        )],
        r#"completed
        result ["tool", "kit_fail", "w"]
        tool kit_fail tool 11 -> 29"#,
    ),
    case(
        "an upstream that answers with an error is told as such",
        &[run_with(
            &["kit_refuse"],
            "
            try: kit_refuse()
            except ToolError as error: told = [error.kind, error.message]
            told",
        )],
        r#"completed
        result ["tool", "upstream `kit` refused the call: not today (code -32603)"]
        tool kit_refuse tool 2 -> …"#,
    ),
    case(
        "an upstream that dies in the middle of a call fails that call, and is there for the next",
        &[run_with(
            &["frail_die", "frail_echo"],
            "
            try: frail_die()
            except ToolError as error: told = error.kind
            [told, frail_echo(x=1)['got']]",
        )],
        r#"completed
        result ["upstream", 1]
        tool frail_die upstream 2 -> …
        tool frail_echo ok 7 -> 33"#,
    ),
    case(
        "a call that takes too long fails, and the code goes on",
        &[run_with(
            &["late_wait"],
            "
            try: late_wait()
            except ToolError as error: told = error.kind
            told",
        )],
        r#"completed
        result "timeout"
        tool late_wait timeout 2 -> …"#,
    ),
    case(
        "what the schema forbids is refused with the reason",
        &[run_with(
            &["kit_count"],
            "
            told = []
            for arguments in ({'n': 11}, {'n': 'three'}, {'n': 1, 'unit': 'c'}):
                try: kit_count(**arguments)
                except ToolError as error: told.append([error.kind, error.message])
            told",
        )],
        r#"completed
        result [["invalid_arguments", "kit_count: argument `n` must be at most 10, not 11"], ["invalid_arguments", "kit_count: argument `n` must be int, not str"], ["invalid_arguments", "kit_count: argument `unit` must be one of 'a', 'b', not 'c'"]]
        repr …
        tool kit_count invalid_arguments 8 -> …
        tool kit_count invalid_arguments 13 -> …
        tool kit_count invalid_arguments 18 -> …"#,
    ),
    case(
        "a wrong signature is a TypeError and no call",
        &[run_with(&["kit_count"], "kit_count(nn=1)")],
        r#"raised
        error TypeError: "kit_count() has no parameter 'nn'; did you mean 'n'?. Signature: …"
        at 1 in <module>"#,
    ),
    case(
        "an argument that JSON cannot hold is a TypeError and no call",
        &[run_with(
            &["kit_echo"],
            "
            told = []
            for value in (float('nan'), 2**64, b'x', {1: 2}, object, '\\ud800'):
                try: kit_echo(x=value)
                except TypeError: told.append(type(value).__name__)
            told",
        )],
        r#"completed
        result ["float", "int", "bytes", "dict", "type", "str"]"#,
    ),
    case(
        "more calls than the limit are refused",
        &[run_with(
            &["kit_nothing"],
            "
            made = 0
            try:
                while True:
                    kit_nothing()
                    made += 1
            except ToolError as error: told = [made, error.kind]
            told",
        )],
        r#"completed
        result [40, "limit"]
        tool kit_nothing ok 2 -> 28 (times 40)
        tool kit_nothing limit 2 -> …"#,
    ),
    case(
        "a tool that was not asked for is not there",
        &[run_with(
            &["kit_echo"],
            "['kit_echo' in globals(), 'kit_size' in globals()]",
        )],
        "completed\nresult [true, false]",
    ),
    case(
        "a call that the code forges is refused and recorded",
        &[run_with(
            &["kit_echo"],
            r#"
            import json, os, struct
            body = json.dumps({"type": "tool_call", "call_id": 1, "name": "kit_size", "arguments": {"s": "x"}}).encode()
            os.write(3, struct.pack(">I", len(body)) + body)
            length, = struct.unpack(">I", os.read(3, 4))
            json.loads(os.read(3, length))["error"]["kind"]"#,
        )],
        r#"completed
        result "not_granted"
        tool kit_size not_granted 9 -> …"#,
    ),
    case(
        "a tool that nobody has is refused before anything runs",
        &[run_with(&["kit_ehco"], "print('never')")],
        r#"refused "…kit_ehco…""#,
    ),
    case(
        "a child process cannot call tools",
        &[run_with(
            &["kit_echo"],
            "
            import os
            read, write = os.pipe()
            if os.fork() == 0:
                try: kit_echo(x=1)
                except ToolError as error: os.write(write, error.kind.encode())
                os._exit(0)
            os.wait()
            [os.read(read, 100).decode(), kit_echo(x=2)['got']]",
        )],
        r#"completed
        result ["not_granted", 2]
        tool kit_echo ok 7 -> 33"#,
    ),
    case(
        "a tool cannot be sent to another process",
        &[run_with(
            &["kit_echo"],
            "import pickle\npickle.dumps(kit_echo)",
        )],
        r#"raised
        error TypeError: "kit_echo is a tool: it cannot be sent to another process"
        at 2 in <module>"#,
    ),
    case(
        "the timeout counts while a tool is waited for",
        &[Step::Run(Turn {
            timeout: Some(5.0),
            tools: &["kit_wait"],
            ..turn("print('call'); kit_wait()")
        })],
        r#"timed_out
        stdout "call\n"
        error TimedOut: "…""#,
    ),
    case(
        "a call in flight when the code ends is of no effect on the answer",
        &[run_with(
            &["kit_wait"],
            "
            import threading, time
            threading.Thread(target=kit_wait, daemon=True).start()
            time.sleep(0.3)
            'done'",
        )],
        "completed\nresult \"done\"",
    ),
    case(
        "tools of a session are those of each call",
        &[
            Step::Run(Turn {
                session: Some("a"),
                tools: &["kit_echo"],
                ..turn("kept = kit_echo\nkept(x=1)['got']")
            }),
            Step::Run(Turn {
                session: Some("a"),
                tools: &["kit_size"],
                ..turn(
                    "
                try: kept(x=2)
                except ToolError as error: told = error.kind
                [told, kit_size('ab')['length']]",
                )
            }),
            run_in("a", "'kit_size' in globals()"),
        ],
        r#"completed
        result 1
        tool kit_echo ok 7 -> 33
        session 1 fresh
        ---
        completed
        result ["not_granted", 2]
        tool kit_echo not_granted 7 -> …
        tool kit_size ok 10 -> 36
        session 1
        ---
        completed
        result false
        session 1"#,
    ),
    case(
        "code without tools has ToolError and display all the same",
        &[run("[ToolError.__mro__[1].__name__, callable(display)]")],
        "completed\nresult [\"Exception\", true]",
    ),
];
