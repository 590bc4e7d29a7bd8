//! How the demo looks: numbered steps, indented text, one table.

use std::io::{self, Write};

use crate::{
    cli::terminal::{Screen, wrapped},
    text::printable,
    turn::{Observer, Stream, ToolCallRecord},
};

/// Prints the demo, and, as an observer, what the code prints while it runs.
pub(super) struct Stage<'a> {
    out: &'a mut (dyn Write + Send),
    screen: Screen,
    step: u32,
    in_line: bool,
    /// An observer cannot fail; the error waits here for the next step.
    failed: Option<io::Error>,
}

impl<'a> Stage<'a> {
    pub(super) fn new(out: &'a mut (dyn Write + Send), screen: Screen) -> Self {
        Self {
            out,
            screen,
            step: 0,
            in_line: false,
            failed: None,
        }
    }

    /// Begins a numbered step.
    pub(super) fn step(&mut self, title: &str) -> io::Result<()> {
        self.step += 1;
        let heading = format!("{}. {title}", self.step);
        self.line(&format!("\n{}", self.screen.bold(&heading)))
    }

    /// A line that stands out.
    pub(super) fn emphasis(&mut self, text: &str) -> io::Result<()> {
        self.line(&format!("\n   {}", self.screen.verdict(true, text)))
    }

    /// Indented text of any number of lines.
    pub(super) fn text(&mut self, text: &str) -> io::Result<()> {
        for line in text.lines() {
            self.line(format!("   {line}").trim_end())?;
        }
        Ok(())
    }

    /// One indented paragraph, broken where the line is full.
    pub(super) fn paragraph(&mut self, text: &str) -> io::Result<()> {
        self.line(&format!("   {}", wrapped(text, 3)))
    }

    /// Indented text that others wrote: code, output.
    pub(super) fn quote(&mut self, text: &str) -> io::Result<()> {
        for line in text.lines() {
            self.line(format!("   | {}", printable(line)).trim_end())?;
        }
        Ok(())
    }

    /// Tool calls by name: how often, how long, how much. Data of an upstream is only counted, never printed.
    pub(super) fn tool_calls(&mut self, calls: &[ToolCallRecord]) -> io::Result<()> {
        let mut names: Vec<&str> = calls.iter().map(|call| call.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        self.line(&format!(
            "   {:<32} {:>6} {:>9} {:>11} {:>11}",
            "tool", "calls", "slowest", "sent", "received"
        ))?;
        for name in names {
            let of_name = || calls.iter().filter(|call| call.name == name);
            let slowest = of_name().map(|call| call.duration_ms).max().unwrap_or(0);
            let sent = of_name().map(|call| call.request_bytes).sum();
            let received = of_name().map(|call| call.response_bytes).sum();
            let count = of_name().count();
            self.line(&format!(
                "   {name:<32} {count:>6} {:>9} {:>11} {:>11}",
                format!("{slowest} ms"),
                size(sent),
                size(received)
            ))?;
        }
        Ok(())
    }

    /// The first error of printing while the code ran.
    pub(super) fn check(&mut self) -> io::Result<()> {
        if self.in_line {
            self.in_line = false;
            writeln!(self.out)?;
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{text}")?;
        self.out.flush()
    }

    fn stream(&mut self, text: &str) -> io::Result<()> {
        for piece in text.split_inclusive('\n') {
            if !self.in_line {
                write!(self.out, "   > ")?;
            }
            write!(self.out, "{}", printable(piece))?;
            self.in_line = !piece.ends_with('\n');
        }
        self.out.flush()
    }
}

impl Observer for Stage<'_> {
    fn output(&mut self, _: Stream, text: &str) {
        if self.failed.is_none() {
            self.failed = self.stream(text).err();
        }
    }
}

/// `412 bytes`, `2.1 kB`, `5.1 MB`.
pub(super) fn size(bytes: u64) -> String {
    let shown = |unit: u64, name: &str| {
        let tenths = (bytes * 10 + unit / 2) / unit;
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    };
    match bytes {
        0..1_000 => format!("{bytes} bytes"),
        1_000..1_000_000 => shown(1_000, "kB"),
        _ => shown(1_000_000, "MB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        let sizes = [0, 412, 999, 1_000, 2_149, 5_061_234].map(size);
        assert_eq!(
            sizes,
            [
                "0 bytes",
                "412 bytes",
                "999 bytes",
                "1.0 kB",
                "2.1 kB",
                "5.1 MB"
            ]
        );
    }

    #[test]
    fn output_is_indented_once_a_line_and_cannot_steer_the_terminal() {
        let mut shown = Vec::new();
        let plain = Screen::detect(&[("NO_COLOR".to_owned(), "1".to_owned())].into());
        let mut stage = Stage::new(&mut shown, plain);
        for text in ["a", "b\nc", "\u{1b}[2Jd\n", "e"] {
            stage.output(Stream::Stdout, text);
        }
        stage.check().unwrap();
        assert_eq!(
            String::from_utf8(shown).unwrap(),
            "   > ab\n   > c\\u{1b}[2Jd\n   > e\n"
        );
    }
}
