//! Changes of the catalog by futures: the fsyncs that they share, and their outcomes after a crash.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use iomill::{Answer, Array, ArrayOptions, CreateOptions, Error, FileOptions, PutOptions, Result, When};
use iomill_sim::{DriveModel, Survival, World};

use super::crash::assert_clean_beside;
use super::harness::assert_tidy;

const MANY: u64 = 64;

fn options(world: &World) -> ArrayOptions {
    ArrayOptions::new().platform(world.platform())
}

fn names() -> impl Iterator<Item = String> {
    (0..MANY).map(|number| format!("file {number}"))
}

/// Steps the array until all answers are there.
fn all<T>(array: &Array, answers: impl IntoIterator<Item = Answer<T>>) -> Vec<Result<T>> {
    let answers: Vec<_> = answers.into_iter().collect();
    let mut context = Context::from_waker(Waker::noop());
    let mut come = |mut answer: Answer<T>| {
        for _ in 0..100_000 {
            if let Poll::Ready(result) = Pin::new(&mut answer).poll(&mut context) {
                return result;
            }
            array.step();
        }
        panic!("an answer does not come");
    };
    answers.into_iter().map(&mut come).collect()
}

fn well<T>(array: &Array, answers: impl IntoIterator<Item = Answer<T>>) -> Vec<T> {
    all(array, answers).into_iter().map(|result| result.unwrap()).collect()
}

/// Changes that wait at the same time share fsyncs: of the log, and of the shared part of each drive.
#[test]
fn futures_share_fsyncs() {
    let world = World::new(1).with_drives(2, DriveModel::default());
    // All begin with the first drive.
    let on_one = PutOptions::new().file(FileOptions::new().drives([0, 1]));
    for cache_bytes in [0, 1 << 20] {
        let array = options(&world).cache_bytes(cache_bytes);
        let array = if cache_bytes == 0 {
            array.create_with(world.paths(), &CreateOptions::new().copies(1))
        } else {
            array.open(world.path(0))
        }
        .unwrap();
        // These make room for others.
        well(&array, names().map(|name| array.put_async(&name, [1; 5000], &on_one)));
        let fsyncs_of = |what: &dyn Fn()| {
            let before = world.fsyncs();
            what();
            world.fsyncs() - before
        };
        let put = || {
            let put = |name: String| array.put_async(&name, [2; 5000], &on_one);
            let stats = well(&array, names().map(put));
            assert!(stats.iter().all(|stat| stat.len_bytes == 5000));
        };
        assert_eq!(fsyncs_of(&put), 2, "the shared part and the log");
        let name_them =
            || drop(well(&array, names().map(|name| array.set_attribute_async(&name, "key", Some("value")))));
        assert_eq!(fsyncs_of(&name_them), 1);
        let rename = || drop(well(&array, names().map(|name| array.rename_async(&name, &format!("new {name}")))));
        assert_eq!(fsyncs_of(&rename), 1);
        let create = || drop(well(&array, names().map(|name| array.create_file_async(&name, &FileOptions::new()))));
        assert_eq!(fsyncs_of(&create), 1);
        let delete = || drop(well(&array, names().map(|name| array.delete_async(&format!("new {name}")))));
        assert_eq!(fsyncs_of(&delete), 1);
        assert_eq!(array.unnamed_pages(), 0);
        well(&array, names().map(|name| array.delete_async(&name)));
        array.close().unwrap();
        assert_tidy(&world);
    }
}

/// Each future has the error of its own change, and the others of its turn succeed.
#[test]
fn an_error_is_of_one_future() {
    let world = World::new(2).with_drives(2, DriveModel::default());
    let array = options(&world).create_with(world.paths(), &CreateOptions::new().copies(1)).unwrap();
    array.put("there", &[1; 100], &PutOptions::new()).unwrap();
    let absent = PutOptions::new().when(When::Absent);
    let put = |name| array.put_async(name, vec![2; 100], &absent);
    let results = all(&array, [put("new"), put("there"), put("new"), put("bad\0name"), put("other")]);
    let [Ok(_), Err(Error::Exists { .. }), Err(Error::Exists { .. }), Err(Error::Invalid { .. }), Ok(_)] = &results[..]
    else {
        panic!("{results:?}");
    };
    assert_eq!(array.list("").names().unwrap(), ["new", "other", "there"]);
    array.close().unwrap();
    assert_tidy(&world);
}

/// A change that a future has acknowledged survives a crash. A change in progress survives whole or not at all.
#[test]
fn a_crash_leaves_what_was_answered() {
    for seed in 0..40 {
        let world = World::new(seed).with_drives(3, DriveModel::default());
        let array = ArrayOptions::new()
            .platform(world.platform())
            .create_with(world.paths(), &CreateOptions::new().copies(1))
            .unwrap();
        well(&array, names().map(|name| array.put_async(&name, vec![1; 5000], &PutOptions::new())));
        let put = |(number, name): (usize, String)| {
            let bytes = if number % 9 == 0 { 200_000 } else { 3000 };
            array.put_async(&name, vec![2; bytes], &PutOptions::new())
        };
        let mut answers: Vec<_> = names().enumerate().map(put).collect();
        (0..seed).for_each(|_| array.step());
        let mut context = Context::from_waker(Waker::noop());
        let answered: Vec<bool> =
            answers.iter_mut().map(|answer| Pin::new(answer).poll(&mut context).is_ready()).collect();
        world.crash_with(Survival::Nothing);
        drop(answers);
        drop(array);
        world.reboot();
        let array = ArrayOptions::new().platform(world.platform()).open(world.path(0)).unwrap();
        for (name, answered) in names().zip(answered) {
            let file = array.open_file(&name).unwrap();
            let mut got = vec![0; file.len() as usize];
            file.read_at(&mut got, 0).unwrap();
            let is_new = got.first() == Some(&2);
            assert!(got.iter().all(|byte| *byte == got[0]), "seed {seed}: {name} is a mixture");
            assert!(is_new || !answered, "seed {seed}: {name} was answered and is lost");
            assert!(is_new || got.len() == 5000, "seed {seed}: {name}");
        }
        assert_clean_beside(&world, array);
    }
}
