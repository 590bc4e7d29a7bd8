//! Medians, tails, and ratios of samples that were taken in the same rounds.

use std::collections::BTreeMap;

/// Rounds in common that make a ratio: one or two say nothing.
const MIN_PAIRS: usize = 3;

/// Samples of one contender at one workload: at most one a round.
#[derive(Debug, Clone, Default)]
pub(crate) struct Series(BTreeMap<u32, f64>);

impl Series {
    pub(crate) fn add(&mut self, round: u32, value: f64) {
        self.0.insert(round, value);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The value that `share` of the samples do not exceed.
    pub(crate) fn percentile(&self, share: f64) -> Option<f64> {
        percentile(self.0.values().copied().collect(), share)
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.percentile(0.5)
    }

    /// The median of `combine(self, other)` over the rounds that both have a sample of: what drifts
    /// from round to round drifts in both.
    pub(crate) fn paired(&self, other: &Self, combine: impl Fn(f64, f64) -> f64) -> Option<f64> {
        let both = self
            .0
            .iter()
            .filter_map(|(round, mine)| Some(combine(*mine, *other.0.get(round)?)));
        let both: Vec<f64> = both.collect();
        (both.len() >= MIN_PAIRS).then(|| percentile(both, 0.5))?
    }
}

/// By nearest rank: always one of the values, never one in between.
pub(crate) fn percentile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among some thousands of samples"
    )]
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples: &[(u32, f64)]) -> Series {
        let mut series = Series::default();
        for (round, value) in samples {
            series.add(*round, *value);
        }
        series
    }

    #[test]
    fn percentiles_are_samples() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(hundred.clone(), 0.5), Some(50.0));
        assert_eq!(percentile(hundred.clone(), 0.99), Some(99.0));
        assert_eq!(percentile(hundred, 1.0), Some(100.0));
        assert_eq!(percentile(vec![3.0], 0.99), Some(3.0));
        assert_eq!(percentile(vec![], 0.5), None);
    }

    #[test]
    fn with_few_samples_the_tail_is_the_largest() {
        assert_eq!(percentile(vec![1.0, 9.0, 2.0], 0.99), Some(9.0));
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // The machine is ten times slower in the later rounds; the contenders' ratio is 2 throughout.
        let fast = series(&[(0, 1.0), (1, 1.0), (2, 10.0), (3, 10.0), (4, 10.0)]);
        let slow = series(&[(0, 2.0), (1, 2.0), (2, 20.0)]);
        assert_eq!(slow.paired(&fast, |a, b| a / b), Some(2.0));
        // Medians of all samples would say otherwise.
        assert_eq!(slow.median(), Some(2.0));
        assert_eq!(fast.median(), Some(10.0));
    }

    #[test]
    fn too_few_common_rounds_mean_no_ratio() {
        let one = series(&[(0, 1.0), (1, 1.0), (2, 1.0)]);
        let other = series(&[(1, 1.0), (2, 1.0), (3, 1.0)]);
        assert_eq!(one.paired(&other, |a, b| a / b), None);
        assert_eq!(one.paired(&one, |a, b| a / b), Some(1.0));
    }
}
