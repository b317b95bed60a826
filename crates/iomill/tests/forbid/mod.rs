//! Forbids system calls, as containers and sandboxes do, for tests of several crates.
//!
//! Non-goals: arguments of calls. `cargo xtask forbidden` has the whole profile of a container.

use std::io;

/// The program of a filter under which `calls` fail with `errno`.
pub fn filter(calls: &[libc::c_long], errno: i32) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // A filter sees the number of the system call as its first word.
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for &call in calls {
        filter.push(libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32) });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    filter
}

/// Installs a filter for this thread and the threads and processes that it starts. It allocates nothing, so it may be
/// called between fork and exec.
pub fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the kernel copies the program; its statements live until the calls return.
    let results = unsafe {
        [
            // Without it only root may install a filter.
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    if results == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
}
