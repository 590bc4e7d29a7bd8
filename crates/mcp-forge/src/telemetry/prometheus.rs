//! Numbers as Prometheus reads them: histograms, and a page of its text format.
//!
//! Written by hand: the format is a page long, and the libraries for it either can fail where nothing
//! can, or write only the newer form that not every reader takes.

use std::fmt::{Display, Write as _};

/// Upper ends of the buckets of durations, in seconds.
pub const SECONDS: &[f64] = &[
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

const MEBIBYTE: f64 = 1_048_576.0;

/// Upper ends of the buckets of sizes of memory, in bytes: 8 MiB to 8 GiB.
pub const BYTES: &[f64] = &[
    8.0 * MEBIBYTE,
    16.0 * MEBIBYTE,
    32.0 * MEBIBYTE,
    64.0 * MEBIBYTE,
    128.0 * MEBIBYTE,
    256.0 * MEBIBYTE,
    512.0 * MEBIBYTE,
    1024.0 * MEBIBYTE,
    2048.0 * MEBIBYTE,
    4096.0 * MEBIBYTE,
    8192.0 * MEBIBYTE,
];

/// How many values were how large.
#[derive(Debug, Clone)]
pub struct Histogram {
    ends: &'static [f64],
    /// Values up to each end; those of smaller ones are not among them.
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// One with buckets of these upper ends, ascending.
    pub fn new(ends: &'static [f64]) -> Self {
        Self {
            ends,
            buckets: vec![0; ends.len()],
            count: 0,
            sum: 0.0,
        }
    }

    /// Counts a value.
    pub fn observe(&mut self, value: f64) {
        let place = self.ends.iter().position(|end| value <= *end);
        if let Some(bucket) = place.and_then(|place| self.buckets.get_mut(place)) {
            *bucket += 1;
        }
        self.count += 1;
        self.sum += value;
    }
}

/// A page of metrics. Writing to a String cannot fail.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// What has been written.
    pub fn into_text(self) -> String {
        self.0
    }

    /// Begins a family: `counter`, `gauge` or `histogram`. Its lines come next.
    pub fn head(&mut self, name: &str, kind: &str, about: &str) {
        let _ = write!(
            self.0,
            "# HELP mcp_forge_{name} {about}\n# TYPE mcp_forge_{name} {kind}\n"
        );
    }

    /// One value. Those of labels may be any text; that they are few is up to whoever writes them.
    pub fn line(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.0, "mcp_forge_{name}");
        for (index, (label, word)) in labels.iter().enumerate() {
            let _ = write!(self.0, "{}{label}=\"", if index == 0 { '{' } else { ',' });
            for letter in word.chars() {
                match letter {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    /// A family of one value that goes up and down.
    pub fn gauge(&mut self, name: &str, about: &str, value: u64) {
        self.head(name, "gauge", about);
        self.line(name, &[], value);
    }

    /// A family of histograms, one for each value of a label.
    pub fn histogram<'a>(
        &mut self,
        (name, about): (&str, &str),
        label: &str,
        kinds: impl IntoIterator<Item = (&'a str, &'a Histogram)>,
    ) {
        self.head(name, "histogram", about);
        let [bucket, sum, count] = ["bucket", "sum", "count"].map(|part| format!("{name}_{part}"));
        for (kind, histogram) in kinds {
            let kind = (label, kind);
            let mut so_far = 0;
            for (end, more) in histogram.ends.iter().zip(&histogram.buckets) {
                so_far += more;
                self.line(&bucket, &[kind, ("le", &end.to_string())], so_far);
            }
            self.line(&bucket, &[kind, ("le", "+Inf")], histogram.count);
            self.line(&sum, &[kind], histogram.sum);
            self.line(&count, &[kind], histogram.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_all_that_is_not_larger() {
        let mut histogram = Histogram::new(SECONDS);
        for value in [0.001, 0.005, 0.2, 1000.0] {
            histogram.observe(value);
        }
        let mut page = Page::default();
        page.histogram(("x_seconds", "About."), "kind", [("fresh", &histogram)]);
        let text = page.into_text();
        for line in [
            "# HELP mcp_forge_x_seconds About.",
            "# TYPE mcp_forge_x_seconds histogram",
            "mcp_forge_x_seconds_bucket{kind=\"fresh\",le=\"0.005\"} 2",
            "mcp_forge_x_seconds_bucket{kind=\"fresh\",le=\"0.1\"} 2",
            "mcp_forge_x_seconds_bucket{kind=\"fresh\",le=\"0.25\"} 3",
            "mcp_forge_x_seconds_bucket{kind=\"fresh\",le=\"300\"} 3",
            "mcp_forge_x_seconds_bucket{kind=\"fresh\",le=\"+Inf\"} 4",
            "mcp_forge_x_seconds_sum{kind=\"fresh\"} 1000.206",
            "mcp_forge_x_seconds_count{kind=\"fresh\"} 4",
        ] {
            assert!(text.lines().any(|known| known == line), "{line}: {text}");
        }
    }

    #[test]
    fn a_name_of_the_operators_cannot_leave_its_label() {
        let mut page = Page::default();
        page.line("x", &[("upstream", "a\"} 1\nb\\"), ("status", "ok")], 2);
        assert_eq!(
            page.into_text(),
            "mcp_forge_x{upstream=\"a\\\"} 1\\nb\\\\\",status=\"ok\"} 2\n"
        );
    }
}
