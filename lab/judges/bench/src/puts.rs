//! Puts of small objects, each durable when it returns.

use anyhow::{Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use judge_turns::{Load, Work};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::runtime::Runtime;

use crate::data::digest;
use judge_bench::stores::Opened;

/// Length of an object.
pub const LEN_BYTES: usize = 5_000;

/// Puts in flight.
pub const IN_FLIGHT: usize = 64;

/// One object in this number is read back.
const CHECKED_STEP: u64 = 50;

const PREFIX: &str = "puts";

/// One contender.
pub struct Puts {
    opened: Opened,
    count: u64,
    runtime: Runtime,
}

impl Puts {
    pub fn new(opened: Opened, count: u64) -> Result<Puts> {
        Ok(Puts { opened, count, runtime: Runtime::new()? })
    }

    /// Deletes the objects of an earlier slice.
    async fn clear(&self) -> Result<()> {
        let paths = self.opened.store.list(Some(&Path::from(PREFIX))).map_ok(|meta| meta.location).boxed();
        self.opened.store.delete_stream(paths).try_for_each(|_| async { Ok(()) }).await?;
        Ok(())
    }

    async fn put_all(&self, seed: u64) -> Result<()> {
        let puts = (0..self.count)
            .map(|number| async move { self.opened.store.put(&path(number), bytes(seed, number).into()).await });
        stream::iter(puts).buffer_unordered(IN_FLIGHT).try_for_each(|_| async { Ok(()) }).await?;
        Ok(())
    }

    async fn check_all(&self, seed: u64) -> Result<u64> {
        let mut found: Vec<(Path, u64)> = self
            .opened
            .store
            .list(Some(&Path::from(PREFIX)))
            .map_ok(|meta| (meta.location, meta.size))
            .try_collect()
            .await?;
        found.sort();
        let whole = found.iter().filter(|(_, size)| *size == LEN_BYTES as u64).count() as u64;
        ensure!(whole == self.count, "{whole} objects of {LEN_BYTES} B are listed, and {} were put", self.count);
        let mut sum =
            found.iter().fold(0, |sum, (path, size)| digest(path.as_ref().as_bytes()) ^ size.rotate_left(1) ^ sum);
        for number in (0..self.count).step_by(CHECKED_STEP as usize) {
            let got = self.opened.store.get(&path(number)).await?.bytes().await?;
            ensure!(got == bytes(seed, number), "object {number} came back with other bytes");
            sum = sum.rotate_left(1) ^ digest(&got);
        }
        Ok(sum)
    }
}

/// A hundred objects per directory, as in real programs.
fn path(number: u64) -> Path {
    Path::from(format!("{PREFIX}/{:03}/{number:06}", number / 100))
}

fn bytes(seed: u64, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; LEN_BYTES];
    fastrand::Rng::with_seed(seed << 32 | number).fill(&mut bytes);
    bytes
}

impl Load for Puts {
    type Done = ();

    fn fill(&mut self) -> Result<()> {
        Ok(())
    }

    fn settle(&mut self) -> Result<()> {
        self.runtime.block_on(self.clear())
    }

    fn slice(&mut self, seed: u64) -> Result<()> {
        self.runtime.block_on(self.put_all(seed))
    }

    fn check(&mut self, seed: u64, (): ()) -> Result<Work> {
        let digest = self.runtime.block_on(self.check_all(seed))?;
        Ok(Work { ops: self.count, bytes: self.count * LEN_BYTES as u64, digest })
    }

    fn close(self) -> Result<()> {
        self.opened.close()
    }
}
