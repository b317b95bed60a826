//! Runs a command without the system calls that Docker's default profile forbids: `cargo xtask forbidden -- COMMAND…`.
//!
//! Goals: the system calls that a program has in most containers, on any Linux, without a container. Non-goals:
//! capabilities, name spaces, control groups, other profiles, programs of another architecture.
//!
//! The profile lists the calls that a container without further capabilities may make (`seccomp/default.json` of
//! github.com/moby/profiles). It answers EPERM to the rest, which is listed here. Calls newer than the profile get
//! ENOSYS, as from the container's runtime.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Offsets in the data that a filter gets of a call: its number, and the low half of its first argument.
const NUMBER_AT: u32 = 0;
const FIRST_ARGUMENT_AT: u32 = if cfg!(target_endian = "little") { 16 } else { 20 };

/// Calls with this number and above are newer than the profile.
const FIRST_UNKNOWN: u32 = 467;

/// Flags of `clone`: a container may make no name spaces of its own.
const NAME_SPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// The calls that get EPERM.
const FORBIDDEN: [libc::c_long; 51] = [
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Memory on nodes.
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
    libc::SYS_set_mempolicy,
    libc::SYS_set_mempolicy_home_node,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Other processes.
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_setns,
    libc::SYS_unshare,
    // The kernel's own settings.
    libc::SYS_acct,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_perf_event_open,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    // Keys.
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
    // Mounts, quotas, swap.
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    // The machine's clock and names.
    libc::SYS_clock_settime,
    libc::SYS_settimeofday,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
];

/// Installs the filter, which cannot be removed, and becomes the command. Returns only an error.
pub fn run(program: &str, arguments: &[&str]) -> io::Error {
    match install() {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error,
    }
}

/// From now on this thread, and everything that it starts, may make only the calls that the profile allows.
fn install() -> io::Result<()> {
    let mut filter = filter();
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls read `program` and its statements, which live until they return, and change no memory.
    let results = unsafe {
        [
            // Without this only root may install a filter.
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
        ]
    };
    if results == [0, 0] { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The filter as a BPF program for the kernel.
fn filter() -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let load = |at| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at);
    let answer = |value| statement(libc::BPF_RET | libc::BPF_K, value);
    let refuse = |errno: i32| answer(libc::SECCOMP_RET_ERRNO | errno as u32);
    // If the comparison fails, `jf` statements are skipped.
    let when = |how, k, jf| libc::sock_filter { jf, ..statement(libc::BPF_JMP | how | libc::BPF_K, k) };
    let mut filter = vec![load(NUMBER_AT), when(libc::BPF_JGE, FIRST_UNKNOWN, 1), refuse(libc::ENOSYS)];
    // The flags of `clone3` lie in memory that no filter sees. After ENOSYS the C library uses `clone`.
    filter.extend([when(libc::BPF_JEQ, libc::SYS_clone3 as u32, 1), refuse(libc::ENOSYS)]);
    for number in FORBIDDEN {
        filter.extend([when(libc::BPF_JEQ, number as u32, 1), refuse(libc::EPERM)]);
    }
    filter.extend([when(libc::BPF_JEQ, libc::SYS_clone as u32, 3), load(FIRST_ARGUMENT_AT)]);
    filter.extend([when(libc::BPF_JSET, NAME_SPACES as u32, 1), refuse(libc::EPERM)]);
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the environment when the test binary starts itself again.
    const CHILD: &str = "XTASK_TEST_FORBIDDEN";

    /// The errno that a call without arguments fails with; 0 if it does not fail.
    fn errno(number: libc::c_long) -> i32 {
        // SAFETY: the arguments are 0, so that each call that the test names is refused or follows no pointer.
        match unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) } {
            -1 => io::Error::last_os_error().raw_os_error().unwrap_or(0),
            _ => 0,
        }
    }

    #[test]
    fn a_program_meets_what_it_meets_in_a_container() {
        if std::env::var_os(CHILD).is_none() {
            let name = "forbidden::tests::a_program_meets_what_it_meets_in_a_container";
            let mut command = Command::new(std::env::current_exe().unwrap());
            let output = command.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && text.contains("1 passed"), "{text}");
            return;
        }
        install().unwrap();
        // Calls that would do no harm if they were allowed.
        for number in [
            libc::SYS_io_uring_setup,
            libc::SYS_io_uring_enter,
            libc::SYS_io_uring_register,
            libc::SYS_mbind,
            libc::SYS_get_mempolicy,
            libc::SYS_move_pages,
            libc::SYS_unshare,
            libc::SYS_bpf,
            libc::SYS_perf_event_open,
            libc::SYS_keyctl,
            libc::SYS_mount,
            libc::SYS_clock_settime,
        ] {
            assert_eq!(errno(number), libc::EPERM, "{number}");
        }
        for number in [libc::SYS_clone3, FIRST_UNKNOWN.into(), 1000] {
            assert_eq!(errno(number), libc::ENOSYS, "{number}");
        }
        // A thread and a process, but no name space.
        assert_eq!(std::thread::spawn(|| errno(libc::SYS_getpid)).join().unwrap(), 0);
        assert!(Command::new("true").status().unwrap().success());
        let flags = libc::CLONE_NEWUSER | libc::SIGCHLD;
        // SAFETY: the filter refuses the call, so there is no second process.
        assert_eq!(unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) }, -1);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        for number in [libc::SYS_io_setup, libc::SYS_membarrier, libc::SYS_openat2, libc::SYS_statx] {
            assert!(![libc::EPERM, libc::ENOSYS].contains(&errno(number)), "{number}");
        }
        let error = run("/nonexistent", &[]);
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
