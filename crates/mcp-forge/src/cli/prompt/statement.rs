//! When what was typed is a whole statement: as Python's own prompt decides it, before Python sees it.
//!
//! A bracket, a string of three quotes or a backslash goes on to the next line; a block goes on to an
//! empty line. What only looks whole is a syntax error that Python tells.

/// Words that begin a block, also when its body stands on the same line.
const BLOCKS: [&str; 8] = ["async", "class", "def", "for", "if", "try", "while", "with"];

/// Spaces that a block is indented by.
const INDENT: usize = 4;

/// Lines, as they are typed.
#[derive(Debug, Default)]
pub(super) struct Statement {
    text: String,
    /// The quote that ends the string of three that is open.
    string: Option<char>,
    brackets: usize,
    /// The last line ended with a backslash.
    is_continued: bool,
    is_block: bool,
    /// The last line opened a block.
    is_opening: bool,
    indent: usize,
}

impl Statement {
    /// Adds a line, or several that were pasted at once. Says whether the statement is whole.
    pub(super) fn push(&mut self, lines: &str) -> bool {
        let is_pasted = lines.contains('\n');
        let mut is_whole = false;
        for line in lines.split('\n') {
            is_whole = self.push_line(line.strip_suffix('\r').unwrap_or(line));
        }
        // What was pasted is meant as a whole, its empty lines included.
        is_whole || (is_pasted && !self.is_open())
    }

    /// Whether nothing was typed yet that means something.
    pub(super) fn is_empty(&self) -> bool {
        self.text.trim().is_empty()
    }

    /// What was typed.
    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Spaces that the next line probably begins with.
    pub(super) fn next_indent(&self) -> usize {
        match (self.is_open() || !self.is_block, self.is_opening) {
            (true, _) => 0,
            (false, true) => self.indent + INDENT,
            (false, false) => self.indent,
        }
    }

    fn push_line(&mut self, line: &str) -> bool {
        let is_start = !self.is_open();
        if is_start && self.is_empty() && is_for_the_shell(line) {
            self.text.push_str(line);
            self.text.push('\n');
            self.is_block = line.starts_with("%%");
            return !self.is_block;
        }
        self.text.push_str(line);
        self.text.push('\n');
        let is_blank = line.trim().is_empty();
        if is_start && is_blank {
            return true;
        }
        if is_start {
            self.indent = line.len() - line.trim_start_matches(' ').len();
            let word = line.trim_start();
            let end = word
                .find(|character: char| !character.is_alphanumeric() && character != '_')
                .unwrap_or(word.len());
            self.is_block |= word.starts_with('@') || BLOCKS.contains(&&word[..end]);
        }
        let last = self.read(line);
        self.is_opening = !self.is_open() && last == Some(':');
        self.is_block |= self.is_opening;
        !self.is_open() && !self.is_block
    }

    /// Whether the next line belongs to this one, whatever it is.
    fn is_open(&self) -> bool {
        self.string.is_some() || self.brackets > 0 || self.is_continued
    }

    /// Follows strings and brackets through one line. Returns its last character that is neither
    /// space nor comment.
    fn read(&mut self, line: &str) -> Option<char> {
        self.is_continued = false;
        let mut last = None;
        let mut rest = line;
        loop {
            if let Some(quote) = self.string {
                let Some(after) = after_string(rest, quote, 3) else {
                    return last;
                };
                self.string = None;
                rest = after;
                last = Some(quote);
            }
            let mut characters = rest.chars();
            let Some(character) = characters.next() else {
                return last;
            };
            let after = characters.as_str();
            match character {
                '#' => return last,
                '\\' if after.is_empty() => {
                    self.is_continued = true;
                    return last;
                }
                '"' | '\'' => {
                    let three = [character; 3].iter().collect::<String>();
                    if let Some(after) = rest.strip_prefix(&three) {
                        self.string = Some(character);
                        rest = after;
                        continue;
                    }
                    last = Some(character);
                    let Some(end) = after_string(after, character, 1) else {
                        // Such a string ends with its line, unless a backslash goes on.
                        self.is_continued = after.ends_with('\\');
                        return last;
                    };
                    rest = end;
                    continue;
                }
                '(' | '[' | '{' => self.brackets += 1,
                ')' | ']' | '}' => self.brackets = self.brackets.saturating_sub(1),
                _ => {}
            }
            if !character.is_whitespace() {
                last = Some(character);
            }
            rest = after;
        }
    }
}

/// What follows a string's end: so many quotes that no backslash stands before.
fn after_string(text: &str, quote: char, count: usize) -> Option<&str> {
    let end: String = std::iter::repeat_n(quote, count).collect();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(&end) {
            return Some(after);
        }
        let mut characters = rest.chars();
        if characters.next() == Some('\\') {
            characters.next();
        }
        rest = characters.as_str();
    }
    None
}

/// Lines that are not Python, but commands of IPython: quotes in them mean nothing.
fn is_for_the_shell(line: &str) -> bool {
    line.starts_with(['%', '!', '?'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// How many of the lines make the first statement.
    fn length(lines: &[&str]) -> Option<usize> {
        let mut statement = Statement::default();
        lines
            .iter()
            .position(|line| statement.push(line))
            .map(|index| index + 1)
    }

    #[test]
    fn statements_end_where_python_s_prompt_ends_them() {
        for lines in [
            &["x = 1"][..],
            &["x = 'it''s' # (["],
            &["x = 'unfinished"],
            &["x = '(' + \"[\" + '\\''"],
            &["f(", "1,", "", ")"],
            &["x = \"\"\"a", "", "'''(", "b\"\"\""],
            &["x = '''a\\'''", "b'''"],
            &["x = 1 + \\", "2"],
            &["x = 'a \\", "b'"],
            &["x = f\"{d['a']}\""],
            &["x[1:", "2]"],
            &["if x:", "    y", ""],
            &["if x: y", ""],
            &["for i in range(3):", "    if i:", "        i", "  "],
            &[
                "def f(a,",
                "      b):",
                "    '''doc",
                "",
                "    '''",
                "    return a",
                "",
            ],
            &["@cache", "def f(): pass", ""],
            &["async def f():", "    await g()", ""],
            &["match x:", "    case 1:", "        y", ""],
            &["class A: pass", ""],
            &["x = lambda: 0"],
            &["definitely = 1"],
            &["form = {", "}"],
            &[")"],
            &["!echo it's ("],
            &["%timeit sum('"],
            &["%%time", "x = 1", ""],
            &[""],
        ] {
            assert_eq!(length(lines), Some(lines.len()), "{lines:?}");
        }
    }

    #[test]
    fn what_is_pasted_is_one_statement() {
        assert_eq!(
            length(&["def f():\n    a = 1\n\n    return a\nf()"]),
            Some(1)
        );
        assert_eq!(length(&["x = (\n1", ")"]), Some(2));
    }

    #[test]
    fn blocks_are_indented() {
        let mut statement = Statement::default();
        for (line, next) in [
            ("def f(a):", 4),
            ("    if a:", 8),
            ("        g(", 0),
            ("    )", 8),
        ] {
            assert!(!statement.push(line));
            assert_eq!(statement.next_indent(), next, "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_line_panics(lines in proptest::collection::vec(".{0,20}", 0..6)) {
            let mut statement = Statement::default();
            for line in lines {
                statement.push(&line);
                statement.next_indent();
            }
        }
    }
}
