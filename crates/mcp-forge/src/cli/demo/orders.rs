//! A year of a small shop's orders: the same bytes every time, with a few mistakes in them.

use std::{fmt::Write as _, fs, io, path::Path};

/// Orders of one month.
const ORDERS_A_MONTH: u32 = 7_000;

/// Product, and price in cents.
const PRODUCTS: [(&str, u32); 8] = [
    ("espresso-beans-1kg", 1_890),
    ("filter-coffee-500g", 890),
    ("green-tea-250g", 1_240),
    ("pour-over-kettle", 4_500),
    ("hand-grinder", 7_900),
    ("paper-filters-100", 495),
    ("travel-mug", 2_350),
    ("milk-frother", 3_199),
];

const COUNTRIES: [&str; 6] = ["DE", "FR", "NL", "PL", "SE", "IT"];

/// A mistake in the data, for the agent to find.
#[derive(Debug, Clone, Copy)]
enum Mistake {
    /// The total is a hundred times too high: cents taken for euros.
    Cents,
    /// The same order is charged twice.
    Twice,
    /// Something negative was sold.
    Negative,
}

/// Month (from 1), index of the order in it, and what is wrong with it.
const MISTAKES: [(u32, u32, Mistake); 5] = [
    (2, 411, Mistake::Cents),
    (5, 6_020, Mistake::Twice),
    (7, 33, Mistake::Negative),
    (9, 2_718, Mistake::Cents),
    (11, 5_999, Mistake::Twice),
];

/// Writes the twelve files of the year into `directory` and returns their size together in bytes.
///
/// # Errors
///
/// The directory cannot be written; some of the files may be there.
pub(super) fn write(directory: &Path) -> io::Result<u64> {
    fs::create_dir_all(directory)?;
    let mut random = Random(2025);
    let mut bytes = 0;
    for month in 1..=12 {
        let table = month_of_orders(month, &mut random);
        bytes += table.len() as u64;
        fs::write(directory.join(format!("2025-{month:02}.csv")), table)?;
    }
    Ok(bytes)
}

fn month_of_orders(month: u32, random: &mut Random) -> String {
    let mut table = "order_id,date,customer,country,product,quantity,unit_price,total\n".to_owned();
    for index in 0..ORDERS_A_MONTH {
        let row = order(month, index, random);
        table.push_str(&row);
        if matches!(mistake(month, index), Some(Mistake::Twice)) {
            table.push_str(&row);
        }
    }
    table
}

fn order(month: u32, index: u32, random: &mut Random) -> String {
    let (product, price) = random.pick(&PRODUCTS);
    let country = random.pick(&COUNTRIES);
    let customer = random.below(20_000);
    let quantity = 1 + random.below(4);
    let day = 1 + index * 28 / ORDERS_A_MONTH;
    let total = quantity * price;
    let (sign, total) = match mistake(month, index) {
        Some(Mistake::Cents) => ("", total * 100),
        Some(Mistake::Negative) => ("-", total),
        Some(Mistake::Twice) | None => ("", total),
    };
    let mut row = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        row,
        "{month:02}-{index:05},2025-{month:02}-{day:02},C{customer:05},{country},{product},{sign}{quantity},{},{sign}{}",
        Euros(price),
        Euros(total)
    );
    row
}

fn mistake(month: u32, index: u32) -> Option<Mistake> {
    MISTAKES
        .iter()
        .find(|(in_month, at, _)| (*in_month, *at) == (month, index))
        .map(|(_, _, mistake)| *mistake)
}

/// Cents, shown as euros.
struct Euros(u32);

impl std::fmt::Display for Euros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// Knuth's linear congruential generator: reproducible, and nothing here needs to be unpredictable.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The upper bits are the good ones.
        u32::try_from((self.0 >> 33) % u64::from(limit)).unwrap_or(0)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(u32::try_from(choices.len()).unwrap_or(1)) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_year_is_several_megabytes_and_the_same_every_time() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let bytes = write(first.path()).unwrap();
        assert_eq!(write(second.path()).unwrap(), bytes);
        assert!((4_000_000..8_000_000).contains(&bytes), "{bytes}");
        for month in 1..=12 {
            let name = format!("2025-{month:02}.csv");
            assert_eq!(
                fs::read(first.path().join(&name)).unwrap(),
                fs::read(second.path().join(&name)).unwrap()
            );
        }
    }

    #[test]
    fn every_planted_mistake_is_in_the_data() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        for (month, index, mistake) in MISTAKES {
            let table =
                fs::read_to_string(directory.path().join(format!("2025-{month:02}.csv"))).unwrap();
            let id = format!("{month:02}-{index:05},");
            let rows: Vec<_> = table.lines().filter(|line| line.starts_with(&id)).collect();
            let expected = if matches!(mistake, Mistake::Twice) {
                2
            } else {
                1
            };
            assert_eq!(rows.len(), expected, "{id}");
            assert_eq!(
                rows[0].contains(",-"),
                matches!(mistake, Mistake::Negative),
                "{}",
                rows[0]
            );
        }
    }
}
