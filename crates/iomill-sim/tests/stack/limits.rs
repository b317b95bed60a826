//! Calls at the end of the longest file that there can be.

use std::sync::{Arc, Mutex};

use iomill::{Array, ArrayOptions, CacheOptions, Error, File, FileOptions, MAX_FILE_BYTES, Topology};
use iomill_sim::{DriveModel, World};

use super::harness::block_on;

/// Reads by a callback.
fn read_then(array: &Array, file: &File, len: usize, offset: u64) -> Result<usize, Error> {
    let read = Arc::new(Mutex::new(None));
    let there = Arc::clone(&read);
    file.read_at_then(vec![1; len], offset, move |outcome| *there.lock().unwrap() = Some(outcome))?;
    loop {
        if let Some(outcome) = read.lock().unwrap().take() {
            return Ok(outcome?.1);
        }
        array.step();
    }
}

/// A range past the end of all files is an error for each form of a read, also where the file has some of its bytes, and
/// whether these are cached or not.
#[test]
fn no_read_goes_past_the_end_of_all_files() {
    for cache_bytes in [0, 1 << 20] {
        let world = World::new(1).with_drives(2, DriveModel::default());
        let options = ArrayOptions::new().platform(world.platform()).cache_bytes(cache_bytes);
        let array = options.create(world.paths()).unwrap();
        let file = array.create_file("file", &FileOptions::new()).unwrap();
        file.set_len(MAX_FILE_BYTES).unwrap();
        for offset in [MAX_FILE_BYTES - 5, MAX_FILE_BYTES - 5000] {
            let inside = (MAX_FILE_BYTES - offset) as usize;
            for _ in 0..2 {
                let outside = inside + 1;
                let read_at = file.read_at(&mut vec![1; outside], offset);
                let read_async = block_on(&array, file.read_async(offset, outside)).map(|bytes| bytes.len());
                let read_at_async = block_on(&array, file.read_at_async(vec![1; outside], offset));
                let results = [
                    read_at,
                    read_async,
                    read_at_async.map(|read| read.1).map_err(Error::from),
                    read_then(&array, &file, outside, offset),
                ];
                for (form, result) in results.into_iter().enumerate() {
                    assert!(matches!(result, Err(Error::Invalid { .. })), "form {form} at {offset}: {result:?}");
                }
                // From now on the pages are cached, if there is a cache.
                assert_eq!(file.read_at(&mut vec![1; inside], offset).unwrap(), inside);
                assert_eq!(read_then(&array, &file, inside, offset).unwrap(), inside);
            }
        }
    }
}

/// The last block of the longest file may have pages past that file's end. Their keys would be those of the next file's
/// first pages, which a flush of the last block must neither write nor count as written.
#[test]
fn a_flush_of_the_last_block_leaves_the_next_file_alone() {
    const BLOCK: u32 = 12 << 10;
    assert!(!MAX_FILE_BYTES.is_multiple_of(BLOCK.into()), "the last block is cut");
    let world = World::new(1).with_drives(2, DriveModel::default());
    let options = || ArrayOptions::new().platform(world.platform()).cache_bytes(1 << 20);
    let array = options().create(world.paths()).unwrap();
    let files: Vec<File> = (0..4)
        .map(|number: u8| {
            let file = array.create_file(&format!("file {number}"), &FileOptions::new().block_bytes(BLOCK)).unwrap();
            file.set_len(MAX_FILE_BYTES).unwrap();
            file.write_at(&[number + 1; 8192], 0).unwrap();
            file.write_at(&[number + 11; 4096], MAX_FILE_BYTES - 4096).unwrap();
            file
        })
        .collect();
    for file in &files {
        file.sync().unwrap();
    }
    drop(files);
    array.close().unwrap();
    let array = options().open(world.path(0)).unwrap();
    for number in 0..4u8 {
        let file = array.open_file(&format!("file {number}")).unwrap();
        let mut page = [0; 4096];
        for (offset, byte) in [(0, number + 1), (4096, number + 1), (MAX_FILE_BYTES - 4096, number + 11)] {
            file.read_exact_at(&mut page, offset).unwrap();
            assert!(page == [byte; 4096], "file {number} at {offset}: {}, not {byte}", page[0]);
        }
    }
    array.close().unwrap();
}

/// A set size that no set can have is an error, also with several nodes, and however large it is.
#[test]
fn senseless_set_sizes_are_errors() {
    for (nodes, set_pages) in
        [1, 2].into_iter().flat_map(|nodes| [0, 5, 36, 1 << 52, usize::MAX].map(|set| (nodes, set)))
    {
        let world = World::new(3).with_drives(2, DriveModel::default());
        let options = ArrayOptions::new().platform(world.platform()).cache_bytes(1 << 20);
        let options = options.with_tuning(|tuning| tuning.topology(Topology::Emulate(nodes)));
        let options = options.cache(CacheOptions::new().set_pages(set_pages));
        let error = options.create(world.paths()).unwrap_err().to_string();
        assert!(error.contains("a set size is a multiple of 4"), "{nodes} nodes, {set_pages} pages: {error}");
    }
}
