//! Features of an NVMe controller, by its admin commands.
//!
//! Goals: two commands, Get Features and Set Features, for values that fit in a word (NVM Express Base Specification,
//! 5.27 in revision 2.0). Non-goals: features with a data buffer; features that survive a reset (the save bit is never
//! set).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

const SET_FEATURES: u8 = 0x09;
const GET_FEATURES: u8 = 0x0a;

/// The kernel's `struct nvme_passthru_cmd` (`linux/nvme_ioctl.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    address: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// `_IOWR('N', 0x41, struct nvme_passthru_cmd)`: read and write, the size, the letter, the number.
const ADMIN_COMMAND: u64 = 3 << 30 | (size_of::<AdminCommand>() as u64) << 16 | 0x4e << 8 | 0x41;

/// The controller's device node.
pub fn node(controller: &str) -> PathBuf {
    PathBuf::from("/dev").join(controller)
}

/// The present value of a feature.
pub fn get_feature(controller: &str, feature: u8) -> io::Result<u32> {
    let words = [u32::from(feature), 0, 0, 0, 0, 0];
    run(controller, AdminCommand { opcode: GET_FEATURES, words_10_15: words, ..AdminCommand::default() })
}

/// Sets a feature until the controller is reset.
pub fn set_feature(controller: &str, feature: u8, value: u32) -> io::Result<()> {
    let words = [u32::from(feature), value, 0, 0, 0, 0];
    run(controller, AdminCommand { opcode: SET_FEATURES, words_10_15: words, ..AdminCommand::default() })?;
    Ok(())
}

fn run(controller: &str, mut command: AdminCommand) -> io::Result<u32> {
    let file = OpenOptions::new().read(true).open(node(controller))?;
    // SAFETY: the descriptor is open during the call. The command has the size that is part of the request's number,
    // and outlives the call. It names no other memory: `address`, `metadata` and their lengths are 0.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), ADMIN_COMMAND as libc::Ioctl, &raw mut command) };
    match status {
        0 => Ok(command.result),
        -1 => Err(io::Error::last_os_error()),
        // A status of the controller, with its type above the code.
        status => Err(io::Error::other(format!("the controller answers with status {status:#x}{}", meaning(status)))),
    }
}

/// The statuses that Get and Set Features may return.
fn meaning(status: i32) -> &'static str {
    match status & 0x7ff {
        0x002 => " (invalid field: it does not have this feature)",
        0x10d => " (the feature cannot be saved)",
        0x10e => " (the feature cannot be changed)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_has_the_number_of_the_kernels_header() {
        assert_eq!(ADMIN_COMMAND, 0xc048_4e41);
    }

    #[test]
    fn a_node_that_is_no_controller_is_refused() {
        assert!(get_feature("null", 8).is_err());
        assert_eq!(set_feature("no-such-controller", 8, 0).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(meaning(0x410e).contains("cannot be changed"));
    }
}
