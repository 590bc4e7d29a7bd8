//! Draws a run's latencies as SVG: a bar to the median, a line on to the 99th percentile, on a
//! logarithmic scale.

use std::fmt::Write as _;

use super::{
    contenders::EMPTY,
    report::duration,
    results::{Cell, Results},
};

const WIDTH: f64 = 900.0;
/// Where the scale begins: names stand to the left.
const LEFT: f64 = 370.0;
/// Where it ends: values stand to the right.
const RIGHT: f64 = 800.0;
const ROW: f64 = 22.0;
const HEAD: f64 = 34.0;

/// Workloads that are drawn.
const DRAWN: [&str; 3] = ["one", "lines", "pandas"];

/// The picture. It has its own white ground, for pages that are dark.
pub(crate) fn svg(results: &Results) -> String {
    let mut picture = String::new();
    // Writing to a String cannot fail.
    let _ = draw(&mut picture, results);
    picture
}

/// The powers of ten that the scale covers, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    first: i32,
    last: i32,
}

impl Scale {
    fn of(cells: &[&Cell]) -> Self {
        let smallest = cells
            .iter()
            .map(|cell| cell.p50_us)
            .fold(f64::MAX, f64::min);
        let largest = cells.iter().map(|cell| cell.p99_us).fold(1.0, f64::max);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "powers of ten of durations are small"
        )]
        let (first, last) = (
            smallest.min(largest).max(0.1).log10().floor() as i32,
            largest.log10().ceil() as i32,
        );
        Self {
            first,
            last: last.max(first + 1),
        }
    }

    fn x(self, microseconds: f64) -> f64 {
        let share = (microseconds.max(1e-3).log10() - f64::from(self.first))
            / f64::from(self.last - self.first);
        LEFT + share.clamp(0.0, 1.0) * (RIGHT - LEFT)
    }
}

fn draw(picture: &mut String, results: &Results) -> std::fmt::Result {
    let groups: Vec<(&str, Vec<&Cell>)> = results
        .workloads
        .iter()
        .filter(|workload| DRAWN.contains(&workload.name))
        .map(|workload| (workload.about, sorted_cells(results, workload.name)))
        .filter(|(_, cells)| !cells.is_empty())
        .collect();
    let all: Vec<&Cell> = groups
        .iter()
        .flat_map(|(_, cells)| cells)
        .copied()
        .collect();
    let scale = Scale::of(&all);
    let height: f64 = groups
        .iter()
        .map(|(_, cells)| HEAD + ROW * cells.len() as f64)
        .sum::<f64>()
        + 50.0;
    writeln!(
        picture,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"13\">"
    )?;
    writeln!(picture, "<title>Latency, p50 and p99, logarithmic</title>")?;
    writeln!(
        picture,
        "<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>"
    )?;
    draw_grid(picture, scale, height)?;
    let mut y = 0.0;
    for (about, cells) in groups {
        y += HEAD;
        writeln!(
            picture,
            "<text x=\"12\" y=\"{:.0}\" font-weight=\"bold\">{}</text>",
            y - 10.0,
            plain(about)
        )?;
        for cell in cells {
            draw_row(picture, results, scale, cell, y)?;
            y += ROW;
        }
    }
    writeln!(picture, "</svg>")
}

fn sorted_cells<'a>(results: &'a Results, workload: &str) -> Vec<&'a Cell> {
    let mut cells: Vec<&Cell> = results
        .cells
        .iter()
        .filter(|cell| cell.workload == workload)
        .collect();
    cells.sort_by(|one, other| one.p50_us.total_cmp(&other.p50_us));
    cells
}

fn draw_grid(picture: &mut String, scale: Scale, height: f64) -> std::fmt::Result {
    for power in scale.first..=scale.last {
        let microseconds = 10_f64.powi(power);
        let x = scale.x(microseconds);
        writeln!(
            picture,
            "<line x1=\"{x:.1}\" y1=\"{HEAD}\" x2=\"{x:.1}\" y2=\"{:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#666\">{}</text>",
            height - 40.0,
            height - 22.0,
            power_of_ten(power)
        )?;
    }
    Ok(())
}

fn draw_row(
    picture: &mut String,
    results: &Results,
    scale: Scale,
    cell: &Cell,
    y: f64,
) -> std::fmt::Result {
    let about = results
        .contenders
        .iter()
        .find(|contender| contender.name == cell.contender)
        .map_or(cell.contender, |contender| contender.about);
    let colour = if cell.contender.starts_with("forge") {
        "#d9480f"
    } else if about.starts_with("floor") || EMPTY.iter().any(|(name, _)| cell.contender == *name) {
        "#adb5bd"
    } else {
        "#4c6ef5"
    };
    let (p50, p99) = (scale.x(cell.p50_us), scale.x(cell.p99_us));
    let middle = y + ROW / 2.0 - 2.0;
    writeln!(
        picture,
        "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text>\
         <rect x=\"{LEFT}\" y=\"{:.0}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"{colour}\"/>\
         <line x1=\"{p50:.1}\" y1=\"{middle:.0}\" x2=\"{p99:.1}\" y2=\"{middle:.0}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
         <text x=\"{:.1}\" y=\"{:.0}\">{}</text>",
        LEFT - 8.0,
        y + 13.0,
        plain(about),
        y + 2.0,
        (p50 - LEFT).max(1.0),
        ROW - 8.0,
        p99.max(p50) + 6.0,
        y + 13.0,
        duration(cell.p50_us)
    )
}

/// Without Markdown, and safe in XML.
fn plain(text: &str) -> String {
    text.replace(['`', '*'], "")
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn power_of_ten(power: i32) -> String {
    let (value, unit) = match power {
        ..3 => (power, "µs"),
        3..6 => (power - 3, "ms"),
        _ => (power - 6, "s"),
    };
    format!("{} {unit}", 10_f64.powi(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::example;

    #[test]
    fn a_run_as_svg() {
        insta::assert_snapshot!(svg(&example()));
    }

    #[test]
    fn the_scale_covers_what_there_is() {
        let example = example();
        let cells: Vec<&Cell> = example.cells.iter().collect();
        assert_eq!(Scale::of(&cells), Scale { first: 2, last: 5 });
        assert_eq!(Scale::of(&[]), Scale { first: 0, last: 1 });
    }

    #[test]
    fn names_cannot_break_the_picture() {
        assert_eq!(plain("**a** <b> & `c`"), "a &lt;b&gt; &amp; c");
    }
}
