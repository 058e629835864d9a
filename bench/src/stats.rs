//! Medians and high percentiles of samples.

use std::time::Duration;

/// Durations of one operation, in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sample below which `share` of all samples are.
    ///
    /// # Panics
    /// If there are no samples.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().checked_sub(1).expect("a measurement takes at least one sample");
        sorted[(share * last as f64).round() as usize]
    }

    pub(crate) fn p50(&self) -> Duration {
        self.percentile(0.5)
    }

    pub(crate) fn p95(&self) -> Duration {
        self.percentile(0.95)
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Milliseconds, with as many digits as are significant.
pub(crate) fn millis(duration: Duration) -> String {
    let value = duration.as_secs_f64() * 1e3;
    if value < 10.0 { format!("{value:.2} ms") } else { format!("{value:.1} ms") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(millis: &[u64]) -> Samples {
        Samples(millis.iter().map(|&ms| Duration::from_millis(ms)).collect())
    }

    #[test]
    fn the_median_does_not_depend_on_order() {
        assert_eq!(samples(&[9, 1, 5]).p50(), Duration::from_millis(5));
    }

    #[test]
    fn a_high_percentile_ignores_one_outlier_of_many() {
        let mut many = vec![1; 99];
        many.push(1000);
        assert_eq!(samples(&many).p95(), Duration::from_millis(1));
    }
}
