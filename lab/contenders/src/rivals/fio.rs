//! fio's io_uring engine, as it is usually run, and with the options that make it cheapest.
//!
//! Tuned, two jobs run one after the other. The first has no time stamps and yields operations and CPU time. The second
//! is short, has time stamps, and yields latencies. So fio does not pay for each operation for what other contenders
//! only sample. CPU time is fio's own count of its worker threads, without its start and its report. fio does not check
//! the pattern. It must report no error, and as many bytes as its operations need. Its writes leave other bytes.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use iomill::{Error, Result};
use serde_json::Value;

use super::uring::{self, BATCH};
use crate::contender::{Cache, Contender, FIO_IO_URING, FIO_IO_URING_TUNED, Sample, Slice};
use crate::target::Target;
use crate::task::Task;
use crate::workload::{Order, Workload};

/// How often a waiting measurement checks whether fio has ended and whether it is cancelled.
const TICK: Duration = Duration::from_millis(20);

/// The reason to leave fio out if it is not installed.
pub(super) const NOT_INSTALLED: &str = "fio is not installed";

/// The reason to leave fio out if it was built without io_uring. Its version precedes this text.
pub(super) const NO_IO_URING: &str = "has no io_uring engine";

/// See the head of this file.
#[derive(Debug)]
pub struct Fio {
    target: Target,
    workload: Workload,
    program: String,
    version: String,
    tuned: bool,
}

impl Fio {
    /// Uses the parts of `target`, with fio's usual options.
    pub fn new(target: Target) -> Fio {
        Fio::with_program(target, "fio")
    }

    /// Uses registered files and buffers, in batches, without time stamps.
    pub fn tuned(target: Target) -> Fio {
        Fio { tuned: true, ..Fio::new(target) }
    }

    /// Uses a given executable.
    pub fn with_program(target: Target, program: &str) -> Fio {
        Fio {
            target,
            workload: Workload::RANDOM_READ,
            program: program.to_owned(),
            version: String::new(),
            tuned: false,
        }
    }

    fn arguments(&self, slice: &Slice<'_>) -> Result<Vec<String>> {
        let w = &self.workload;
        let lens = self.target.part_lens();
        let shortest = lens.iter().copied().min().unwrap_or(0);
        let share = match w.order {
            Order::Random => shortest,
            // Each thread has a share of its own of each part, as with the other contenders.
            Order::Sequential => shortest / slice.threads.max(1) as u64,
        } / u64::from(w.block_bytes)
            * u64::from(w.block_bytes);
        let names: Result<Vec<String>> = self.target.parts().iter().map(|part| file_argument(&part.path)).collect();
        let depth = w.depth as usize * lens.len();
        let batch = BATCH.min(depth);
        let mut arguments = vec![
            "--output-format=json+".to_owned(),
            "--ioengine=io_uring".to_owned(),
            "--thread".to_owned(),
            "--direct=1".to_owned(),
            "--group_reporting".to_owned(),
            "--time_based".to_owned(),
            // Otherwise fio itself drops the files' cached pages and pays for pages that other contenders left.
            "--invalidate=0".to_owned(),
            "--randrepeat=0".to_owned(),
            format!("--filename={}", names?.join(":")),
            // The size is that of all files together. fio divides it evenly.
            format!("--size={}", share * lens.len() as u64),
            format!("--bs={}", w.block_bytes),
            format!("--iodepth={depth}"),
            format!("--numjobs={}", slice.threads.max(1)),
        ];
        if self.tuned {
            arguments.extend(tuned_arguments(batch));
        }
        arguments.extend(access_arguments(w, share));
        let seconds = slice.duration.as_secs_f64();
        let twice = [("figures", seconds, false), ("latency", seconds.min(1.0), true)];
        let once = [("figures", seconds, true)];
        for &(name, seconds, time_stamps) in if self.tuned { &twice[..] } else { &once[..] } {
            arguments.push(format!("--name={name}"));
            arguments.push("--stonewall".to_owned());
            // fio ends a job at a tick of its clock. A job below 100 ms would have few operations.
            arguments.push(format!("--runtime={}ms", ((seconds * 1e3) as u64).max(100)));
            arguments.push(format!("--gtod_reduce={}", i32::from(!time_stamps)));
        }
        Ok(arguments)
    }

    fn failed(&self, why: impl Into<String>) -> Error {
        Error::Tool { what: format!("{} ({})", self.program, self.version), why: why.into() }
    }
}

impl Contender for Fio {
    fn name(&self) -> &'static str {
        if self.tuned { FIO_IO_URING_TUNED } else { FIO_IO_URING }
    }

    fn cache(&self) -> Cache {
        Cache::Direct
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        workload.check()?;
        self.workload = *workload;
        let ask = |argument: &str| Command::new(&self.program).arg(argument).stdin(Stdio::null()).output();
        let version = match ask("--version") {
            Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Some(NOT_INSTALLED.into())),
            Err(e) => return Err(Error::io("run", &self.program, e)),
        };
        self.version = version;
        let engines = ask("--enghelp").map_err(|e| Error::io("run", &self.program, e))?;
        if !String::from_utf8_lossy(&engines.stdout).contains("io_uring") {
            return Ok(Some(format!("{} {NO_IO_URING}", self.version)));
        }
        uring::why_not().map_or_else(|| self.target.why_not_direct(), |why| Ok(Some(why)))
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        let arguments = self.arguments(slice)?;
        // fio would extend a short file with bytes of its own, and read those.
        self.target.check_lens()?;
        self.target.drop_cached()?;
        let child = Command::new(&self.program)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Error::io("run", &self.program, e))?;
        let Some(output) = wait(child, slice.cancel).map_err(|e| Error::io("run", &self.program, e))? else {
            return Sample::empty();
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(self.failed(format!("{}: {}", output.status, said.trim())));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        // fio may print warnings before the report.
        let report = text.find('{').map(|start| serde_json::from_str::<Value>(&text[start..]));
        match report {
            Some(Ok(report)) => {
                let latency = if self.tuned { "latency" } else { "figures" };
                let sample = parse(&report, latency, u64::from(self.workload.block_bytes), slice.threads);
                sample.map_err(|why| self.failed(why))
            }
            Some(Err(e)) => Err(self.failed(format!("its report is not JSON: {e}"))),
            None => Err(self.failed("it printed no report")),
        }
    }

    fn spoils(&self) -> bool {
        self.workload.writes()
    }

    fn notes(&self) -> Vec<String> {
        let how = if self.tuned {
            format!("batches of {BATCH}, registered files and buffers, latency from a second job")
        } else {
            "no other option that affects speed".to_owned()
        };
        let depth = self.workload.depth;
        vec![format!("{}: direct, iodepth {depth} per drive and thread, {how}; bytes not checked", self.version)]
    }
}

/// A path for fio's command line, where `:` separates files.
fn file_argument(path: &Path) -> Result<String> {
    let text = path.to_str().ok_or_else(|| Error::invalid(format!("{path:?}"), "fio takes paths in UTF-8 only"))?;
    Ok(text.replace(':', "\\:"))
}

fn tuned_arguments(batch: usize) -> Vec<String> {
    vec![
        "--registerfiles=1".to_owned(),
        "--fixedbufs=1".to_owned(),
        "--nonvectored=1".to_owned(),
        "--norandommap".to_owned(),
        format!("--iodepth_batch_submit={batch}"),
        "--iodepth_batch_complete_min=1".to_owned(),
        format!("--iodepth_batch_complete_max={batch}"),
    ]
}

fn access_arguments(w: &Workload, share: u64) -> Vec<String> {
    let pattern = match (w.order, w.read_percent) {
        (Order::Random, 100) => "randread",
        (Order::Random, 0) => "randwrite",
        (Order::Random, _) => "randrw",
        (Order::Sequential, 100) => "read",
        (Order::Sequential, 0) => "write",
        (Order::Sequential, _) => "rw",
    };
    let mut arguments = vec![format!("--rw={pattern}")];
    if !matches!(w.read_percent, 0 | 100) {
        arguments.push(format!("--rwmixread={}", w.read_percent));
    }
    match w.order {
        Order::Random => arguments.push("--file_service_type=random".to_owned()),
        Order::Sequential => {
            arguments.push("--file_service_type=roundrobin".to_owned());
            arguments.push(format!("--offset_increment={share}"));
        }
    }
    arguments
}

/// Waits for the end of fio and reads its output. Returns `None` if the slice was cancelled.
fn wait(mut child: Child, cancel: &AtomicBool) -> std::io::Result<Option<Output>> {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        let stdout = scope.spawn(|| read_all(out));
        let stderr = scope.spawn(|| read_all(err));
        let (status, cancelled) = loop {
            if let Some(status) = child.try_wait()? {
                break (status, false);
            }
            if cancel.load(Ordering::Relaxed) {
                child.kill()?;
                break (child.wait()?, true);
            }
            thread::sleep(TICK);
        };
        let lost = |_| std::io::Error::other("reading what it printed panicked");
        let (stdout, stderr) = (stdout.join().map_err(lost)??, stderr.join().map_err(lost)??);
        Ok((!cancelled).then_some(Output { status, stdout, stderr }))
    })
}

fn read_all(pipe: Option<impl Read>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Makes a sample from fio's report on the jobs of `Fio::arguments`. `latency` names the job with time stamps.
fn parse(report: &Value, latency: &str, block_bytes: u64, threads: usize) -> std::result::Result<Sample, String> {
    let jobs = report["jobs"].as_array().ok_or("its report has no jobs")?;
    let job = |name: &str| jobs.iter().find(|job| job["jobname"] == name).ok_or(format!("its report lacks job {name}"));
    let (figures, latency) = (job("figures")?, job(latency)?);
    for job in [figures, latency] {
        if job["error"] != 0 {
            return Err(format!("a job failed with error {}", job["error"]));
        }
    }
    let number = |value: &Value, what: &str| value[what].as_f64().ok_or(format!("its report lacks {what}"));
    let mut sample = Sample::empty().map_err(|e| e.to_string())?;
    let mut runtime_ms: f64 = 0.0;
    for direction in ["read", "write"] {
        let io = &figures[direction];
        sample.ops += number(io, "total_ios")? as u64;
        sample.bytes += number(io, "io_bytes")? as u64;
        runtime_ms = runtime_ms.max(number(io, "runtime")?);
        let bins = latency[direction]["clat_ns"]["bins"].as_object();
        for (ns, count) in bins.into_iter().flatten() {
            let (Ok(ns), Some(count)) = (ns.parse(), count.as_u64()) else {
                return Err(format!("an unknown bin of latencies: {ns} {count}"));
            };
            sample.latency_ns.saturating_record_n(ns, count);
        }
    }
    if sample.ops == 0 || runtime_ms <= 0.0 || sample.bytes != sample.ops * block_bytes {
        return Err(format!("it counted {} operations and {} bytes in {runtime_ms} ms", sample.ops, sample.bytes));
    }
    sample.wall = Duration::from_secs_f64(runtime_ms / 1e3);
    // Percent of the run time of all its threads together.
    let percent = number(figures, "usr_cpu")? + number(figures, "sys_cpu")?;
    let job_ms = number(figures, "job_runtime")?;
    if job_ms < 0.5 * runtime_ms * threads as f64 {
        return Err(format!("it reports only {job_ms} ms for {threads} threads in {runtime_ms} ms"));
    }
    sample.cpu_us = percent / 100.0 * job_ms * 1e3;
    Ok(sample)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report() -> Value {
        let idle = json!({"total_ios": 0, "io_bytes": 0, "runtime": 0, "clat_ns": {}});
        json!({"jobs": [
            {"jobname": "figures", "error": 0, "usr_cpu": 10.0, "sys_cpu": 90.0, "job_runtime": 4000,
             "read": {"total_ios": 1000, "io_bytes": 4_096_000, "runtime": 2000, "clat_ns": {}}, "write": idle},
            {"jobname": "latency", "error": 0, "usr_cpu": 10.0, "sys_cpu": 90.0, "job_runtime": 2000,
             "read": {"total_ios": 10, "io_bytes": 40_960, "runtime": 1000,
                      "clat_ns": {"bins": {"5000": 9, "80000": 1}}}, "write": idle},
        ]})
    }

    #[test]
    fn a_report_becomes_a_sample() {
        let sample = parse(&report(), "latency", 4096, 2).unwrap();
        assert_eq!((sample.ops, sample.bytes, sample.wall), (1000, 4_096_000, Duration::from_secs(2)));
        assert_eq!(sample.cpu_us_per_op(), 4000.0);
        assert_eq!(sample.latency_ns.len(), 10);
        assert!(sample.latency_ns.value_at_quantile(0.5).abs_diff(5000) < 10);
    }

    #[test]
    fn a_report_that_cannot_be_is_an_error() {
        type Change = fn(&mut Value);
        let changes: [(Change, &str); 6] = [
            (|r| r["jobs"][0]["error"] = json!(5), "error 5"),
            (|r| r["jobs"][0]["read"]["io_bytes"] = json!(7), "7 bytes"),
            (|r| r["jobs"][0]["read"]["total_ios"] = json!(0), "0 operations"),
            (|r| r["jobs"][1]["jobname"] = json!("other"), "latency"),
            (|r| r["jobs"][0]["usr_cpu"] = Value::Null, "usr_cpu"),
            (|r| r["jobs"] = Value::Null, "no jobs"),
        ];
        for (change, said) in changes {
            let mut report = report();
            change(&mut report);
            let error = parse(&report, "latency", 4096, 2).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert!(parse(&report(), "latency", 4096, 8).is_err(), "the run time of 8 threads cannot be 4 s of 2 s each");
    }

    #[test]
    fn missing_fio_leaves_the_row_out() {
        let dir = tempfile::tempdir().unwrap();
        let target =
            Target::write(&[dir.path().to_owned()], "f", 1 << 16, 0, &AtomicBool::new(false), &mut |_, _| ()).unwrap();
        let fio = || Fio::with_program(target.clone(), "/nonexistent/fio");
        for mut fio in [fio(), Fio { tuned: true, ..fio() }] {
            assert_eq!(fio.prepare(&Workload::RANDOM_READ).unwrap().as_deref(), Some(NOT_INSTALLED), "{}", fio.name());
        }
    }

    #[test]
    fn colons_in_paths_are_escaped() {
        assert_eq!(file_argument(Path::new("/a:b/c")).unwrap(), "/a\\:b/c");
    }
}
