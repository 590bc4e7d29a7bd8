//! What code shows beside its result.

use super::case::{Case, case, run};

pub(super) const CASES: &[Case] = &[
    case(
        "display shows an object without HTML as text",
        &[run("display([1, 2])")],
        r#"completed
        display text/plain "[1, 2]""#,
    ),
    case(
        "HTML is shown beside the text",
        &[run("
            class Table:
                def __repr__(self): return 'Table()'
                def _repr_html_(self): return '<b>1</b>'
            display(Table())")],
        r#"completed
        display text/plain "Table()"; text/html "<b>1</b>""#,
    ),
    case(
        "the result's own bundle is a display",
        &[run("
            class Table:
                def __repr__(self): return 'Table()'
                def _repr_html_(self): return '<b>1</b>'
            Table()")],
        r#"completed
        result "Table()"
        repr "Table()"
        display text/plain "Table()"; text/html "<b>1</b>""#,
    ),
    case(
        "a PNG is base64",
        &[run("
            class Picture:
                def __repr__(self): return 'Picture()'
                def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n', {'width': 2}
            display(Picture())")],
        r#"completed
        display text/plain "Picture()"; image/png "iVBORw0KGgo=" with {"image/png": {"width": 2}}"#,
    ),
    case(
        "SVG, Markdown, LaTeX and JSON",
        &[run("
            class All:
                def __repr__(self): return 'All()'
                def _repr_markdown_(self): return '# a'
                def _repr_svg_(self): return '<svg/>'
                def _repr_latex_(self): return '$x$'
                def _repr_json_(self): return {'a': [1]}
            display(All())")],
        r##"completed
        display text/plain "All()"; text/markdown "# a"; image/svg+xml "<svg/>"; text/latex "$x$"; application/json {"a": [1]}"##,
    ),
    case(
        "a bundle of the object's own is taken whole, with its metadata",
        &[run("
            class Bundle:
                def __repr__(self): return 'Bundle()'
                def _repr_mimebundle_(self, **_): return {'text/html': '<i>', 'x/y': 1}, {'x/y': {'z': 2}}
            display(Bundle())")],
        r#"completed
        display text/plain "Bundle()"; text/html "<i>"; x/y 1 with {"x/y": {"z": 2}}"#,
    ),
    case(
        "a raw bundle",
        &[run("display({'text/plain': 'p', 'text/html': '<p>'}, raw=True)")],
        r#"completed
        display text/plain "p"; text/html "<p>""#,
    ),
    case(
        "displays come in their order, and before the error",
        &[run("for n in range(3): display(n)\nraise ValueError('late')")],
        r#"raised
        display text/plain "0"
        display text/plain "1"
        display text/plain "2"
        error ValueError: "late"
        at 2 in <module>"#,
    ),
    case(
        "a method that fails costs its form only",
        &[run("
            class Half:
                def __repr__(self): return 'Half()'
                def _repr_html_(self): raise ValueError
                def _repr_markdown_(self): return 'm'
            display(Half())")],
        r#"completed
        display text/plain "Half()"; text/markdown "m""#,
    ),
    case(
        "the form that is too large is left out first",
        &[run("display({'text/plain': 'big', 'text/html': 'x' * 9_000_000}, raw=True)")],
        r#"completed
        display text/plain "big\n[text/html left out: 9000002 bytes are over the limit]"
        truncated {"displays": …}"#,
    ),
    case(
        "more than a hundred displays are counted in the last one",
        &[run("for _ in range(150): display('d')\n1")],
        r#"completed
        result 1
        display text/plain "'d'" (times 99)
        display text/plain "[51 displays left out: … bytes over the limit]"
        truncated {"displays": …}"#,
    ),
    case(
        "a display from a thread",
        &[run("import threading\nt = threading.Thread(target=display, args=('shown',))\nt.start(); t.join()")],
        r#"completed
        display text/plain "'shown'""#,
    ),
    case(
        "a display of a child process is text on its output",
        &[run("import os\nif os.fork() == 0:\n    display('child')\n    os._exit(0)\nos.wait()[1]")],
        r#"completed
        result 0
        stdout "'child'\n""#,
    ),
];
