//! [`Retry`]: when to ask again for what the system has refused. What was missing, such as a descriptor or a thread, may be there at the next
//! call, so no refusal is final. Where it stays missing, asking costs little. Non-goals: calls that report the refusal as their error.

/// What is refused is asked for again in every so many calls at least.
const MOST: u32 = 64;

/// After so many refusals in a row the next call asks again. After each further one twice as many calls do without.
const AT_ONCE: u32 = 4;

/// See the module.
#[derive(Debug, Default)]
pub struct Retry {
    /// Refusals in a row.
    refusals: u32,
    /// So many calls do without before one asks again.
    rest: u32,
}

impl Retry {
    /// Whether this call asks. Then it tells the answer.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        is_due
    }

    /// The system has refused.
    pub fn refused(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
        self.rest = (1 << self.refusals.saturating_sub(AT_ONCE).min(MOST.ilog2())) - 1;
    }

    /// It has not.
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
