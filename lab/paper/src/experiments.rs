//! The experiments: the steps of each, the reading of their documents, and the test whether the work's finding holds
//! here.

use crate::experiment::{Experiment, Point, Scale, Shape, Step, Verdict};
use crate::read::{from_drives, grown, lines, measured, probed, program_rows, rows, simulated, text};
use crate::rig::Rig;

/// All experiments, in the order of the report.
pub static ALL: [Experiment; 18] = [
    Experiment {
        name: "steps-sc13",
        title: "Four steps, one after the other",
        work: "SC'13, figure 4",
        found: "Even interrupts, bound threads, the noop scheduler and I/O threads raise random reads from 209k to 765k a second.",
        steps: |scale| {
            vec![turns(
                scale,
                Rig::Drives(4),
                "steps",
                (20, 10),
                &["ladder", "--of", "sc13", "-a", "{drive}", "--size", scale.of("1GiB", "128MiB")],
            )]
        },
        points: |steps, documents| from_drives(steps, documents, |_, row| (text(row, "workload"), None)),
        judge: |points| {
            let step = |name: &str| best(points, |point| point.series.ends_with(name));
            compare("with all steps", step("io-threads"), "with none", step("plain"), 1.2)
        },
        shape: Shape::Bars,
        unit: "reads of 4 KiB a second",
    },
    Experiment {
        name: "file-systems",
        title: "An array beside a file system over the same drives",
        work: "SC'13, figure 5",
        found: "One file system on each drive, and the array above them, reads several times as fast as one file system on a RAID 0.",
        steps: |scale| {
            let rivals = scale.of("all", "uring-by-hand,pread");
            let size = scale.of("1GiB", "128MiB");
            let load = ["random", "-a", "{drive}", "--size", size, "--threads", "2", "--rivals", rivals];
            vec![
                turns(scale, Rig::Drives(4), "XFS on each drive", (110, 20), &load),
                turns(scale, Rig::Btrfs(4), "btrfs RAID 0", (110, 20), &load),
                turns(scale, Rig::Md(4), "XFS on md RAID 0", (110, 20), &load),
            ]
        },
        points: |steps, documents| from_drives(steps, documents, |step, _| (step.name.clone(), None)),
        judge: |points| {
            let of = |group: &str| best(points, |point| point.group == group && point.series != "iomill-null");
            let raids = ["btrfs RAID 0", "XFS on md RAID 0"].map(|group| (group, of(group)));
            let (group, raid) = raids
                .into_iter()
                .max_by(|one, two| one.1.unwrap_or(0.0).total_cmp(&two.1.unwrap_or(0.0)))
                .unwrap_or(("RAID 0", None));
            compare("XFS on each drive", of("XFS on each drive"), group, raid, 1.0)
        },
        shape: Shape::Bars,
        unit: "reads of 4 KiB a second",
    },
    Experiment {
        name: "drives",
        title: "More drives",
        work: "SC'13, figure 6",
        found: "Reads a second grow with the number of drives until the processors are the limit.",
        steps: |scale| {
            let counts = [1, 2, 4, 8].into_iter().filter(|count| *count <= scale.drives);
            counts
                .map(|count| {
                    turns(
                        scale,
                        Rig::Drives(count),
                        &count.to_string(),
                        (60, 8),
                        &[
                            "random",
                            "-a",
                            "{drive}",
                            "--size",
                            scale.of("512MiB", "128MiB"),
                            "--rivals",
                            "uring-by-hand",
                        ],
                    )
                })
                .collect()
        },
        points: |steps, documents| {
            let all = from_drives(steps, documents, |step, _| (step.name.clone(), step.name.parse().ok()));
            all.into_iter()
                .filter(|point| ["iomill-inline", "iomill-drive-threads", "uring-by-hand"].contains(&&*point.series))
                .collect()
        },
        judge: |points| {
            let of = |count: f64| best(points, |point| point.x == Some(count) && point.series == "iomill-inline");
            compare("4 drives", of(4.0), "1 drive", of(1.0), 3.0)
        },
        shape: Shape::Lines,
        unit: "reads of 4 KiB a second, over the number of drives",
    },
    Experiment {
        name: "no-hit",
        title: "Random reads of 128 bytes of data far larger than memory",
        work: "SC'13, figure 7",
        found: "Without hits the cache adds little to the cost of an access, and reads far more a second than Linux's page cache with the same memory.",
        steps: |scale| {
            let step = |threads: &u32| {
                let (number, rows) = (threads.to_string(), (4096 / threads).to_string());
                let line = ["rows", "{file}", "--row-size", "128", "--rows", &rows, "--threads", &number];
                turns(scale, Rig::File(scale.of(1024, 128)), &number, (90, 10), &line)
            };
            scale.of(&[1, 2, 16, 256][..], &[1, 16][..]).iter().map(step).collect()
        },
        points: |steps, documents| from_drives(steps, documents, |step, _| (format!("{} threads", step.name), None)),
        judge: |points| {
            let own = best(points, |point| point.series.starts_with("iomill"));
            let rival = best(points, |point| ["mmap", "mmap-random", "pread"].contains(&&*point.series));
            compare("iomill", own, "the page cache", rival, 1.0)
        },
        shape: Shape::Bars,
        unit: "rows of 128 bytes a second",
    },
    Experiment {
        name: "hit-rate",
        title: "The share of hits",
        work: "SC'13, figure 8",
        found: "Accesses a second grow with the share of hits, up to 16 million; the page cache falls behind from 80% on.",
        steps: |scale| {
            vec![
                turns(
                    scale,
                    Rig::Place,
                    "mixed",
                    (720, 40),
                    &[
                        "mixed",
                        "--dir",
                        "{place}",
                        "--cache",
                        scale.of("256MiB", "64MiB"),
                        "--hit-percent",
                        scale.of("0,20,40,60,80,90,95,99", "0,80,99"),
                    ],
                ),
                turns(
                    scale,
                    Rig::Place,
                    "100%hit-read-128B",
                    (140, 20),
                    &[
                        "warm",
                        "--dir",
                        "{place}",
                        "--size",
                        scale.of("1GiB", "128MiB"),
                        "--skew",
                        "uniform",
                        "--rivals",
                        "mmap,pread",
                    ],
                ),
            ]
        },
        points: |steps, documents| {
            let all = measured(steps, documents, |step, row| {
                let name = if step.name == "mixed" {
                    text(row, "workload")
                } else {
                    format!("{}, {} threads", step.name, row["threads"])
                };
                let share = name.split_once("%hit").and_then(|(share, _)| share.parse().ok());
                (name, share)
            });
            all.into_iter().filter(|point| point.x.is_some()).collect()
        },
        judge: |points| {
            let of = |share: f64, name: &str| best(points, |point| point.x == Some(share) && point.series == name);
            compare("iomill at 99% hits", of(99.0, "iomill-read_many"), "pread at 99%", of(99.0, "pread"), 1.0)
        },
        shape: Shape::Lines,
        unit: "reads of 1,000 bytes a second, over the share of hits (100: of 128 bytes, all in memory)",
    },
    Experiment {
        name: "nodes",
        title: "Pages in the caches of several NUMA nodes",
        work: "SC'13, figure 8, on a machine of four nodes",
        found: "Each node caches pages of its own, and threads ask other nodes by messages, many requests in each.",
        steps: |scale| {
            let size = scale.of("512MiB", "64MiB");
            let batches = scale.of("1,16,256", "1,256");
            // A disk has one node. Named drives have a node each, on a machine with several.
            let (rig, at) = match scale.are_named {
                true => (Rig::Drives(scale.drives.min(4)), ["-a", "{drive}"]),
                false => (Rig::Place, ["--dir", "{place}"]),
            };
            let sizes = ["--size", size, "--batch", batches, "--threads", scale.of("1,4", "2")];
            vec![turns(scale, rig, "nodes", (180, 30), &[&["nodes"][..], &at, &sizes].concat())]
        },
        points: |steps, documents| {
            measured(steps, documents, |_, row| {
                (format!("{}, {} threads", text(row, "workload"), row["threads"]), None)
            })
        },
        judge: |points| {
            let of = |name: &str| best(points, |point| point.group.starts_with("hits-256x") && point.series == name);
            compare("a cache on each node", of("iomill-auto"), "one for all", of("iomill-one-node"), 1.0)
        },
        shape: Shape::Bars,
        unit: "reads of 4 KiB a second; a machine of one node is measured as four",
    },
    Experiment {
        name: "set-size",
        title: "Pages in a set",
        work: "SC'13, figure 9",
        found: "Sets of 12 pages hit about as often as one list over all pages.",
        steps: |scale| traces(scale, "4,8,12,16,32", "duel,lru,global-lru"),
        points: |steps, documents| {
            simulated(steps, documents, |row| {
                let set = row["set_size"].as_f64();
                let series =
                    set.map_or_else(|| text(row, "policy"), |set| format!("{} in sets of {set}", text(row, "policy")));
                (series, set)
            })
        },
        judge: |points| {
            let sets = mean(points, |series| series == "lru in sets of 12");
            let global = mean(points, |series| series == "global-lru");
            match (sets, global) {
                (Some(sets), Some(global)) => Verdict {
                    holds: Some(sets > global - 2.0),
                    why: format!(
                        "LRU in sets of 12 pages hits {sets:.1}%, and over all pages {global:.1}%, as means over traces and sizes"
                    ),
                },
                _ => unknown(),
            }
        },
        shape: Shape::Bars,
        unit: "percent of accesses that hit, mean over the sizes of the cache",
    },
    Experiment {
        name: "policies",
        title: "Which page makes room",
        work: "SC'13, figure 10",
        found: "By its policy a set-associative cache hits as often as Linux's page cache, and more often on some loads.",
        steps: |scale| {
            traces(scale, "12", "lru,lfu,clock,gclock,sieve,s3-fifo,w-tinylfu,duel,global-lru,global-arc,optimum")
        },
        points: |steps, documents| simulated(steps, documents, |row| (text(row, "policy"), None)),
        judge: |points| match (mean(points, |series| series == "duel"), mean(points, |series| series == "global-arc")) {
            (Some(own), Some(arc)) => Verdict {
                holds: Some(own > arc),
                why: format!("the default policy hits {own:.1}%, global ARC {arc:.1}%, as means over traces and sizes"),
            },
            _ => unknown(),
        },
        shape: Shape::Bars,
        unit: "percent of accesses that hit, mean over the sizes of the cache",
    },
    work(
        "kv",
        "A key-value store under YCSB, beside RocksDB, LMDB, WiredTiger and redb",
        "SC'13, figure 11, and WiredTiger's mapped file I/O",
        "The same store is several times as fast on the array as on the page cache.",
    ),
    work(
        "graph",
        "Graph algorithms with the edges on drives",
        "SC'13, figure 11 (Neo4j), and Falcon's graphs",
        "Shortest paths run up to an order of magnitude faster than on the page cache.",
    ),
    work(
        "labels",
        "Labels in a volume, by 16 threads",
        "SC'13, figure 11 (synapse labelling)",
        "Small unaligned writes are several times as fast as on the page cache.",
    ),
    work(
        "vectors",
        "Vector search with the vectors on drives",
        "today's load",
        "None of the works has it; DiskANN reads pages by libaio without a cache.",
    ),
    work(
        "train",
        "Shuffled epochs over rows",
        "today's load",
        "None of the works has it; users map files or read each row by a call.",
    ),
    Experiment {
        name: "ior",
        title: "IOR: random requests of many lengths, N processes on one file",
        work: "SC'13, figures 12 and 13",
        found: "Asynchronous requests reach the drives' rate with one thread; blocking ones need many threads.",
        steps: |scale| {
            let mut steps = Vec::new();
            for (percent, what) in [("100", "read"), ("0", "write")] {
                for size in scale.of(&["4KiB", "64KiB", "4MiB"][..], &["4KiB", "1MiB"][..]) {
                    for threads in scale.of(&["1", "16"][..], &["1"][..]) {
                        let name = format!("{what} {size}, {threads} threads");
                        let line = [
                            "random",
                            "-a",
                            "{drive}",
                            "--size",
                            scale.of("1GiB", "128MiB"),
                            "--request-size",
                            size,
                            "--read-percent",
                            percent,
                            "--threads",
                            threads,
                            "--rivals",
                            scale.of("all", "pread"),
                        ];
                        let rounds = scale.of(&["--rounds", "3"][..], &[]);
                        steps.push(turns(scale, Rig::Drives(4), &name, (75, 8), &[&line, rounds].concat()));
                    }
                }
            }
            steps
        },
        points: |steps, documents| {
            let all = from_drives(steps, documents, |step, _| (step.name.clone(), None));
            all.into_iter().filter(|point| point.series != "iomill-null").collect()
        },
        judge: |points| {
            let of =
                |name: &str| best(points, |point| point.group.starts_with("read 4KiB, 1 ") && point.series == name);
            compare("64 futures from one thread", of("iomill-future-64"), "pread from one thread", of("pread"), 2.0)
        },
        shape: Shape::Bars,
        unit: "requests a second",
    },
    Experiment {
        name: "sizes",
        title: "Reads and writes of 512 bytes, 4 KiB and 64 KiB",
        work: "SC'13, table 3",
        found: "Small reads and writes keep the array's rate; at 64 KiB the drives' bandwidth is the limit.",
        steps: |scale| {
            let size = scale.of("1GiB", "128MiB");
            let random = |request: &str, percent: &str, name: &str| {
                turns(
                    scale,
                    Rig::Drives(4),
                    name,
                    (45, 10),
                    &["random", "-a", "{drive}", "--size", size, "--request-size", request, "--read-percent", percent],
                )
            };
            vec![
                turns(
                    scale,
                    Rig::File(scale.of(1024, 128)),
                    "read 512 B",
                    (60, 20),
                    &["rows", "{file}", "--row-size", "512"],
                ),
                random("4KiB", "100", "read 4 KiB"),
                random("64KiB", "100", "read 64 KiB"),
                random("4KiB", "0", "write 4 KiB"),
                random("64KiB", "0", "write 64 KiB"),
                turns(
                    scale,
                    Rig::Place,
                    "write 1,000 B",
                    (60, 20),
                    &["small-writes", "--dir", "{place}", "--cache", scale.of("256MiB", "32MiB")],
                ),
            ]
        },
        points: |steps, documents| {
            let all =
                from_drives(steps, documents, |step, row| (format!("{}, {}", step.name, text(row, "cache")), None));
            all.into_iter().filter(|point| point.series != "iomill-null").collect()
        },
        judge: |points| {
            let of = |name: &str| {
                best(points, |point| point.group.starts_with("read 4 KiB") && point.series.starts_with(name))
            };
            compare("iomill", of("iomill-inline"), "io_uring by hand", of("uring-by-hand"), 0.9)
        },
        shape: Shape::Bars,
        unit: "requests a second",
    },
    Experiment {
        name: "steps-falcon",
        title: "Order, merging, gathering, adaptive depth",
        work: "Falcon (ATC'17)",
        found: "Work that is done for each drive by itself, in batches, is up to several times as fast as in one block layer.",
        steps: |scale| {
            vec![turns(
                scale,
                Rig::Place,
                "steps",
                (240, 40),
                &[
                    "ladder",
                    "--of",
                    "falcon",
                    "--dir",
                    "{place}",
                    "--size",
                    scale.of("1GiB", "128MiB"),
                    "--drives",
                    "4",
                ],
            )]
        },
        points: |_, documents| {
            let ladders = documents
                .iter()
                .flat_map(lines)
                .flat_map(|document| document["ladders"].as_array().cloned().unwrap_or_default());
            ladders
                .flat_map(|ladder| {
                    rows(&ladder, |row| (format!("{} drives, {}", ladder["drives"], text(row, "workload")), None))
                })
                .collect()
        },
        judge: |points| {
            let of = |name: &str| best(points, |point| point.group.contains("sequential") && point.series == name);
            compare("with merging", of("iomill-falcon-inline-merge"), "plain", of("iomill-falcon-inline-plain"), 1.1)
        },
        shape: Shape::Bars,
        unit: "reads of 4 KiB a second",
    },
    Experiment {
        name: "mapped",
        title: "Mapped files beside system calls, and growth",
        work: "WiredTiger, mapped file I/O",
        found: "Reads of mapped data that is in memory are faster than system calls; growth needs space that was allocated ahead.",
        steps: |scale| {
            vec![on(scale, Rig::Place, "mmap-vs-syscall", scale.of(120, 30), &["mmap-vs-syscall", "--dir", "{place}"])]
        },
        points: |steps, documents| {
            let mut points = measured(steps, documents, |_, row| {
                (format!("{}, {}, {} threads", text(row, "workload"), text(row, "cache"), row["threads"]), None)
            });
            points.extend(documents.iter().flat_map(lines).flat_map(grown));
            points
        },
        judge: |points| {
            let of = |group: &str, name: &str| best(points, |point| point.group == group && point.series == name);
            let warm = "random-read-512B, warm, 1 threads";
            let reads = compare("the mapped engine", of(warm, "mmap-engine"), "pread", of(warm, "pread"), 1.0);
            let [ahead, late] = ["growth, allocated ahead", "growth, not allocated ahead"];
            let growth = compare("growth ahead", of(ahead, "mmap-engine"), "late growth", of(late, "mmap-engine"), 1.0);
            Verdict {
                holds: reads.holds.zip(growth.holds).map(|(reads, growth)| reads && growth),
                why: format!("{}; {}", reads.why, growth.why),
            }
        },
        shape: Shape::Bars,
        unit: "operations a second",
    },
    Experiment {
        name: "probe",
        title: "Where the time of an I/O goes",
        work: "Intel, SSD-ready platforms",
        found: "Software is the larger part of a fast drive's latency; cycles an I/O decide how many drives a core can serve.",
        steps: |scale| {
            vec![on(
                scale,
                Rig::Place,
                "probe",
                scale.of(60, 20),
                &[
                    "product",
                    "probe",
                    "{place}",
                    "--size",
                    scale.of("256MiB", "64MiB"),
                    "--seconds",
                    scale.of("0.5", "0.1"),
                ],
            )]
        },
        points: |_, documents| documents.iter().flat_map(lines).flat_map(probed).collect(),
        judge: |points| {
            let of = |name: &str| best(points, |point| point.series == name);
            match (of("platform"), of("whole")) {
                (Some(software), Some(whole)) => Verdict {
                    holds: Some(software > whole / 2.0),
                    why: format!("{software:.1} of the {whole:.1} us of a read pass outside the drive"),
                },
                _ => unknown(),
            }
        },
        shape: Shape::Bars,
        unit: "microseconds of a read of 4 KiB, one after the other",
    },
];

/// An experiment with one of the whole programs.
const fn work(name: &'static str, title: &'static str, work: &'static str, found: &'static str) -> Experiment {
    Experiment {
        name,
        title,
        work,
        found,
        steps: match name.as_bytes()[0] {
            b'k' => |scale| program(scale, "kv", "1GiB", (600, 60)),
            b'g' => |scale| program(scale, "graph", "1GiB", (300, 40)),
            b'l' => |scale| program(scale, "labels", "1GiB", (120, 20)),
            b'v' => |scale| program(scale, "vectors", "1GiB", (180, 30)),
            // A mapping with one thread takes ten minutes for three epochs over 1 GiB of rows of 512 bytes.
            _ => |scale| program(scale, "train", "256MiB", (700, 90)),
        },
        points: |_, documents| documents.iter().flat_map(lines).flat_map(program_rows).collect(),
        judge: |points| {
            let mut ratios: Vec<(f64, String)> = Vec::new();
            for point in points.iter().filter(|point| point.series == "iomill") {
                if let Some(rival) = best(points, |other| other.group == point.group && other.series != "iomill") {
                    ratios.push((point.value[0] / rival, point.group.clone()));
                }
            }
            ratios.sort_by(|one, two| one.0.total_cmp(&two.0));
            match (ratios.first(), ratios.last()) {
                (Some(least), Some(most)) => Verdict {
                    holds: Some(least.0 >= 1.0),
                    why: format!(
                        "iomill does {:.2}x (\"{}\") to {:.2}x (\"{}\") of the best rival",
                        least.0, least.1, most.0, most.1
                    ),
                },
                _ => unknown(),
            }
        },
        shape: Shape::Bars,
        unit: "operations a second",
    }
}

fn program(scale: &Scale, name: &str, size: &str, seconds: (u32, u32)) -> Vec<Step> {
    let line = ["work", name, "--dir", "{place}", "--size", scale.of(size, "64MiB"), "--rounds", scale.of("3", "1")];
    vec![on(scale, Rig::Place, name, scale.of(seconds.0, seconds.1), &line)]
}

fn on(_: &Scale, rig: Rig, name: &str, seconds: u32, arguments: &[&str]) -> Step {
    Step { name: name.to_owned(), rig, arguments: arguments.iter().map(ToString::to_string).collect(), seconds }
}

/// A measurement in which contenders take turns. A quick one has a turn of a tenth of a second.
fn turns(scale: &Scale, rig: Rig, name: &str, seconds: (u32, u32), arguments: &[&str]) -> Step {
    let short = if scale.is_quick { &["--rounds", "1", "--seconds", "0.1"][..] } else { &[] };
    on(scale, rig, name, scale.of(seconds.0, seconds.1), &[arguments, short].concat())
}

fn traces(scale: &Scale, set_sizes: &str, policies: &str) -> Vec<Step> {
    let step = |path: &std::path::PathBuf| {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let path = path.display().to_string();
        let line = [
            "replay",
            "--simulate",
            &path,
            "--set-size",
            set_sizes,
            "--policy",
            policies,
            "--limit",
            scale.of("18446744073709551615", "200000"),
        ];
        on(scale, Rig::Place, &name, scale.of(60, 10), &line)
    };
    scale.traces.iter().map(step).collect()
}

/// The largest value among some points.
fn best(points: &[Point], of: impl Fn(&Point) -> bool) -> Option<f64> {
    points.iter().filter(|point| of(point)).map(|point| point.value[0]).max_by(f64::total_cmp)
}

/// The mean over all groups.
fn mean(points: &[Point], of: impl Fn(&str) -> bool) -> Option<f64> {
    let values: Vec<f64> = points.iter().filter(|point| of(&point.series)).map(|point| point.value[0]).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn compare(one: &str, first: Option<f64>, other: &str, second: Option<f64>, goal: f64) -> Verdict {
    match (first, second) {
        (Some(first), Some(second)) => Verdict {
            holds: Some(first >= goal * second),
            why: format!(
                "{one} does {:.2}x of {other} ({} against {})",
                first / second,
                iomill_cli::human::count(first),
                iomill_cli::human::count(second)
            ),
        },
        _ => unknown(),
    }
}

fn unknown() -> Verdict {
    Verdict { holds: None, why: "the figure that decides it could not be measured here".to_owned() }
}
