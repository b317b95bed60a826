//! Futures without any runtime: many reads in flight from one thread.
//!
//! `cargo run --example async_read [DIRECTORY]`

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use iomill::{Array, Layout};

/// Wakes the thread that waits in `block_on`.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("."), PathBuf::from);
    let base = base.join(format!("iomill-example-{}", std::process::id()));
    let drives = [base.join("ssd0"), base.join("ssd1")];
    for drive in &drives {
        std::fs::create_dir_all(drive)?;
    }
    let array = Array::create(&drives)?;
    let file = array.create_file("log", Layout::default())?;

    block_on(file.write(b"many drives, one file\n".repeat(10_000), 0))?;
    block_on(file.sync_async())?;
    // All reads are in flight before the first is waited for.
    let reads: Vec<_> = (0..100).map(|n| file.read(n * 2200, 22)).collect();
    for read in reads {
        assert_eq!(block_on(read)?, b"many drives, one file\n");
    }
    println!("100 reads, one thread");

    file.close()?;
    array.close()?;
    Ok(std::fs::remove_dir_all(&base)?)
}
