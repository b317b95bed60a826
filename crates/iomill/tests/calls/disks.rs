//! File systems for one test: on loop devices, in memory, and in other namespaces. They need root's rights; without
//! them a test reports that it was skipped.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{PATIENCE, alone};

/// A mounted file system.
pub struct Disk {
    /// Where it is mounted. The image, if there is one, lies beside it.
    at: PathBuf,
    dir: TempDir,
    is_loop: bool,
}

impl Disk {
    /// An ext4 file system of `mib` MiB, by `mkfs.ext4` with these additional options.
    pub fn ext4(mib: u64, options: &[&str]) -> Option<Disk> {
        Disk::made(mib, Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).args(options))
    }

    /// An XFS file system of `mib` MiB, 16 at least.
    pub fn xfs(mib: u64) -> Option<Disk> {
        // Below 300 MiB the program makes one only for the tests of XFS itself, which set these variables.
        let tested = ["TEST_DIR", "TEST_DEV", "QA_CHECK_FS"].map(|name| (name, "1"));
        Disk::made(mib, Command::new("mkfs.xfs").arg("-q").envs(tested))
    }

    /// Makes an image, and a file system in it by `command`.
    fn made(mib: u64, command: &mut Command) -> Option<Disk> {
        let dir = beside();
        let image = dir.path().join("image");
        std::fs::File::create(&image).unwrap().set_len(mib << 20).unwrap();
        run(command.arg(&image)).then(|| Disk::mount(dir, true))?
    }

    /// A file system that needs no device.
    pub fn of_kind(kind: &str) -> Option<Disk> {
        let dir = beside();
        let at = made_dir(&dir);
        run(Command::new("mount").args(["-t", kind, kind]).arg(&at)).then(|| Disk { at, dir, is_loop: false })
    }

    fn mount(dir: TempDir, is_loop: bool) -> Option<Disk> {
        let disk = Disk { at: made_dir(&dir), dir, is_loop };
        disk.mount_again().then_some(disk)
    }

    /// Mounts the image, after `unmount`.
    pub fn mount_again(&self) -> bool {
        assert!(self.is_loop);
        run(Command::new("mount").args(["-o", "loop"]).arg(self.image()).arg(&self.at))
    }

    /// The same, for reading only.
    pub fn mount_again_read_only(&self) -> bool {
        run(Command::new("mount").args(["-o", "loop,ro"]).arg(self.image()).arg(&self.at))
    }

    /// Leaves the image where it is when this is dropped.
    pub fn keep(&mut self) {
        self.dir.disable_cleanup(true);
    }

    /// The file that holds it.
    pub fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts the file system. Returns whether that worked: nothing held it.
    pub fn unmount(&self) -> bool {
        run(Command::new("umount").arg(&self.at))
    }

    /// Unmounts the file system as soon as nothing holds it. The child of another test has copies of all descriptors
    /// until it starts its program, and the kernel frees a ring a moment after the ring's last descriptor.
    #[track_caller]
    pub fn unmount_soon(&self) {
        let started = Instant::now();
        while !self.unmount() {
            assert!(started.elapsed() < PATIENCE, "{} is still in use", self.at.display());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Free bytes, after a sync that completes the file system's delayed frees.
    pub fn free_bytes(&self) -> u64 {
        let directory = std::fs::File::open(&self.at).unwrap();
        rustix::fs::syncfs(&directory).unwrap();
        let space = rustix::fs::fstatvfs(&directory).unwrap();
        space.f_bfree * space.f_frsize
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It may be unmounted already, or a test that failed may hold it.
        run(Command::new("umount").arg("-l").arg(&self.at));
    }
}

/// A directory on the disk of the build.
fn beside() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn made_dir(dir: &TempDir) -> PathBuf {
    let at = dir.path().join("at");
    std::fs::create_dir(&at).unwrap();
    at
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Runs a test in a process with private mounts, which end with its last child. Returns whether the test ran there, or
/// was skipped. Other tests start children with copies of all mounts of this process, and a copy keeps a file system.
pub fn ran_with_own_mounts(test: &str) -> bool {
    if alone::is_child(test) {
        return false;
    }
    if !run(Command::new("unshare").args(["-m", "true"])) {
        skipped("only root has mounts of its own");
        return true;
    }
    let mut command = alone::command(test);
    // SAFETY: two system calls between fork and exec. They read constants.
    unsafe {
        command.pre_exec(|| {
            let (none, flags) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
            if libc::unshare(libc::CLONE_NEWNS) == 0 && libc::mount(none, c"/".as_ptr(), none, flags, none.cast()) == 0
            {
                return Ok(());
            }
            Err(io::Error::last_os_error())
        });
    }
    alone::run(command);
    true
}

/// A process in which another directory is at the place of `data`.
pub struct Elsewhere(Child);

impl Elsewhere {
    /// Mounts `other` over `data` in a namespace of the new process.
    pub fn start(other: &Path, data: &Path) -> Option<Elsewhere> {
        // Without root's rights the namespace needs users of its own.
        let flags = if rustix::process::geteuid().is_root() { "-m" } else { "-rm" };
        let script = r#"mount --bind "$0" "$1" && echo there && exec cat"#;
        let mut command = Command::new("unshare");
        command.args([flags, "sh", "-c", script]).args([other, data]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        let elsewhere = Elsewhere(child);
        (line == "there\n").then_some(elsewhere)
    }

    /// A path as that process has it.
    pub fn path(&self, path: &Path) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.0.id())).join(path.strip_prefix("/").unwrap())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        // It ends at the end of its input.
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Reports that a test could not run here.
pub fn skipped(why: &str) {
    println!("skipped: {why}");
}
