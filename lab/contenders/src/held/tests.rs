use std::io::Cursor;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::protocol::{Answer, Figures, Job, Request};
use super::*;
use crate::access::Access;
use crate::arena::{Arena, Shape};
use crate::draw::Choice;
use crate::small_writes::SmallWrites;

const ACCESS: Access = Access {
    choice: Choice::Hits(80),
    slot_bytes: 4096,
    op_bytes: 1000,
    read_percent: 100,
    len_bytes: 6 << 20,
    cache_bytes: 1 << 20,
    batch: 1,
};

fn arena() -> (tempfile::TempDir, Arena) {
    let base = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let mut arena = Arena::fresh(&base.path().join("array"), 3).unwrap();
    let shape = Shape { len_bytes: 6 << 20, layout: iomill::FileOptions::new() };
    arena.fill(&shape, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
    (base, arena)
}

fn job(arena: &Arena, mapped: bool, access: Access) -> Job {
    let (drives, file_name) = (arena.drives().to_owned(), arena.file_name().to_owned());
    Job::Access { mapped, drives, file_name, access }
}

/// The answers of a process to these requests. Each slice begins as soon as it is set up.
fn answers(requests: &[Request]) -> Vec<Answer> {
    let mut all = all_answers(&requests.iter().flat_map(begun).collect::<Vec<_>>());
    all.retain(|answer| *answer != Answer::SetUp);
    all
}

fn begun(request: &Request) -> Vec<Request> {
    let begins = matches!(request, Request::Run { .. }).then_some(Request::Begin);
    [request.clone()].into_iter().chain(begins).collect()
}

fn all_answers(requests: &[Request]) -> Vec<Answer> {
    let lines: Vec<String> = requests.iter().map(|request| request.line().unwrap()).collect();
    let mut output = Vec::new();
    serve(Cursor::new(lines.join("\n")), &mut output).unwrap();
    String::from_utf8(output).unwrap().lines().map(|line| Answer::parse(line).unwrap()).collect()
}

fn slice(verify: bool) -> Request {
    Request::Run { threads: 2, duration_us: 50_000, verify }
}

fn ops(answer: &Answer) -> u64 {
    match answer {
        Answer::Sample(figures) => figures.clone().into_sample().unwrap().ops,
        other => panic!("{other:?}"),
    }
}

#[test]
fn reads_and_updates_are_verified() {
    let (_base, arena) = arena();
    for mapped in [false, true] {
        for choice in [Choice::Uniform, Choice::Zipf, Choice::Hits(50)] {
            let access = Access { choice, ..ACCESS };
            let all = answers(&[Request::Prepare(job(&arena, mapped, access)), slice(true), slice(false)]);
            assert_eq!(all[0], Answer::Ready);
            assert!(all[1..].iter().all(|answer| ops(answer) > 0), "{mapped} {choice:?}");
        }
    }
    let updates = Access { choice: Choice::Zipf, slot_bytes: 1024, read_percent: 50, ..ACCESS };
    let before = arena.target().unwrap();
    let all = answers(&[Request::Prepare(job(&arena, false, updates)), slice(true)]);
    assert!(ops(&all[1]) > 0);
    for (index, part) in before.parts().iter().enumerate() {
        let bytes = std::fs::read(&part.path).unwrap();
        before.verify_bytes(index, 0, &bytes[..part.len_bytes as usize]).unwrap();
    }
    // Timed updates write other bytes, which a verifying slice then sees.
    let all = answers(&[Request::Prepare(job(&arena, false, updates)), slice(false), slice(true)]);
    assert!(ops(&all[1]) > 0);
    assert!(matches!(&all[2], Answer::Failed(why) if why.contains("not what was written")), "{:?}", all[2]);
    let all = answers(&[Request::Prepare(job(&arena, true, updates)), slice(true)]);
    assert!(matches!(&all[0], Answer::LeftOut(why) if why.contains("races")), "{:?}", all[0]);
    assert!(matches!(&all[1], Answer::Failed(why) if why.contains("prepare")), "{:?}", all[1]);
}

#[test]
fn a_slice_waits_until_it_is_to_begin() {
    let (_base, arena) = arena();
    let prepare = Request::Prepare(job(&arena, false, ACCESS));
    let all = all_answers(&[prepare.clone(), slice(false), Request::Begin, slice(false), slice(false)]);
    assert_eq!((&all[0], &all[1], &all[3]), (&Answer::Ready, &Answer::SetUp, &Answer::SetUp));
    assert!(ops(&all[2]) > 0);
    assert!(matches!(&all[4], Answer::Failed(why) if why.contains("begin it first")), "{:?}", all[4]);
    assert_eq!(all.len(), 5);
}

/// On a busy machine a slice may end before its threads start.
#[test]
fn a_slice_without_time_has_operations() {
    let (base, arena) = arena();
    let path = base.path().join("f");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let writes = SmallWrites { op_bytes: 1000, cache_bytes: 1 << 20, len_bytes: 1 << 20 };
    for job in [job(&arena, false, ACCESS), job(&arena, true, ACCESS), Job::Write { path: path.clone(), writes }] {
        let none = |verify| Request::Run { threads: 4, duration_us: 0, verify };
        let all = answers(&[Request::Prepare(job.clone()), none(true), none(false)]);
        assert!(all[1..].iter().all(|answer| ops(answer) >= 4), "{job:?}");
    }
}

#[test]
fn a_file_system_that_is_memory_is_left_out_with_the_reason() {
    // If there is a writable file system in memory.
    let Ok(base) = tempfile::tempdir_in("/dev/shm") else { return };
    let mut arena = Arena::fresh(&base.path().join("array"), 2).unwrap();
    let shape = Shape { len_bytes: 6 << 20, layout: iomill::FileOptions::new() };
    arena.fill(&shape, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
    let helper = Helper { program: "true".into(), arguments: Vec::new() };
    let make = |_: &Access| -> Job { unreachable!("its process is not asked") };
    let mut held = Held::new("pread", &helper, make).over_drives(arena.target().unwrap());
    let why = held.prepare(&ACCESS).unwrap().unwrap();
    assert!(why.contains("brought nothing from a drive"), "{why}");
}

#[test]
fn writes_arrive_in_the_file() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let writes = SmallWrites { op_bytes: 1000, cache_bytes: 1 << 20, len_bytes: 1 << 20 };
    let all = answers(&[Request::Prepare(Job::Write { path: path.clone(), writes }), slice(true), slice(false)]);
    assert!(ops(&all[1]) > 0 && ops(&all[2]) > 0);
    assert!(std::fs::read(&path).unwrap().iter().any(|&byte| byte != 0));
    let gone = Job::Write { path: dir.path().join("none"), writes };
    assert!(matches!(&answers(&[Request::Prepare(gone)])[0], Answer::Failed(why) if why.contains("none")));
}

#[test]
fn a_line_that_is_no_request_is_answered_with_an_error() {
    let mut output = Vec::new();
    serve(Cursor::new("hello\n"), &mut output).unwrap();
    assert!(matches!(Answer::parse(&String::from_utf8(output).unwrap()).unwrap(), Answer::Failed(_)));
}

#[test]
fn figures_travel_unchanged() {
    let mut sample = Sample { ops: 7, bytes: 9, cpu_us: 1.5, fetched_bytes: Some(3), ..Sample::empty().unwrap() };
    sample.wall = Duration::from_micros(1234);
    [100, 2_000, 2_000, 70_000_000_000].iter().for_each(|&ns| sample.latency_ns.saturating_record(ns));
    let line = Answer::Sample(Figures::of(&sample)).line().unwrap();
    let Answer::Sample(figures) = Answer::parse(&line).unwrap() else { panic!("{line}") };
    let back = figures.into_sample().unwrap();
    assert_eq!((back.ops, back.bytes, back.cpu_us, back.wall), (7, 9, 1.5, sample.wall));
    assert_eq!((back.fetched_bytes, back.latency_ns.len()), (Some(3), 4));
    for quantile in [0.1, 0.5, 0.99] {
        assert_eq!(back.latency_ns.value_at_quantile(quantile), sample.latency_ns.value_at_quantile(quantile));
    }
}

#[test]
fn a_process_that_cannot_answer_is_left_out() {
    let (_base, arena) = arena();
    let (drives, file_name) = (arena.drives().to_owned(), arena.file_name().to_owned());
    for (program, said) in [("true", "has ended"), ("/nonexistent/iomill", "/nonexistent/iomill")] {
        let helper = Helper { program: program.into(), arguments: Vec::new() };
        let (drives, file_name) = (drives.clone(), file_name.clone());
        let make = move |access: &Access| {
            let (drives, file_name) = (drives.clone(), file_name.clone());
            Job::Access { mapped: false, drives, file_name, access: *access }
        };
        match Held::new("pread", &helper, make).prepare(&ACCESS) {
            // The broken pipe or the missing answer may be noticed first. Without a cgroup neither happens.
            Ok(why) => {
                let why = why.unwrap();
                assert!(
                    why.contains("cannot be limited") || why.contains(said) || why.contains("Broken pipe"),
                    "{why}"
                );
            }
            Err(error) => assert!(program != "true" && error.to_string().contains(said), "{error}"),
        }
    }
}
