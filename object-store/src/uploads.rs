//! [`Uploads`]: uploads that are addressed by an id. Non-goals: how they are written (`upload`).

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::common::{Fault, Result};
use crate::upload::Upload;

/// The number of results of completed uploads that are kept, for repeated calls of `complete`.
const RESULTS_KEPT: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub struct Uploads(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    open: HashMap<String, Arc<Upload>>,
    completed: VecDeque<Completed>,
}

#[derive(Debug)]
struct Completed {
    id: String,
    name: String,
    e_tag: String,
}

/// The meaning of an id.
#[derive(Debug)]
pub enum Known {
    Open(Arc<Upload>),
    /// Completed with this etag.
    Completed(String),
}

impl Uploads {
    fn table(&self) -> MutexGuard<'_, Table> {
        // No code that can panic runs with the table in two states.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id.
    pub fn add(&self, upload: Upload) -> String {
        let id = upload.id().to_owned();
        self.table().open.insert(id.clone(), Arc::new(upload));
        id
    }

    /// The upload of an object with an id, as long as it is open.
    pub fn open(&self, id: &str, name: &str) -> Result<Arc<Upload>> {
        let open = self.table().open.get(id).filter(|upload| upload.name() == name).cloned();
        open.ok_or_else(|| unknown(id, name))
    }

    pub fn find(&self, id: &str, name: &str) -> Result<Known> {
        let table = self.table();
        if let Some(upload) = table.open.get(id).filter(|upload| upload.name() == name) {
            return Ok(Known::Open(Arc::clone(upload)));
        }
        let completed = table.completed.iter().find(|completed| completed.id == id && completed.name == name);
        completed.map(|completed| Known::Completed(completed.e_tag.clone())).ok_or_else(|| unknown(id, name))
    }

    /// Forgets an upload, and keeps its result.
    pub fn complete(&self, id: String, name: String, e_tag: String) {
        let mut table = self.table();
        let upload = table.open.remove(&id);
        table.completed.push_back(Completed { id, name, e_tag });
        if table.completed.len() > RESULTS_KEPT {
            table.completed.pop_front();
        }
        drop(table);
        // Outside of the lock: the last holder of an upload frees its space.
        drop(upload);
    }

    pub fn abort(&self, id: &str, name: &str) -> Result<()> {
        self.open(id, name)?.abort()?;
        let aborted = self.table().open.remove(id);
        drop(aborted);
        Ok(())
    }
}

fn unknown(id: &str, name: &str) -> Fault {
    Fault::other(format!(
        "there is no upload {id:?} of {name:?} in this store: it was completed or aborted, or another process began \
         it; begin another one"
    ))
}
