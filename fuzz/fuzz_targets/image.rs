//! Drives come from elsewhere: the whole of an array, changed anywhere, is opened, listed, read and checked. Nothing
//! panics, hangs or takes memory without bound, and what a file has given out once it gives out again.
//!
//! The input is a list of changes to the files of a good array: which drive, or all of them, which file, what to do,
//! where, and bytes. A change may end with the checksum that makes it believed.

#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use iomill::{Array, ArrayOptions, FileOptions, PutOptions};
use iomill_sim::{DriveModel, World};
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

mod seal;

const DRIVES: usize = 2;

/// Bytes of a block of the log, and of its header up to the checksum: docs/format.md.
const BLOCK_BYTES: usize = 4096;
const HEADER_BYTES: usize = 120;
const GROUP_HEADER_BYTES: usize = 88;

/// A file of a drive, without the zeroes at its end.
struct Part {
    path: String,
    bytes: Vec<u8>,
    len: u64,
}

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(1 << 20)
}

fn fill(array: &Array) -> iomill::Result<()> {
    for number in 0..5 {
        let file = array.create_file(&format!("dir/file {number}"), &FileOptions::new().block_bytes(4096))?;
        file.write_at(&vec![number; 3000 * (1 + usize::from(number))], 0)?;
        file.sync()?;
        array.set_attribute(&format!("dir/file {number}"), "key", Some("value"))?;
    }
    array.put("small", b"a small file", &PutOptions::new())?;
    array.put("large", &vec![9; 100_000], &PutOptions::new())?;
    array.delete("dir/file 2")?;
    array.rename("dir/file 3", "renamed")
}

/// The files of a good array.
fn image() -> &'static [Vec<Part>] {
    static IMAGE: OnceLock<Vec<Vec<Part>>> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let world = World::new(1).with_drives(DRIVES, DriveModel::default());
        let array = options(&world).create(world.paths()).expect("an array can be made");
        fill(&array).and_then(|()| array.close()).expect("an array can be filled");
        let parts = |drive: usize| {
            let part = |path: String| {
                let mut bytes = world.read(drive, &path).expect("a file that is listed");
                let len = bytes.len() as u64;
                bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
                Part { path, bytes, len }
            };
            world.files(drive).into_iter().map(part).collect()
        };
        (0..DRIVES).map(parts).collect()
    })
}

/// One change of a file.
struct Change<'a> {
    file: usize,
    what: u8,
    len: usize,
    at: usize,
    bytes: &'a [u8],
}

/// Makes one change. Returns what is left of the input.
fn change<'a>(input: &'a [u8], drives: &mut [Vec<Part>]) -> Option<&'a [u8]> {
    let (head, rest) = input.split_first_chunk::<8>()?;
    let [which, file, what, len, at @ ..] = *head;
    let len = usize::from(len);
    let bytes = rest.get(..len).unwrap_or(rest);
    let change = Change { file: usize::from(file), what: what % 8, len, at: u32::from_le_bytes(at) as usize, bytes };
    // A change of one copy of the log is voted down, so some changes are those of all drives.
    match usize::from(which) % (DRIVES + 1) {
        DRIVES => drives.iter_mut().for_each(|parts| change.make(parts)),
        drive => change.make(&mut drives[drive]),
    }
    rest.get(bytes.len()..)
}

impl Change<'_> {
    fn make(&self, parts: &mut Vec<Part>) {
        let index = self.file % parts.len();
        match self.what {
            0 => drop(parts.remove(index)),
            1 => parts[index].len = self.at as u64,
            2 => {
                let other = self.len % parts.len();
                let path = parts[other].path.clone();
                parts[other].path = std::mem::replace(&mut parts[index].path, path);
            }
            what => {
                let part = &mut parts[index];
                let at = self.at % (part.bytes.len() + BLOCK_BYTES);
                let end = at + self.bytes.len();
                part.bytes.resize(part.bytes.len().max(end), 0);
                part.bytes[at..end].copy_from_slice(self.bytes);
                part.len = part.len.max(part.bytes.len() as u64);
                if what % 2 == 1 {
                    believe(part, at);
                }
            }
        }
    }
}

/// Gives what was changed the checksum that makes it believed.
fn believe(part: &mut Part, at: usize) {
    if !part.path.starts_with("log/") {
        let text: Vec<u8> = part
            .bytes
            .split_inclusive(|byte| *byte == b'\n')
            .filter(|line| !line.starts_with(b"# checksum"))
            .flatten()
            .copied()
            .collect();
        part.bytes = seal::sealed(&text);
        part.len = part.bytes.len() as u64;
        return;
    }
    let start = at - at % BLOCK_BYTES;
    let Some(block) = part.bytes.get_mut(start..) else { return };
    if start == 0 && block.len() >= HEADER_BYTES + 8 {
        let sum = XxHash3_64::oneshot(&block[..HEADER_BYTES]);
        block[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&sum.to_le_bytes());
    } else if let Some(len) = block.get(4..8) {
        let records = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
        if let Some(covered) = block.get(16..GROUP_HEADER_BYTES.saturating_add(records)) {
            let sum = XxHash3_64::oneshot(covered);
            block[8..16].copy_from_slice(&sum.to_le_bytes());
        }
    }
}

/// Opens the array by one drive, and looks at all of it.
fn look(world: &World, reads: bool) {
    let Ok(array) = options(world).read_only(reads).open(world.path(0)) else { return };
    for name in array.list("").names().unwrap().iter().take(20) {
        let (Ok(file), Ok(_)) = (array.open_file(name), array.stat(name)) else { continue };
        let (mut first, mut second) = (vec![0; 8192], vec![0; 8192]);
        if let (Ok(one), Ok(two)) = (file.read_at(&mut first, 0), file.read_at(&mut second, 0)) {
            assert_eq!(first[..one], second[..two], "{name} changes");
        }
        let _ = file.read_at(&mut first, file.len().saturating_sub(100));
    }
    if !reads {
        let _ = array.put("new", b"a new file", &PutOptions::new());
    }
    let _ = array.close();
}

fuzz_target!(|data: &[u8]| {
    let image = image();
    let copy = |part: &Part| Part { path: part.path.clone(), bytes: part.bytes.clone(), len: part.len };
    let mut drives: Vec<Vec<Part>> = image.iter().map(|parts| parts.iter().map(copy).collect()).collect();
    let mut rest = data;
    for _ in 0..8 {
        if drives.iter().any(Vec::is_empty) {
            break;
        }
        match change(rest, &mut drives) {
            Some(more) => rest = more,
            None => break,
        }
    }
    let world = World::new(1).with_drives(DRIVES, DriveModel::default());
    for (drive, parts) in drives.iter().enumerate() {
        for part in parts {
            let put = world
                .put(drive, &part.path, &part.bytes)
                .and_then(|()| world.cut(drive, &part.path, part.len.min(64 << 20)));
            put.expect("the simulated drive takes all files");
        }
    }
    look(&world, true);
    let paths: Vec<PathBuf> = world.paths();
    let _ = iomill::catalog::check(&world.platform(), &paths, false, &|_, _, _| 0, &mut |_, _| ());
    look(&world, false);
});
