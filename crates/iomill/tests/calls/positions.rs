//! Files through the traits of `std::io` and `std::os::unix::fs::FileExt`.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};

use super::PAGE;
use super::abandoned::site;

#[test]
fn clones_share_a_position_and_cursors_do_not() {
    let (_root, _array, file) = site();
    let (mut one, mut other) = (&file, file.clone());
    assert_eq!(one.seek(SeekFrom::Start(PAGE as u64 - 2)).unwrap(), PAGE as u64 - 2);
    let mut bytes = [9; 4];
    other.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, [0, 0, 1, 1]);
    one.write_all(&[7; 3]).unwrap();
    assert_eq!(other.stream_position().unwrap(), PAGE as u64 + 5);
    assert_eq!(file.cursor().stream_position().unwrap(), 0);
    file.read_exact_at(&mut bytes, PAGE as u64 + 1).unwrap();
    assert_eq!(bytes, [1, 7, 7, 7]);
    assert_eq!(one.seek(SeekFrom::End(-1)).unwrap(), 64 * PAGE as u64 - 1);
    // Past the end a write extends the file, and a read finds nothing.
    other.write_all(&[1, 2]).unwrap();
    assert_eq!((file.len(), Read::read(&mut one, &mut bytes).unwrap()), (64 * PAGE as u64 + 1, 0));
}

#[test]
fn a_seek_out_of_a_file_moves_nothing() {
    let (_root, _array, file) = site();
    let mut file = &file;
    file.seek(SeekFrom::Start(10)).unwrap();
    for to in [SeekFrom::Current(-11), SeekFrom::End(i64::MIN)] {
        let error = file.seek(to).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert_eq!(file.stream_position().unwrap(), 10);
}

#[test]
fn a_range_past_the_end_is_told_apart() {
    let (_root, _array, file) = site();
    let mut bytes = [0; 10];
    let error = file.read_exact_at(&mut bytes, 64 * PAGE as u64 - 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("\"pages\" has 262144 bytes, and 10 bytes from offset 262135"), "{error}");
    for offset in [64 * PAGE as u64, 1 << 53, u64::MAX - 1] {
        assert_eq!(file.read_exact_at(&mut bytes, offset).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let mut cursor = file.cursor();
        cursor.seek(SeekFrom::Start(offset)).unwrap();
        assert_eq!(cursor.read(&mut bytes).unwrap(), 0);
    }
    file.write_all_at(&bytes, 64 * PAGE as u64 - 9).unwrap();
    file.read_exact_at(&mut bytes, 64 * PAGE as u64 - 9).unwrap();
}

/// No two threads read the same bytes.
#[test]
fn threads_take_turns_at_a_position() {
    let (_root, _array, file) = site();
    let sums: Vec<usize> = std::thread::scope(|scope| {
        let thread = || {
            let (mut file, mut records, mut record) = (&file, 0, [0; 1000]);
            while Read::read(&mut file, &mut record).unwrap() > 0 {
                records += 1;
            }
            records
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(thread)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(sums.iter().sum::<usize>(), (64 * PAGE).div_ceil(1000));
}
