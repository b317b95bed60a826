//! Ranges with extreme numbers: a file of a simulated array, or a plain file, is read, written, cut and extended at any
//! offsets, with any lengths, by every kind of call. Each call returns the bytes of a model, or `Error::Invalid` for a
//! range that cannot be. Nothing panics or hangs, and no memory is taken for bytes that the file does not have.
//!
//! The input is a machine, and calls on it. `Input::number` makes short inputs meet the ends of the file, of all files,
//! and of the integers. Non-goals: crashes and errors of drives, which the swarm of `iomill-sim` has.

#![no_main]

use std::io::{IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use iomill::{Advice, Array, ArrayOptions, Error, File, FileOptions, Layout, PlainOptions, Request, Runtime};
use iomill::{MAX_FILE_BYTES, RuntimeOptions};
use iomill_sim::{DriveModel, Rates, World, testing};
use libfuzzer_sys::fuzz_target;

mod sparse;

use sparse::{PAGE, Sparse};

/// The most calls of one input.
const CALLS: usize = 40;
/// The most bytes of one buffer, and of all ranges of a call.
const BUFFER_MAX: usize = 1 << 17;
/// The longest file that is walked through block by block.
const WALK_MAX: u64 = 1 << 24;
const STEPS_MAX: usize = 1_000_000;

/// The bytes of an input. Zeroes follow its end.
struct Input<'a> {
    rest: &'a [u8],
    /// The last number.
    last: u64,
}

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.rest.split_first() else { return 0 };
        self.rest = rest;
        first
    }

    /// A number near one of the numbers that matter for a file of this length: the high half of a byte names that
    /// number, the low half is added, from -8 to 7.
    fn number(&mut self, len: u64) -> u64 {
        let byte = self.byte();
        let near = match byte >> 4 {
            0 => 0,
            1 => len,
            2 => PAGE * u64::from(self.byte()),
            3 => (64 << 10) * u64::from(self.byte()),
            4 => u64::from(u16::from_le_bytes([self.byte(), self.byte()])),
            5 => MAX_FILE_BYTES,
            6 => u64::MAX,
            7 => i64::MAX as u64,
            8 => u64::from(u32::MAX),
            9 => 1 << (self.byte() % 64),
            10 => self.last,
            11 => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
            12 => len / 2,
            13 => len.wrapping_add(PAGE * u64::from(self.byte())),
            14 => MAX_FILE_BYTES - PAGE * u64::from(self.byte()),
            _ => u64::from(self.byte()),
        };
        let delta = i64::from(byte & 15 ^ 8) - 8;
        self.last = near.wrapping_add_signed(delta);
        self.last
    }

    /// A length of memory.
    fn short(&mut self, len: u64) -> usize {
        self.number(len) as usize % BUFFER_MAX
    }

    /// Some ranges, most of them short.
    fn ranges(&mut self, len: u64) -> Vec<(u64, usize)> {
        (0..self.byte() % 12).map(|_| (self.number(len), self.number(len) as usize)).collect()
    }
}

/// The whole length of some ranges, if a buffer may be that long.
fn total(ranges: &[(u64, usize)]) -> Option<usize> {
    let sum = ranges.iter().try_fold(0usize, |sum, range| sum.checked_add(range.1));
    sum.filter(|sum| *sum <= BUFFER_MAX)
}

/// Whether a file may have a range.
fn can_be(offset: u64, len: usize) -> bool {
    offset.checked_add(len as u64).is_some_and(|end| end <= MAX_FILE_BYTES)
}

/// The bytes that a read has returned.
fn cut(read: usize, mut buf: Vec<u8>) -> Vec<u8> {
    buf.truncate(read);
    buf
}

enum Machine {
    Array(Array),
    Plain(Runtime),
}

impl Machine {
    fn step(&self) {
        match self {
            Machine::Array(array) => array.step(),
            Machine::Plain(runtime) => runtime.step(),
        }
    }
}

/// A file, and the bytes that it should have.
struct Twin {
    machine: Machine,
    file: File,
    model: Sparse,
    has_cache: bool,
    /// The number of calls so far. Each writes other bytes.
    calls: u64,
}

type Bytes = iomill::Result<Vec<u8>>;

/// Fails unless a call has returned these bytes. `None` stands for `Error::Invalid`.
#[track_caller]
fn check(got: Bytes, wanted: Option<Vec<u8>>, call: &dyn Fn() -> String) {
    match (got, wanted) {
        (Ok(got), Some(wanted)) => {
            assert_eq!(got.len(), wanted.len(), "length of {}", call());
            let wrong = got.iter().zip(&wanted).position(|(got, wanted)| got != wanted);
            assert_eq!(wrong, None, "the first wrong byte of {}", call());
        }
        (Err(Error::Invalid { .. }), None) => {}
        (Ok(got), None) => panic!("{} returned {} bytes, and not an error", call(), got.len()),
        (Err(error), wanted) => panic!("{}: {error}; wanted {:?}", call(), wanted.map(|bytes| bytes.len())),
    }
}

impl Twin {
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..STEPS_MAX {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            self.machine.step();
        }
        panic!("a future has not ended after {STEPS_MAX} steps");
    }

    /// Begins a call with a callback, and waits for that.
    fn called(&self, begin: impl FnOnce(Box<dyn FnOnce(Bytes) + Send>) -> iomill::Result<()>) -> Bytes {
        let outcome: Arc<Mutex<Option<Bytes>>> = Arc::default();
        let there = Arc::clone(&outcome);
        begin(Box::new(move |result| *there.lock().unwrap() = Some(result)))?;
        for _ in 0..STEPS_MAX {
            if let Some(result) = outcome.lock().unwrap().take() {
                return result;
            }
            self.machine.step();
        }
        panic!("a callback has not been called after {STEPS_MAX} steps");
    }

    /// One call.
    fn call(&mut self, input: &mut Input) {
        self.calls += 1;
        let len = self.model.len();
        match input.byte() % 16 {
            0..4 => self.read(input),
            4..6 => self.read_many(input),
            6 => self.read_rows(input),
            7..10 => self.write(input),
            10 | 11 => self.write_many(input),
            12 => self.set_len(input),
            13 => self.pin(input),
            14 => self.advise(input),
            _ => match input.byte() % 4 {
                0 => self.file.sync().expect("no drive fails"),
                1 => self.block_on(self.file.sync_async()).expect("no drive fails"),
                2 => self.next_data(input),
                _ => {
                    let to = input.number(len);
                    let wanted = (to <= MAX_FILE_BYTES && matches!(self.machine, Machine::Array(_))).then(Vec::new);
                    check(self.file.preallocate(to).map(|()| Vec::new()), wanted, &|| format!("preallocate {to}"));
                }
            },
        }
        assert_eq!(self.file.len(), self.model.len(), "length after call {}", self.calls);
    }

    /// Reads one range.
    fn read(&self, input: &mut Input) {
        let (file, end) = (&self.file, self.model.len());
        let (kind, offset, short) = (input.byte() % 10, input.number(end), input.short(end));
        // Calls that make the memory take any length, but memory only for bytes of the file.
        let mut long = input.number(end) as usize;
        if end.saturating_sub(offset).min(long as u64) > BUFFER_MAX as u64 {
            long %= BUFFER_MAX;
        }
        let mut buf = vec![0xA5; short];
        let own = |len: usize| can_be(offset, len).then(|| self.model.read(offset, len));
        let (got, wanted) = match kind {
            0 => (file.read_at(&mut buf, offset).map(|read| cut(read, buf)), own(short)),
            1 => {
                let (first, rest) = buf.split_at_mut(short / 3);
                let mut slices = [IoSliceMut::new(first), IoSliceMut::new(&mut []), IoSliceMut::new(rest)];
                (file.read_vectored_at(&mut slices, offset).map(|read| cut(read, buf)), own(short))
            }
            2 => (self.block_on(file.read_async(offset, long)), own(long)),
            3 => {
                let read = self.block_on(file.read_at_async(buf, offset));
                (read.map(|(buf, read)| cut(read, buf)).map_err(Error::from), own(short))
            }
            4 => {
                let then = |callback: Box<dyn FnOnce(Bytes) + Send>| {
                    file.read_at_then(buf, offset, |read| {
                        callback(read.map(|(buf, read)| cut(read, buf)).map_err(Error::from));
                    })
                };
                (self.called(|callback| then(callback).map_err(Error::from)), own(short))
            }
            5 => return self.read_by_position(offset, buf),
            6 | 7 => return self.read_in_place(offset, long, kind == 6),
            8 => {
                let wanted = offset.checked_add(long as u64).filter(|end| *end <= self.model.len());
                let request = vec![Request::Read { offset, len: long }];
                let submit = |callback: Box<dyn FnOnce(Bytes) + Send>| {
                    file.background().submit(request, |read| callback(read.map(|buffers| buffers.concat())))
                };
                (self.called(submit), wanted.map(|_| self.model.read(offset, long)))
            }
            _ => return drop(file.read_async(offset, long)),
        };
        check(got, wanted, &|| format!("read {kind} at {offset} of {short} or {long} bytes of {end}"));
    }

    /// Reads by a position, at which nothing is an error, and exactly, which is an error for a range past the end.
    fn read_by_position(&self, offset: u64, mut buf: Vec<u8>) {
        let wanted = self.model.read(offset, buf.len());
        let mut cursor = self.file.cursor();
        assert_eq!(cursor.seek(SeekFrom::Start(offset)).expect("any offset is a position"), offset);
        if can_be(offset, buf.len()) || wanted.is_empty() {
            let read = cursor.read(&mut buf).expect("no drive fails");
            assert!(buf[..read] == wanted, "a cursor at {offset}");
            assert_eq!(cursor.stream_position().expect("a position"), offset + read as u64);
        }
        match self.file.read_exact_at(&mut buf, offset) {
            Ok(()) => assert!(buf == wanted, "read_exact_at {offset}"),
            Err(error) => assert!(wanted.len() < buf.len(), "read_exact_at {offset} of {}: {error}", buf.len()),
        }
    }

    /// Reads by a task in place.
    fn read_in_place(&self, offset: u64, len: usize, now: bool) {
        let all = |range: &iomill::PinnedRange<'_>| range.iter().flatten().copied().collect::<Vec<u8>>();
        let got = match now {
            true => self.file.read_with(offset, len, all),
            false => self.called(|callback| self.file.submit_with(offset, len, move |range| callback(range.map(all)))),
        };
        let wanted = self.model.read(offset, len.min(BUFFER_MAX));
        // Longer ranges may be refused.
        let is_long = wanted.len() > 15 * PAGE as usize;
        if is_long && matches!(got, Err(Error::Invalid { .. })) {
            return;
        }
        let wanted = (self.has_cache && can_be(offset, len)).then_some(wanted);
        check(got, wanted, &|| format!("a task at {offset} of {len} bytes of {}", self.model.len()));
    }

    /// Gathers ranges.
    fn read_many(&self, input: &mut Input) {
        let (file, end) = (&self.file, self.model.len());
        let (kind, mut ranges) = (input.byte() % 6, input.ranges(end));
        let row_len = ranges.first().map_or(0, |range| range.1);
        if kind < 2 {
            ranges.iter_mut().for_each(|range| range.1 = row_len);
        }
        let offsets: Vec<u64> = ranges.iter().map(|range| range.0).collect();
        let is_within = |&(offset, len): &(u64, usize)| offset.checked_add(len as u64).is_some_and(|to| to <= end);
        let all_within = ranges.iter().all(is_within);
        let whole = total(&ranges);
        // Ranges within the file that are too long for this test.
        if all_within && whole.is_none() {
            return;
        }
        let mut out = vec![0xA5; whole.unwrap_or(7)];
        let got = match kind {
            0 => file.read_many(&mut out, &offsets, row_len).map(|()| out),
            1 => self.block_on(file.read_many_async(out, &offsets, row_len)).map_err(Error::from),
            2 => file.read_ranges(&mut out, &ranges).map(|()| out),
            3 => self.block_on(file.read_ranges_async(out, &ranges)).map_err(Error::from),
            4 => self.block_on(file.gather_async(&ranges)),
            _ => {
                let requests = ranges.iter().map(|&(offset, len)| Request::Read { offset, len }).collect();
                self.called(|callback| file.submit(requests, |read| callback(read.map(|all| all.concat()))))
            }
        };
        let wanted = all_within.then(|| ranges.iter().flat_map(|range| self.model.read(range.0, range.1)).collect());
        check(got, wanted, &|| format!("gather {kind} of {ranges:?} of {end} bytes"));
    }

    /// Gathers rows by numbers of each type.
    fn read_rows(&self, input: &mut Input) {
        let end = self.model.len();
        let (kind, base, row_len) = (input.byte() % 10, input.number(end), input.number(end) as usize);
        let numbers: Vec<u64> = (0..input.byte() % 12).map(|_| input.number(end)).collect();
        let Some(whole) = numbers.len().checked_mul(row_len).filter(|whole| *whole <= BUFFER_MAX) else {
            let refused = self.file.read_rows(&mut [0; 7], &numbers, row_len, base);
            return check(refused.map(|()| Vec::new()), None, &|| format!("rows of {row_len} bytes"));
        };
        let rows = RowsCall { twin: self, base, row_len, whole, is_later: kind >= 5 };
        match kind % 5 {
            0 => rows.check(&numbers, |id| i128::from(id)),
            1 => rows.check(&numbers.iter().map(|n| *n as i64).collect::<Vec<_>>(), i128::from),
            2 => rows.check(&numbers.iter().map(|n| *n as u32).collect::<Vec<_>>(), i128::from),
            3 => rows.check(&numbers.iter().map(|n| *n as i32).collect::<Vec<_>>(), i128::from),
            _ => rows.check(&numbers.iter().map(|n| *n as usize).collect::<Vec<_>>(), |id| id as i128),
        }
    }

    /// Writes one range.
    fn write(&mut self, input: &mut Input) {
        let (file, end) = (&self.file, self.model.len());
        let (kind, offset, len) = (input.byte() % 6, input.number(end), input.short(end));
        let bytes = sparse::content(offset, len, self.calls);
        let written = match kind {
            0 => file.write_at(&bytes, offset),
            1 => {
                let (first, rest) = bytes.split_at(len / 3);
                file.write_vectored_at(&[IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(rest)], offset)
            }
            2 => self.block_on(file.write_at_async(bytes.clone(), offset)).map(drop).map_err(Error::from),
            3 => file.write_all_at(&bytes, offset).map_err(of_io),
            4 => {
                let mut cursor = file.cursor();
                cursor.seek(SeekFrom::Start(offset)).expect("any offset is a position");
                cursor.write_all(&bytes).map_err(of_io)
            }
            _ => {
                let requests = vec![Request::Write { offset, bytes: bytes.clone() }];
                self.called(|callback| file.submit(requests, |all| callback(all.map(|all| all.concat())))).map(drop)
            }
        };
        let wanted = can_be(offset, len).then(Vec::new);
        // A range without bytes may be refused where no range can be, or do nothing.
        if len > 0 || wanted.is_some() {
            check(written.map(|()| Vec::new()), wanted.clone(), &|| format!("write {kind} at {offset} of {len} bytes"));
        }
        if wanted.is_some() {
            self.model.write(offset, &bytes);
        }
    }

    /// Scatters ranges.
    fn write_many(&mut self, input: &mut Input) {
        let (file, end) = (&self.file, self.model.len());
        let (kind, mut ranges) = (input.byte() % 5, input.ranges(end));
        ranges.iter_mut().for_each(|range| range.1 %= BUFFER_MAX / 12);
        let row_len = ranges.first().map_or(0, |range| range.1);
        if kind < 2 {
            ranges.iter_mut().for_each(|range| range.1 = row_len);
        }
        let offsets: Vec<u64> = ranges.iter().map(|range| range.0).collect();
        // The same bytes where ranges overlap.
        let parts: Vec<Vec<u8>> = ranges.iter().map(|&(at, len)| sparse::content(at, len, self.calls)).collect();
        let bytes = parts.concat();
        let written = match kind {
            0 => file.write_many(&bytes, &offsets, row_len),
            1 => self.block_on(file.write_many_async(bytes, &offsets, row_len)).map(drop).map_err(Error::from),
            2 => file.write_ranges(&bytes, &ranges),
            3 => self.block_on(file.write_ranges_async(bytes, &ranges)).map(drop).map_err(Error::from),
            _ => {
                let request =
                    |(offset, bytes): (&u64, &Vec<u8>)| Request::Write { offset: *offset, bytes: bytes.clone() };
                let requests = offsets.iter().zip(&parts).map(request).collect();
                self.called(|callback| file.submit(requests, |all| callback(all.map(|all| all.concat())))).map(drop)
            }
        };
        let wanted = ranges.iter().all(|&(offset, len)| len == 0 || can_be(offset, len)).then(Vec::new);
        check(written.map(|()| Vec::new()), wanted.clone(), &|| format!("scatter {kind} to {ranges:?}"));
        if wanted.is_some() {
            ranges.iter().zip(&parts).for_each(|(range, bytes)| self.model.write(range.0, bytes));
        }
    }

    fn set_len(&mut self, input: &mut Input) {
        let (is_later, to) = (input.byte() % 2 == 1, input.number(self.model.len()));
        let set = if is_later { self.block_on(self.file.set_len_async(to)) } else { self.file.set_len(to) };
        let wanted = (to <= MAX_FILE_BYTES).then(Vec::new);
        check(set.map(|()| Vec::new()), wanted.clone(), &|| format!("set_len {to}"));
        if wanted.is_some() {
            self.model.set_len(to);
        }
    }

    fn pin(&self, input: &mut Input) {
        let number = input.number(self.model.len());
        // A page of the file, or any.
        let page = if input.byte() % 2 == 0 { number / PAGE } else { number };
        let pinned = self.file.pin(page).map(|page| page.to_vec());
        let offset = page.checked_mul(PAGE).filter(|offset| self.has_cache && *offset < self.model.len());
        check(pinned, offset.map(|offset| self.model.read(offset, PAGE as usize)), &|| format!("pin {page}"));
    }

    fn advise(&self, input: &mut Input) {
        let kinds = [Advice::Normal, Advice::Random, Advice::Sequential, Advice::WillNeed, Advice::DontNeed];
        let (kind, bounds) = (input.byte(), input.byte());
        let mut bound = |kind: u8| match kind % 3 {
            0 => Bound::Included(input.number(self.model.len())),
            1 => Bound::Excluded(input.number(self.model.len())),
            _ => Bound::Unbounded,
        };
        let range = (bound(bounds), bound(bounds / 3));
        self.file.advise(range, kinds[usize::from(kind) % kinds.len()]).expect("advice about any range");
    }

    fn next_data(&self, input: &mut Input) {
        let end = self.model.len();
        let (offset, most) = (input.number(end), input.number(end));
        if end.saturating_sub(offset).min(most) > WALK_MAX {
            return;
        }
        let found = self.file.next_data(offset, most).expect("no drive fails");
        let data = found.clone().unwrap_or(end.max(offset)..end.max(offset));
        if most > 0 {
            assert!(self.model.is_zero(offset, data.start), "data between {offset} and {data:?}");
        }
        if let Some(data) = found {
            assert!(offset <= data.start && data.start < data.end && data.end <= end, "{data:?} from {offset} on");
            assert!(data.end - data.start <= most, "{data:?}, and at most {most}");
        }
    }

    /// Compares all pages that the model has, and the ends.
    fn compare(&self, file: &File) {
        let end = self.model.len();
        assert_eq!(file.len(), end);
        let ends = [0, end.saturating_sub(PAGE + 1)];
        for offset in self.model.offsets().chain(ends) {
            let mut buf = vec![0xA5; PAGE as usize + 2];
            let read = file.read_at(&mut buf, offset);
            if can_be(offset, buf.len()) {
                let read = read.expect("no drive fails");
                assert!(buf[..read] == self.model.read(offset, buf.len()), "the page at {offset} at the end");
            }
        }
    }
}

/// A gather of rows.
struct RowsCall<'a> {
    twin: &'a Twin,
    base: u64,
    row_len: usize,
    whole: usize,
    is_later: bool,
}

impl RowsCall<'_> {
    fn check<I: iomill::RowId>(&self, ids: &[I], number: impl Fn(I) -> i128) {
        let RowsCall { twin, base, row_len, whole, is_later } = *self;
        let mut out = vec![0xA5; whole];
        let got = match is_later {
            true => twin.block_on(twin.file.read_rows_async(out, ids, row_len, base)).map_err(Error::from),
            false => twin.file.read_rows(&mut out, ids, row_len, base).map(|()| out),
        };
        let start = |id: &I| {
            let start = number(*id).checked_mul(row_len as i128)? + i128::from(base);
            let end = start + row_len as i128;
            (number(*id) >= 0 && end <= i128::from(twin.model.len())).then_some(start as u64)
        };
        let starts: Option<Vec<u64>> = if row_len == 0 { None } else { ids.iter().map(start).collect() };
        let read = |starts: Vec<u64>| starts.iter().flat_map(|start| twin.model.read(*start, row_len)).collect();
        check(got, starts.map(read), &|| {
            let ids: Vec<i128> = ids.iter().map(|id| number(*id)).collect();
            format!("rows {ids:?} of {row_len} bytes from {base} on, later: {is_later}")
        });
    }
}

/// The error of iomill within one of `std::io`.
fn of_io(error: std::io::Error) -> Error {
    let text = error.to_string();
    match error.downcast::<Error>() {
        Ok(error) => error,
        Err(_) => panic!("no error of iomill: {text}"),
    }
}

fn options(world: &World, has_cache: bool) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform()).cache_bytes(if has_cache { 64 * PAGE } else { 0 })
}

/// The machine that the input asks for, with an empty file.
fn twin(input: &mut Input, world: &World) -> Twin {
    let (kind, shape) = (input.byte(), input.byte());
    if kind & 4 != 0 {
        let rates = Rates { short_read: 100, short_write: 100, interrupted: 100, ..Rates::default() };
        world.faults(|faults| faults.rates = rates);
    }
    let has_cache = kind & 1 == 0;
    let (machine, file) = if kind & 2 != 0 {
        let runtime = RuntimeOptions::like(options(world, has_cache)).start().expect("a runtime starts");
        let plain = PlainOptions::new().write(true).create(true).runtime(&runtime);
        let file = plain.open(world.path(0).join("plain")).expect("a plain file can be made");
        (Machine::Plain(runtime), file)
    } else {
        let array = options(world, has_cache).create(world.paths()).expect("an array can be made");
        let layout = [Layout::Striping, Layout::Rotated, Layout::Hash][usize::from(shape & 15) % 3];
        let block_bytes = [4096, 12288, 65536, 524_288][usize::from(shape >> 4) % 4];
        let block_bytes = if layout == Layout::Hash { block_bytes.min(12288) } else { block_bytes };
        let options = FileOptions::new().layout(layout).block_bytes(block_bytes).checksums(shape & 0x80 != 0);
        let file = array.create_file("file", &options).expect("a file can be made");
        (Machine::Array(array), file)
    };
    Twin { machine, file, model: Sparse::default(), has_cache, calls: 0 }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input { rest: data, last: 0 };
    let drives = usize::from(input.byte() % 4) + 1;
    let world = World::new(1).with_drives(drives, DriveModel::default());
    let mut twin = twin(&mut input, &world);
    for _ in 0..CALLS {
        if input.rest.is_empty() {
            break;
        }
        twin.call(&mut input);
    }
    twin.compare(&twin.file);
    twin.file.sync().expect("no drive fails");
    let Twin { machine, file, model, has_cache, calls } = twin;
    file.close().expect("no drive fails");
    // As another opening sees it.
    let (machine, file) = match machine {
        Machine::Array(array) => {
            array.close().expect("no drive fails");
            let array = options(&world, has_cache).read_only(true).open(world.path(0)).expect("it was closed");
            let file = array.open_file("file").expect("the file is there");
            (Machine::Array(array), file)
        }
        Machine::Plain(runtime) => {
            let file = PlainOptions::new().runtime(&runtime).open(world.path(0).join("plain")).expect("it is there");
            (Machine::Plain(runtime), file)
        }
    };
    let twin = Twin { machine, file, model, has_cache, calls };
    twin.compare(&twin.file);
    let Twin { machine, file, .. } = twin;
    let is_array = matches!(machine, Machine::Array(_));
    drop(file);
    // Read-ahead and futures that were dropped go on. On this machine, which has no threads, steps advance them.
    for step in 0.. {
        assert!(step < STEPS_MAX, "requests have not ended after {step} steps");
        if step > 64 && world.in_flight() == 0 {
            break;
        }
        machine.step();
    }
    drop(machine);
    assert_eq!(world.violations(), Vec::<String>::new());
    assert_eq!((world.in_flight(), world.abandoned(), world.open_files()), (0, 0, 0));
    if is_array {
        testing::check_clean(&world).expect("nothing is wrong");
    }
});
