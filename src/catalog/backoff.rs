//! Short pauses between attempts at the API server.

use std::time::Duration;

/// 0.2 s, doubled up to 1.6 s, each ± 25 %: kube's own pauses grow to 30 s, after which a replica would serve from a
/// stale catalog for as long as the API server has been back.
#[derive(Clone, Debug, Default)]
pub struct Quick {
    attempts: u32,
}

impl Iterator for Quick {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let milliseconds = 200_u64 << self.attempts.min(3);
        self.attempts = self.attempts.saturating_add(1);
        let quarter = milliseconds / 4;
        Some(Duration::from_millis(rand::random_range(milliseconds - quarter..=milliseconds + quarter)))
    }
}

impl kube::runtime::utils::Backoff for Quick {
    fn reset(&mut self) {
        self.attempts = 0;
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::utils::Backoff;

    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_start_anew_after_success() {
        let mut quick = Quick::default();
        for middle in [200, 400, 800, 1600, 1600, 1600] {
            let pause = u64::try_from(quick.next().unwrap().as_millis()).unwrap();
            assert!((middle * 3 / 4..=middle * 5 / 4).contains(&pause), "{pause} ms instead of {middle} ms");
        }
        quick.reset();
        assert!(quick.next().unwrap() <= Duration::from_millis(250));
    }
}
