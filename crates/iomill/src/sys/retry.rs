//! [`Retry`]: the time of the next try for a resource that the system refused. A descriptor or a thread that is missing
//! now may be available at the next call, so no refusal is final. If it stays missing, asking costs little. Non-goals:
//! calls that report the refusal as their error.

/// The largest distance between two calls that ask, after any number of refusals.
const MOST: u32 = 64;

/// The number of successive refusals up to which the next call asks again. Each further refusal doubles the number of
/// calls that do not ask.
const AT_ONCE: u32 = 4;

/// See the module.
#[derive(Debug, Default)]
pub struct Retry {
    /// The number of successive refusals.
    refusals: u32,
    /// The number of calls that do not ask, before the next one that does.
    rest: u32,
}

impl Retry {
    /// Whether this call asks. If so, it notes the answer: `refused` or `granted`.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        is_due
    }

    /// Notes a refusal.
    pub fn refused(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
        self.rest = (1 << self.refusals.saturating_sub(AT_ONCE).min(MOST.ilog2())) - 1;
    }

    /// Notes that the system has granted the resource.
    pub fn granted(&mut self) {
        *self = Retry::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_asks_again_ever_more_rarely() {
        let mut retry = Retry::default();
        let mut asked = Vec::new();
        for call in 0..400 {
            if retry.is_due() {
                retry.refused();
                asked.push(call);
            }
        }
        assert_eq!(asked, [0, 1, 2, 3, 4, 6, 10, 18, 34, 66, 130, 194, 258, 322, 386]);
        retry.granted();
        assert!(retry.is_due() && retry.is_due());
    }
}
