//! Counters in the text format of Prometheus.

use std::fmt::Write;

use super::latency::{BUCKETS, end_ns};
use super::snapshot::{Counters, DriveCounters};

/// The number of buckets that one line adds up. Prometheus gets a bucket per power of two, because each bucket of each
/// drive is a time series.
const BUCKETS_PER_LINE: usize = 4;

type OfArray = (&'static str, &'static str, &'static str, fn(&Counters) -> u64);
type OfDrive = (&'static str, &'static str, &'static str, fn(&DriveCounters) -> u64);

const ARRAY: [OfArray; 12] = [
    ("cache_bytes", "gauge", "Memory for cached pages, in bytes.", |c| c.cache_bytes),
    ("cache_hits_total", "counter", "Pages found in the cache.", |c| c.hits),
    ("cache_misses_total", "counter", "Pages not found in the cache.", |c| c.misses),
    ("cache_fills_total", "counter", "Pages read into the cache.", |c| c.fills),
    ("cache_evictions_total", "counter", "Pages evicted for another page.", |c| c.evictions),
    ("cache_flushes_total", "counter", "Pages written from the cache to their drives.", |c| c.flushes),
    ("cache_bypasses_total", "counter", "Pages read or written past the cache.", |c| c.bypasses),
    ("cache_waits_total", "counter", "Waits for a page on which another call worked.", |c| c.waits),
    ("cache_pins_total", "counter", "Pins taken.", |c| c.pins),
    ("cache_read_ahead_total", "counter", "Pages read into the cache before a call asked for them.", |c| c.read_ahead),
    ("read_bytes_total", "counter", "Bytes that calls have read, or have begun to.", |c| c.bytes_read),
    ("written_bytes_total", "counter", "Bytes that calls have written, or have begun to.", |c| c.bytes_written),
];

const DRIVE: [OfDrive; 7] = [
    ("drive_reads_total", "counter", "Reads from a drive that succeeded.", |d| d.reads),
    ("drive_writes_total", "counter", "Writes to a drive that succeeded.", |d| d.writes),
    ("drive_syncs_total", "counter", "Syncs of parts on a drive that succeeded.", |d| d.syncs),
    ("drive_read_bytes_total", "counter", "Bytes read from a drive.", |d| d.read_bytes),
    ("drive_write_bytes_total", "counter", "Bytes written to a drive.", |d| d.write_bytes),
    ("drive_errors_total", "counter", "Requests to a drive that failed, after all retries.", |d| d.errors),
    ("drive_in_flight", "gauge", "Requests in flight on a drive.", |d| d.in_flight),
];

impl Counters {
    /// The counters in the text format of Prometheus.
    pub fn metrics(&self) -> String {
        let mut text = String::new();
        // A write to a string does not fail.
        let _ = self.write_metrics(&mut text);
        text
    }

    fn write_metrics(&self, text: &mut String) -> std::fmt::Result {
        for (name, kind, help, value) in ARRAY {
            head(text, name, kind, help)?;
            writeln!(text, "iomill_{name} {}", value(self))?;
        }
        for (name, kind, help, value) in DRIVE {
            head(text, name, kind, help)?;
            for (index, drive) in self.drives.iter().enumerate() {
                writeln!(text, "iomill_{name}{{drive=\"{index}\"}} {}", value(drive))?;
            }
        }
        let name = "drive_latency_seconds";
        head(text, name, "histogram", "Latencies of a sample of the reads and writes, in seconds.")?;
        for (index, drive) in self.drives.iter().enumerate() {
            let mut sum = 0u64;
            for (bucket, count) in drive.latency.counts.iter().enumerate() {
                sum = sum.wrapping_add(*count);
                // The last bucket has no end, and is written below as `+Inf`.
                if bucket % BUCKETS_PER_LINE == BUCKETS_PER_LINE - 1 && bucket + 1 < BUCKETS {
                    let end = end_ns(bucket) as f64 / 1e9;
                    writeln!(text, "iomill_{name}_bucket{{drive=\"{index}\",le=\"{end}\"}} {sum}")?;
                }
            }
            writeln!(text, "iomill_{name}_bucket{{drive=\"{index}\",le=\"+Inf\"}} {sum}")?;
            writeln!(text, "iomill_{name}_sum{{drive=\"{index}\"}} {}", drive.latency.sum_ns as f64 / 1e9)?;
            writeln!(text, "iomill_{name}_count{{drive=\"{index}\"}} {sum}")?;
        }
        Ok(())
    }
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) -> std::fmt::Result {
    writeln!(text, "# HELP iomill_{name} {help}\n# TYPE iomill_{name} {kind}")
}
