//! The meaning of the figures, in plain words.

use crate::human;

use super::figures::{Adapter, BUSY, DriveFigures, Figures, is_busy, is_crowded, slow_and_fast};
use super::raw::RawFigures;
use iomill_loops::served::Served;

/// If all drives together reach less than this share of the sum of each alone, something that they share limits them.
const TOGETHER: f64 = 0.85;

/// One sentence for each finding, the limit first.
pub fn words(figures: &Figures) -> Vec<String> {
    let mut words = match (figures.drives.is_empty(), figures.raw.is_empty()) {
        (true, false) => Vec::new(),
        _ => vec![limit(figures)],
    };
    words.extend(disturbed(figures));
    words.extend(same_device(figures));
    words.extend(one_core(figures));
    words.extend(latency(figures));
    words.extend(depth(figures));
    words.extend(uneven(figures));
    words.extend(cheapest(figures));
    words.extend(figures.served.as_ref().map(served));
    words.extend(figures.raw.iter().map(raw));
    words
}

/// What limits all drives with all threads.
fn limit(figures: &Figures) -> String {
    let Some(all) = figures.drive_counts.last() else { return "nothing was measured".to_owned() };
    let cpus = figures.machine.cores_allowed.max(1) as f64;
    let reached = human::count(all.iops);
    if is_busy(all, figures.machine.cores_allowed) {
        let who = match all.threads {
            _ if cpus == 1.0 => "the only processor is".to_owned(),
            1 => "the one thread's processor is".to_owned(),
            threads => format!("the {threads} threads' processors are"),
        };
        return format!(
            "{who} the limit: {reached} reads of 4 KiB a second from {} at {} of CPU time each",
            drives(all.drives),
            human::time_us(all.cpu_us_per_op)
        );
    }
    let alone: f64 = figures.drives.iter().map(DriveFigures::best_iops).sum();
    let share = all.iops / alone.max(1e-9);
    let busy = 100.0 * all.cpus_used / cpus;
    if all.drives == 1 {
        return format!(
            "the drive is the limit: {reached} reads of 4 KiB a second, with {busy:.0}% of the processors busy"
        );
    }
    if let Some(adapter) = narrow_adapter(figures) {
        let alone = figures.adapters.iter().find(|one| one.name == adapter.name).map_or(0.0, |one| one.alone_iops);
        return format!(
            "the adapter {} is the limit: its {} do {} reads of 4 KiB a second together, {:.0}% of what they do one by one",
            adapter.name,
            drives(adapter.drives.len()),
            human::count(adapter.together.iops),
            100.0 * adapter.together.iops / alone.max(1e-9)
        );
    }
    if share >= TOGETHER {
        return format!(
            "the drives are the limit: {reached} reads of 4 KiB a second, {:.0}% of what they do one by one, with {busy:.0}% of the processors busy",
            100.0 * share
        );
    }
    format!(
        "something that the drives share is the limit (one device below them, an adapter, a bus, the host): together they do \
         {reached} reads of 4 KiB a second, {:.0}% of what they do one by one, with {busy:.0}% of the processors busy",
        100.0 * share
    )
}

/// Says how much of the CPUs other programs used. Time in interrupts counts for the drives.
fn disturbed(figures: &Figures) -> Option<String> {
    let cpus = figures.machine.cores_allowed.max(1) as f64;
    let all = figures.drive_counts.last()?;
    let others = cpus - all.cpus_used - all.cpus_idle? - all.cpus_interrupts?;
    (others > (1.0 - BUSY) * cpus).then(|| {
        format!(
            "other programs, the kernel's threads, or other guests of the host had {others:.1} of the {cpus} processors meanwhile; \
             measure again on a quiet machine"
        )
    })
}

/// The adapter that limits its drives most, if the CPUs do not limit them.
fn narrow_adapter(figures: &Figures) -> Option<&Adapter> {
    let share = |adapter: &Adapter| adapter.together.iops / adapter.alone_iops.max(1e-9);
    let narrow = figures
        .adapters
        .iter()
        .filter(|one| share(one) < TOGETHER && !is_busy(&one.together, figures.machine.cores_allowed));
    narrow.min_by(|a, b| share(a).total_cmp(&share(b)))
}

/// Names directories that lie on the same device.
fn same_device(figures: &Figures) -> Option<String> {
    let devices = || figures.drives.iter().flat_map(|drive| &drive.devices);
    let shared = devices().find(|device| devices().filter(|other| other == device).count() > 1)?;
    let on: Vec<String> = figures
        .drives
        .iter()
        .filter(|drive| drive.devices.contains(shared))
        .map(|drive| drive.path.display().to_string())
        .collect();
    Some(format!("{} are on one device, {shared}: they share its limit, and count as one drive", on.join(", ")))
}

fn drives(count: usize) -> String {
    if count == 1 { "1 drive".to_owned() } else { format!("{count} drives") }
}

fn one_core(figures: &Figures) -> Option<String> {
    let best = figures.depths.iter().max_by(|a, b| a.iops.total_cmp(&b.iops))?;
    let how = match best.cpus_used >= BUSY {
        true => "which keeps it fully busy",
        false if is_crowded(best, figures.machine.cores_allowed.max(1)) => "and other programs use part of it",
        false => "and is not fully busy",
    };
    let core = format!(
        "one core reads {} pages of 4 KiB a second, {how}; each costs {}",
        human::count(best.iops),
        human::time_us(best.cpu_us_per_op)
    );
    let [one, .., last] = &figures.threads[..] else { return Some(core) };
    let linear = last.of_linear.map_or(String::new(), |share| format!(" ({:.0}% of linear)", 100.0 * share));
    Some(format!(
        "{core}; with {} in flight 1 thread reads {} and {} read {}{linear}",
        one.depth,
        human::count(one.iops),
        last.threads,
        human::count(last.iops)
    ))
}

fn latency(figures: &Figures) -> Option<String> {
    let drive = figures.drives.iter().max_by(|a, b| a.latency.p50_us.total_cmp(&b.latency.p50_us))?;
    let latency = &drive.latency;
    let whole = format!("a lone read of 4 KiB takes {}", human::time_us(latency.p50_us));
    let share = 100.0 * latency.device_us / latency.split_us.max(1e-9);
    let (split, platform) = (human::time_us(latency.split_us), human::time_us(latency.platform_us));
    // The split times do not add up to the median, so the text gives each part with its own whole.
    let mut words = match latency.submit_us {
        _ if !latency.is_split() => {
            format!("{whole}, {split} on average; the drive's part of that is counted too coarsely to tell")
        }
        Some(_) => {
            format!("{whole}; of the {split} of a typical read the drive takes {share:.0}% and the platform {platform}")
        }
        None => {
            format!("{whole}, {split} on average, of which the drive takes {share:.0}% and the platform {platform}")
        }
    };
    if let (Some(before), Some(after)) = (latency.submit_us, latency.complete_us) {
        words.push_str(&format!(
            " ({} before the driver has the read, {} after the drive is done)",
            human::time_us(before),
            human::time_us(after)
        ));
    }
    Some(words)
}

fn depth(figures: &Figures) -> Option<String> {
    let enough = figures.depths.iter().find(|point| point.depth == figures.best_depth)?;
    let first = figures.depths.first()?;
    let gain = enough.iops / first.iops.max(1e-9);
    let own: Vec<String> = figures.drives.iter().map(|drive| drive.best_depth.to_string()).collect();
    let own = if own.len() > 1 { format!("; alone, the drives need {}", own.join(", ")) } else { String::new() };
    Some(format!(
        "{} in flight on each drive {} enough for one core; that is {gain:.1} times the speed of one at a time{own}",
        figures.best_depth,
        if figures.best_depth == 1 { "is" } else { "are" }
    ))
}

/// The paths that cost the least and the most CPU time.
fn cheapest(figures: &Figures) -> Option<String> {
    let unpolled = || figures.paths.iter().filter(|cost| !cost.polled);
    let least = unpolled().min_by(|a, b| a.cpu_us_per_op.total_cmp(&b.cpu_us_per_op))?;
    let most = unpolled().max_by(|a, b| a.cpu_us_per_op.total_cmp(&b.cpu_us_per_op))?;
    Some(format!(
        "the cheapest path of a read is {} at {} of CPU time, the most expensive one is {} at {}",
        least.words(),
        human::time_us(least.cpu_us_per_op),
        most.words(),
        human::time_us(most.cpu_us_per_op)
    ))
}

fn served(served: &Served) -> String {
    let who = if served.drive_threads { "a thread for each drive" } else { "the caller itself" };
    format!("iomill's reads are best driven by {who}")
}

fn raw(raw: &RawFigures) -> String {
    let best = raw.depths.iter().map(|depth| depth.iops).fold(0.0, f64::max);
    format!(
        "the raw device {} gives one core {} reads of 4 KiB a second with {} in flight, and a lone one takes {}",
        raw.path.display(),
        human::count(best),
        raw.best_depth,
        human::time_us(raw.latency.p50_us)
    )
}

/// Names drives of different speeds.
fn uneven(figures: &Figures) -> Option<String> {
    let (slow, fast) = slow_and_fast(&figures.drives, figures.machine.cores_allowed)?;
    let weights: Vec<String> = figures.weights.iter().map(u32::to_string).collect();
    Some(format!(
        "{} does {:.1} times the reads of {}; files with the striping layout are as slow as the slower drive; the hash layout with weights {} uses both fully",
        fast.path.display(),
        fast.best_iops() / slow.best_iops().max(1e-9),
        slow.path.display(),
        weights.join(",")
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::figures::tests::point;
    use super::super::figures::{DriveFigures, Figures};
    use super::*;
    use crate::machine::Machine;
    use iomill_loops::latency::{Costs, Latency};

    pub(crate) fn figures(alone: [f64; 2], together: f64, cpus_used: f64) -> Figures {
        let latency = Latency {
            p50_us: 80.0,
            p99_us: 90.0,
            mean_us: 80.0,
            split_us: 80.0,
            device_us: 72.0,
            split_error_us: Some(0.1),
            platform_us: 8.0,
            submit_us: Some(5.0),
            complete_us: Some(3.0),
            cpu_us: 3.0,
            split_by: String::new(),
        };
        let drive = |(index, iops): (usize, f64)| DriveFigures {
            path: format!("/mnt/{index}").into(),
            devices: Vec::new(),
            node: None,
            latency: latency.clone(),
            alone: point(iops, 32, 1, 1, 0.2),
            alone_all_threads: point(iops, 32, 4, 1, 0.2),
            id: None,
            adapter: None,
            depths: Vec::new(),
            best_depth: 16,
        };
        let mut threads = vec![point(together * 0.6, 32, 1, 2, 1.0), point(together, 32, 4, 2, cpus_used)];
        super::super::figures::linear(&mut threads, |point| point.threads);
        Figures {
            machine: Machine { cores_allowed: 4, ..Machine::default() },
            drives: alone.into_iter().enumerate().map(drive).collect(),
            costs: Costs {
                system_call_ns: 1.0,
                copy_page_ns: 1.0,
                copy_byte_ns: 1.0,
                cached_read_ns: 1.0,
                page_cache_ns: 1.0,
            },
            depths: vec![point(1e4, 1, 1, 2, 0.1), point(together * 0.6, 32, 1, 2, 1.0)],
            threads,
            drive_counts: vec![point(alone[0], 32, 4, 1, 0.5), point(together, 32, 4, 2, cpus_used)],
            best_depth: 32,
            weights: vec![10, 20],
            ..Figures::default()
        }
    }

    #[test]
    fn the_limit_is_named() {
        let first = |alone, together, cpus| words(&figures(alone, together, cpus)).remove(0);
        let drives = first([4e5, 4e5], 7.5e5, 1.5);
        assert!(drives.starts_with("the drives are the limit: 750k") && drives.contains("94%"), "{drives}");
        let shared = first([4e5, 4e5], 4.1e5, 1.5);
        assert!(shared.starts_with("something that the drives share") && shared.contains("51%"), "{shared}");
        let cpu = first([4e5, 4e5], 7.5e5, 3.9);
        assert!(cpu.starts_with("the 4 threads' processors are the limit: 750k") && cpu.contains("2 drives"), "{cpu}");
    }

    #[test]
    fn others_on_the_processors_are_told_and_not_taken_for_slow_drives() {
        let mut figures = figures([4e5, 4e5], 1.5e5, 1.0);
        assert!(words(&figures)[0].starts_with("something that the drives share"));
        assert!(!words(&figures).join("\n").contains("other programs"));
        let last = figures.drive_counts.last_mut().unwrap();
        (last.cpus_idle, last.cpus_interrupts) = (Some(2.0), Some(1.0));
        assert!(!words(&figures).join("\n").contains("other programs"), "interrupts are the drives' doing");
        figures.drive_counts.last_mut().unwrap().cpus_idle = None;
        let told = words(&figures);
        assert!(
            told[0].starts_with("something that the drives share") && !told[1].contains("other programs"),
            "{told:?}"
        );
        let last = figures.drive_counts.last_mut().unwrap();
        (last.cpus_idle, last.cpus_interrupts) = (Some(0.1), Some(0.0));
        figures.depths.iter_mut().for_each(|point| (point.cpus_used, point.cpus_idle) = (0.5, Some(0.0)));
        let told = words(&figures);
        assert!(told.iter().any(|words| words.contains("and other programs use part of it")), "{told:?}");
        assert!(told[0].starts_with("the 4 threads' processors are the limit"), "{told:?}");
        assert!(told[1].starts_with("other programs") && told[1].contains("2.9 of the 4"), "{told:?}");
    }

    #[test]
    fn an_adapter_that_holds_its_drives_back_is_named() {
        let mut figures = figures([4e5, 4e5], 4.1e5, 1.5);
        let adapter = |name: &str, together, cpus| Adapter {
            name: name.to_owned(),
            drives: vec!["/mnt/0".into(), "/mnt/1".into()],
            alone_iops: 8e5,
            together: point(together, 32, 4, 2, cpus),
        };
        figures.adapters = vec![adapter("wide", 7.9e5, 1.0), adapter("narrow", 4e5, 1.0), adapter("busy", 3e5, 3.9)];
        let told = limit(&figures);
        assert!(
            told.starts_with("the adapter narrow is the limit: its 2 drives do 400k") && told.contains("50%"),
            "{told}"
        );
        figures.adapters.remove(1);
        assert!(limit(&figures).starts_with("something that the drives share"));
    }

    #[test]
    fn the_rest_is_told() {
        let all = words(&figures([2e5, 4e5], 5.5e5, 1.5)).join("\n");
        for part in [
            "one core reads 330k",
            "which keeps it fully busy",
            "with 32 in flight 1 thread reads 330k and 4 read 550k (42% of linear)",
            "takes 80.0 µs; of the 80.0 µs of a typical read the drive takes 90% and the platform 8.00 µs",
            "5.00 µs before the driver",
            "32 in flight",
            "weights 10,20",
            "alone, the drives need 16, 16",
        ] {
            assert!(all.contains(part), "{part} is not in: {all}");
        }
        let mut one_core = figures([2e5, 4e5], 5.5e5, 1.5);
        one_core.threads.truncate(1);
        assert!(words(&one_core)[1].ends_with("each costs 3.03 µs"), "{:?}", words(&one_core));
        let mut even = figures([4e5, 4e5], 5.5e5, 1.5);
        assert!(!words(&even).join("\n").contains("weights"));
        assert!(!words(&even).join("\n").contains("are on one device"));
        even.drives.iter_mut().for_each(|drive| drive.devices.push("sda".into()));
        assert!(words(&even)[1].starts_with("/mnt/0, /mnt/1 are on one device, sda"), "{:?}", words(&even));
    }

    /// Parts of a mean beside a median, or a count in ticks beside a read of a microsecond, would state times that were
    /// never measured.
    #[test]
    fn parts_are_told_with_their_whole_or_not_at_all() {
        let mut figures = figures([4e5, 4e5], 5.5e5, 1.5);
        let latency = &mut figures.drives[1].latency;
        *latency = Latency {
            p50_us: 100.0,
            split_us: 200.0,
            device_us: 50.0,
            platform_us: 150.0,
            split_error_us: Some(10.0),
            submit_us: None,
            complete_us: None,
            ..latency.clone()
        };
        let told = latency_words(&figures);
        assert!(
            told.ends_with("takes 100 µs, 200 µs on average, of which the drive takes 25% and the platform 150 µs"),
            "{told}"
        );
        figures.drives[1].latency.split_error_us = Some(60.0);
        let told = latency_words(&figures);
        assert!(told.ends_with("too coarsely to tell") && !told.contains('%'), "{told}");
    }

    fn latency_words(figures: &Figures) -> String {
        super::latency(figures).unwrap()
    }
}
