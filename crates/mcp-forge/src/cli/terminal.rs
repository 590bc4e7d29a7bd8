//! What is printed for people: colours only where they are seen, and no foreign control characters.

use std::{
    collections::BTreeMap,
    fmt,
    io::{self, IsTerminal, Write as _},
};

use clap::builder::styling::{AnsiColor, Style};
use serde::Serialize;

use crate::{engine::LayerState, text::printable};

/// Width of wrapped text, in characters.
const WIDTH: usize = 100;

/// How to print on standard output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Screen {
    colours: bool,
}

impl Screen {
    /// Colours on a terminal, unless `NO_COLOR` is set (<https://no-color.org>).
    pub(super) fn detect(environment: &BTreeMap<String, String>) -> Self {
        let is_unwanted = environment
            .get("NO_COLOR")
            .is_some_and(|value| !value.is_empty());
        Self {
            colours: !is_unwanted && io::stdout().is_terminal(),
        }
    }

    /// A headline.
    pub(super) fn bold(self, text: &str) -> Styled<'_> {
        self.styled(Style::new().bold(), text)
    }

    /// Good, so-so, bad: by the state's colour and its word.
    pub(super) fn state(self, state: LayerState) -> Styled<'static> {
        let (colour, text) = match state {
            LayerState::Enforced => (AnsiColor::Green, "enforced"),
            LayerState::BestEffort => (AnsiColor::Yellow, "best effort"),
            LayerState::Missing => (AnsiColor::Red, "missing"),
        };
        self.styled(colour.on_default(), text)
    }

    /// Green for good news, red for bad.
    pub(super) fn verdict(self, is_good: bool, text: &str) -> Styled<'_> {
        let colour = if is_good {
            AnsiColor::Green
        } else {
            AnsiColor::Red
        };
        self.styled(colour.on_default().bold(), text)
    }

    fn styled(self, style: Style, text: &str) -> Styled<'_> {
        Styled {
            style: if self.colours { style } else { Style::new() },
            text,
        }
    }
}

/// Text with a style around it; padding counts the text only.
#[derive(Debug)]
pub(super) struct Styled<'a> {
    style: Style,
    text: &'a str,
}

impl fmt::Display for Styled<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(0);
        write!(f, "{}{:width$}{:#}", self.style, self.text, self.style)
    }
}

/// Prints data for programs on standard output.
pub(super) fn print_json(value: &impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)
}

/// The first line of a foreign text, cut to fit.
pub(super) fn one_line(text: &str) -> String {
    let first = text.trim_start().lines().next().unwrap_or_default();
    let mut short: String = first.chars().take(WIDTH).collect();
    if short.len() < first.len() {
        short.push('…');
    }
    printable(&short).replace('\t', " ")
}

/// Text broken at spaces, each line after the first indented.
pub(super) fn wrapped(text: &str, indent: usize) -> String {
    let mut out = String::new();
    let mut column = indent;
    for (number, line) in printable(text).lines().enumerate() {
        if number > 0 {
            new_line(&mut out, &mut column, indent);
        }
        for word in line.split_whitespace() {
            let length = word.chars().count();
            if column > indent && column + 1 + length > WIDTH {
                new_line(&mut out, &mut column, indent);
            }
            if column > indent {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
    }
    out
}

fn new_line(out: &mut String, column: &mut usize, indent: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', indent));
    *column = indent;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_the_first_that_says_something() {
        assert_eq!(one_line("\n  first\tline\nsecond"), "first line");
        assert_eq!(one_line(&"x".repeat(500)).chars().count(), WIDTH + 1);
    }

    #[test]
    fn wrapped_text_stays_within_its_width() {
        let text = wrapped(&"word ".repeat(100), 30);
        assert!(
            text.lines()
                .enumerate()
                .all(
                    |(number, line)| line.chars().count() + if number == 0 { 30 } else { 0 }
                        <= WIDTH
                )
        );
        assert!(
            text.lines()
                .skip(1)
                .all(|line| line.starts_with(&" ".repeat(30)))
        );
        assert_eq!(wrapped("one\ntwo", 2), "one\n  two");
    }

    #[test]
    fn no_colours_without_a_terminal() {
        // Standard output of a test is captured, so it is none.
        let screen = Screen::detect(&BTreeMap::new());
        assert_eq!(screen.state(LayerState::Missing).to_string(), "missing");
        assert_eq!(
            format!("{:8}|", Screen { colours: true }.bold("x")),
            "\u{1b}[1mx       \u{1b}[0m|"
        );
    }
}
