//! Small files by iomill's futures, with many in flight from each thread.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use iomill::{Array, Error, FileOptions, PutOptions, Result};

use super::FileOp;
use crate::asynchronous::executor::block_on_all;
use crate::threads::Count;

/// Futures in flight from each thread.
pub const IN_FLIGHT: usize = 64;

/// The reason why futures take no part in an operation.
pub(super) fn lacks(op: FileOp) -> Option<&'static str> {
    let has_future = matches!(op, FileOp::Create | FileOp::Put | FileOp::Delete);
    (!has_future).then_some("it waits for nothing, so it has no future")
}

/// Does an operation again and again, until `next` has no more names. Each future has its own name.
pub(super) fn work(
    array: &Array,
    op: FileOp,
    bytes: &[u8],
    next: &dyn Fn() -> Option<String>,
    count: &mut Count,
) -> Result<()> {
    let counted = RefCell::new(count);
    let lane = async || -> Result<()> {
        while let Some(name) = next() {
            let start = Instant::now();
            once(array, op, &name, bytes).await?;
            let mut count = counted.borrow_mut();
            count.record(start.elapsed());
            count.ops += 1;
        }
        Ok(())
    };
    let lanes = (0..IN_FLIGHT).map(|_| Box::pin(lane()) as Pin<Box<dyn Future<Output = Result<()>>>>);
    block_on_all(lanes.collect()).into_iter().collect()
}

async fn once(array: &Array, op: FileOp, name: &str, bytes: &[u8]) -> Result<()> {
    match op {
        FileOp::Create => {
            let file = array.create_file_async(name, &FileOptions::new()).await?;
            file.write_at_async(bytes.to_vec(), 0).await?;
            file.close_async().await
        }
        FileOp::Put => array.put_async(name, bytes.to_vec(), &PutOptions::new()).await.map(drop),
        FileOp::Delete => array.delete_async(name).await,
        _ => Err(Error::invalid("a future of that operation", "there is none")),
    }
}
