//! The CPUs of the calling thread.
//!
//! Goals: binding the thread, and listing the CPUs on which it may run. Non-goals: deciding which thread runs where; the
//! machine's CPUs and nodes, which `iomill-platform` reads.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Binds the calling thread to `cpus`.
pub fn bind_current_thread(cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(invalid(format!("cannot bind a thread to CPU {cpu}: the highest is {}", CpuSet::MAX_CPU - 1)));
        }
        set.set(cpu);
    }
    if cpus.is_empty() {
        return Err(invalid("cannot bind a thread to no CPU: give one at least".to_owned()));
    }
    sched_setaffinity(None, &set).map_err(|error| {
        let source = io::Error::from(error);
        io::Error::new(source.kind(), format!("cannot bind a thread to CPUs {cpus:?}: {source}"))
    })
}

/// The CPUs on which the calling thread may run.
pub fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

fn invalid(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binding_holds_and_refuses() {
        let before = allowed().unwrap();
        let wanted = before[before.len() - 1];
        // The test uses another thread, so that its own is not bound.
        let after = std::thread::spawn(move || {
            bind_current_thread(&[wanted]).unwrap();
            allowed().unwrap()
        });
        assert_eq!(after.join().unwrap(), [wanted]);
        assert!(bind_current_thread(&[]).is_err());
        assert!(bind_current_thread(&[CpuSet::MAX_CPU]).is_err());
        assert!(bind_current_thread(&[CpuSet::MAX_CPU - 1]).is_err(), "no machine of ours has that many");
        assert_eq!(allowed().unwrap(), before);
    }
}
