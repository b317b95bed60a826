//! [`Notices`]: messages to the user of an array that are no errors of a call. Non-goals: printing them.

use std::sync::{Mutex, PoisonError};

use super::events;

/// The most notices that are kept. Later ones are dropped, so that an endless cause takes no more memory.
const MOST: usize = 100;

/// The last notice if others were dropped. It has no number, so that a program which shows new notices shows it once.
const MORE: &str = "later notices were not kept";

/// The notices of an array, each once.
#[derive(Debug, Default)]
pub struct Notices(Mutex<NoticesState>);

#[derive(Debug, Default)]
struct NoticesState {
    kept: Vec<String>,
    /// Whether notices were dropped.
    has_more: bool,
}

impl Notices {
    /// Adds a notice, unless it is there already.
    pub fn push(&self, notice: String) {
        if self.keep(&notice) {
            // Without the lock: a subscriber may read the notices.
            events::notice(&notice);
        }
    }

    /// Keeps a notice, if there is room. Whether it is new.
    fn keep(&self, notice: &str) -> bool {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.kept.iter().any(|kept| kept == notice) {
            return false;
        }
        if state.kept.len() < MOST {
            state.kept.push(notice.to_owned());
        } else {
            state.has_more = true;
        }
        true
    }

    /// All notices, oldest first.
    pub fn all(&self) -> Vec<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let more = state.has_more.then(|| MORE.to_owned());
        state.kept.iter().cloned().chain(more).collect()
    }
}

#[cfg(all(test, not(iomill_models)))]
mod tests {
    use super::*;

    #[test]
    fn each_is_kept_once_and_not_too_many() {
        let notices = Notices::default();
        notices.push("a".into());
        (0..MOST * 2 - 2).for_each(|number| notices.push(format!("{}", number / 2)));
        let all = notices.all();
        assert_eq!((all.len(), &all[..3]), (MOST, &["a".to_owned(), "0".to_owned(), "1".to_owned()][..]));
        notices.push("b".into());
        notices.push("a".into());
        assert_eq!(notices.all().last().map(String::as_str), Some(MORE));
        let told = notices.all();
        notices.push("c".into());
        assert_eq!(notices.all(), told);
    }

    /// Seen to wait for itself when a notice was told under the lock.
    #[cfg(feature = "tracing")]
    #[test]
    fn a_subscriber_may_read_them() {
        use std::sync::Arc;

        use tracing::span::{Attributes, Id, Record};

        /// The notices, and what an event has read of them.
        struct Reads(Arc<Notices>, Arc<Mutex<Vec<String>>>);
        impl tracing::Subscriber for Reads {
            fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
                true
            }
            fn new_span(&self, _: &Attributes<'_>) -> Id {
                Id::from_u64(1)
            }
            fn record(&self, _: &Id, _: &Record<'_>) {}
            fn record_follows_from(&self, _: &Id, _: &Id) {}
            fn event(&self, _: &tracing::Event<'_>) {
                *self.1.lock().unwrap() = self.0.all();
            }
            fn enter(&self, _: &Id) {}
            fn exit(&self, _: &Id) {}
        }

        let (notices, read) = (Arc::<Notices>::default(), Arc::default());
        let subscriber = Reads(Arc::clone(&notices), Arc::clone(&read));
        tracing::subscriber::with_default(subscriber, || notices.push("a".into()));
        assert_eq!(*read.lock().unwrap(), ["a"]);
    }
}
