//! [`Flights`]: the granules in flight in this process: being fetched, or waiting to be written. Rule F1 of
//! `docs/origin.md`. Non-goals: other processes (`index::claims`).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::Future;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_channel::oneshot;
use futures_util::future::{FutureExt, Shared};

use crate::identity::GranuleId;
use crate::notices::locked;

/// The bytes of a granule, or `None` if the GET of its leader has failed. An error: the leader was dropped.
type Outcome = Shared<oneshot::Receiver<Option<Bytes>>>;

#[derive(Debug)]
enum Flight {
    /// A call fetches it.
    Fetched(Outcome),
    /// It waits to be written.
    Filling(Bytes),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Flights {
    flights: Mutex<HashMap<GranuleId, Flight>>,
}

/// What a call has to do about a missing granule.
pub enum Begun {
    /// Fetch the granule.
    Lead(Lead),
    /// Wait for the call that fetches it.
    Wait(Wait),
    /// Use the bytes, which are in memory.
    Have(Bytes),
}

/// The duty to fetch a granule. If it is dropped without a result, it wakes the waiting calls, and one of them fetches.
#[derive(Debug)]
pub struct Lead {
    id: GranuleId,
    flights: Arc<Flights>,
    sender: Option<oneshot::Sender<Option<Bytes>>>,
}

/// Waits for a granule that another call fetches.
pub struct Wait(Outcome);

/// The end of another call's fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    Came(Bytes),
    /// Its GET has failed. The reason may be its store's alone, or another part of its range.
    Failed,
    /// It was dropped.
    GaveUp,
}

impl Wait {
    pub fn ended(self) -> impl Future<Output = Ended> {
        self.0.map(|outcome| match outcome {
            Ok(Some(bytes)) => Ended::Came(bytes),
            Ok(None) => Ended::Failed,
            Err(_dropped) => Ended::GaveUp,
        })
    }
}

impl Flights {
    pub fn begin(self: &Arc<Self>, id: GranuleId) -> Begun {
        match locked(&self.flights).entry(id) {
            Entry::Occupied(entry) => match entry.get() {
                Flight::Fetched(outcome) => Begun::Wait(Wait(outcome.clone())),
                Flight::Filling(bytes) => Begun::Have(bytes.clone()),
            },
            Entry::Vacant(entry) => {
                let (sender, receiver) = oneshot::channel();
                entry.insert(Flight::Fetched(receiver.shared()));
                Begun::Lead(Lead { id, flights: Arc::clone(self), sender: Some(sender) })
            }
        }
    }

    /// Keeps the bytes of a granule in memory until it is written. `false` if they are in memory already.
    pub fn hold(&self, id: GranuleId, bytes: &Bytes) -> bool {
        !matches!(locked(&self.flights).insert(id, Flight::Filling(bytes.clone())), Some(Flight::Filling(_)))
    }

    /// The granule is written, or will not be.
    pub fn release(&self, id: GranuleId) {
        let mut flights = locked(&self.flights);
        if let Entry::Occupied(entry) = flights.entry(id)
            && matches!(entry.get(), Flight::Filling(_))
        {
            entry.remove();
        }
    }

    /// The lock, for a test of calls that must not need it.
    #[cfg(test)]
    pub fn locked(&self) -> impl Sized {
        locked(&self.flights)
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        locked(&self.flights).len()
    }
}

impl Lead {
    pub fn id(&self) -> GranuleId {
        self.id
    }

    /// Wakes the waiting calls. `None`: the GET has failed.
    pub fn end(mut self, outcome: Option<Bytes>) {
        self.leave();
        if let Some(sender) = self.sender.take() {
            let _none_waits = sender.send(outcome);
        }
    }

    /// From now on a call that misses the granule fetches it, unless the granule waits to be written.
    fn leave(&self) {
        let mut flights = locked(&self.flights.flights);
        if let Entry::Occupied(entry) = flights.entry(self.id)
            && matches!(entry.get(), Flight::Fetched(_))
        {
            entry.remove();
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        if self.sender.is_some() {
            self.leave();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{ObjectId, Version};
    use futures_executor::block_on;

    fn id(n: u64) -> GranuleId {
        ObjectId::new("o", "k", &Version::Modified { ns: 0 }, 1).granule(n)
    }

    #[test]
    fn one_call_leads_and_the_others_hear_of_its_end() {
        let flights = Arc::new(Flights::default());
        let Begun::Lead(lead) = flights.begin(id(1)) else { panic!("the first call leads") };
        let Begun::Wait(wait) = flights.begin(id(1)) else { panic!("the second call waits") };
        assert!(matches!(flights.begin(id(2)), Begun::Lead(_)), "another granule");
        lead.end(Some(Bytes::from_static(b"x")));
        assert_eq!(block_on(wait.ended()), Ended::Came(Bytes::from_static(b"x")));
        let Begun::Lead(lead) = flights.begin(id(1)) else { panic!("it is over") };
        let Begun::Wait(wait) = flights.begin(id(1)) else { panic!("the second call waits") };
        lead.end(None);
        assert_eq!(block_on(wait.ended()), Ended::Failed);
        assert_eq!(flights.len(), 0);
    }

    #[test]
    fn a_leader_that_is_dropped_leaves_its_duty_to_another() {
        let flights = Arc::new(Flights::default());
        let Begun::Lead(lead) = flights.begin(id(1)) else { panic!("the first call leads") };
        let Begun::Wait(wait) = flights.begin(id(1)) else { panic!("the second call waits") };
        drop(lead);
        assert_eq!(block_on(wait.ended()), Ended::GaveUp);
        assert!(matches!(flights.begin(id(1)), Begun::Lead(_)));
    }

    #[test]
    fn a_granule_that_waits_to_be_written_is_in_reach() {
        let flights = Arc::new(Flights::default());
        let Begun::Lead(lead) = flights.begin(id(1)) else { panic!("the first call leads") };
        let bytes = Bytes::from_static(b"x");
        assert!(flights.hold(id(1), &bytes));
        lead.end(Some(bytes.clone()));
        assert!(matches!(flights.begin(id(1)), Begun::Have(found) if found == bytes));
        assert!(!flights.hold(id(1), &bytes), "it is there already");
        flights.release(id(1));
        assert_eq!(flights.len(), 0);
    }
}
