//! The four steps of the first paper (SC'13), switched on one after the other. They are evenly spread interrupts,
//! threads bound to CPUs, the noop scheduler, and an I/O thread per drive.
//!
//! Goals: each step adds to the steps before it. The steps take turns as contenders, so that a disturbance of the
//! machine affects all of them. The machine's settings are restored, also after an error or a signal. Non-goals: advice
//! on the settings of a machine, which `iomill tune` gives.
//!
//! The old settings are saved durably before any change. After a kill the next ladder restores them first.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::AtomicBool;

use iomill::sys::cpu;
use iomill::{ArrayOptions, Error, Result};
use iomill_cli::tune::apply::{self, Outcome};
use iomill_cli::tune::finding::Setting;
use iomill_cli::tune::state::Store;
use iomill_platform::drives::{self, Drive};
use iomill_platform::interrupts::{self, Mobility};
use iomill_platform::machine::Machine as Platform;
use iomill_platform::tree::{Tree, chosen};

use crate::arena::{Arena, Shape};
use crate::bench::Stage;
use crate::contender::{Cache, Contender, IOMILL_DRIVE_THREADS, IOMILL_INLINE, Sample, Slice};
use crate::iomill::Iomill;
use crate::machine::Machine;
use crate::report::Report;
use crate::rounds::{self, Plan};
use crate::workload::Workload;

/// The steps, starting with the plain machine.
pub const STEPS: [&str; 5] = [
    "iomill-sc13-plain",
    "iomill-sc13-even-interrupts",
    "iomill-sc13-bound-threads",
    "iomill-sc13-noop-scheduler",
    "iomill-sc13-io-threads",
];

const INTERRUPTS: usize = 1;
const BOUND: usize = 2;
const SCHEDULER: usize = 3;
const IO_THREADS: usize = 4;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The file to measure on.
    pub shape: Shape,
    /// The timed part.
    pub plan: Plan,
    /// How iomill opens the array.
    pub options: ArrayOptions,
}

/// The machine settings that a step switches.
#[derive(Debug, Default)]
struct Switch {
    off: Vec<Setting>,
    on: Vec<Setting>,
    /// The reason why the step switches nothing.
    why_not: Option<String>,
}

/// The machine's switches, and the level up to which they are on. Restores all settings on drop.
struct Rig<'a> {
    tree: &'a Tree,
    store: &'a Store,
    /// The switches by step. Steps that only change iomill's own threads have none.
    switches: Vec<Switch>,
    /// Steps up to this one are on.
    level: Cell<usize>,
}

/// Measures on `arena`, and leaves neither a file nor a changed setting behind.
pub fn run(
    arena: Arena,
    settings: &Settings,
    tree: &Tree,
    state: &Path,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    let store = Store::open(state)?;
    // Restores settings that a killed ladder left.
    put_back(tree, &store)?;
    arena.measured(|arena| {
        let result = measure(arena, settings, tree, &store, cancel, stage);
        let restored = put_back(tree, &store);
        result.and_then(|report| restored.map(|()| report))
    })
}

fn put_back(tree: &Tree, store: &Store) -> Result<()> {
    match apply::undo(tree, store)? {
        Some(undone) if !undone.failed.is_empty() => {
            let why = format!(
                "{}; run `iomill tune --undo --state {}` to try again",
                undone.failed.join("; "),
                store.path().display()
            );
            Err(Error::Tool { what: "restoring the machine's settings".into(), why })
        }
        _ => Ok(()),
    }
}

fn measure(
    arena: &mut Arena,
    settings: &Settings,
    tree: &Tree,
    store: &Store,
    cancel: &AtomicBool,
    stage: &mut dyn FnMut(Stage),
) -> Result<Report> {
    arena.fill(&settings.shape, cancel, &mut |done, total| stage(Stage::Filling(done, total)))?;
    let target = arena.target()?;
    let platform = Platform::look(tree);
    let paths: Vec<_> = target.parts().iter().map(|part| part.path.clone()).collect();
    // A file system in memory has no drives to switch.
    let (drives, why) = match drives::under(tree, &platform, &paths) {
        Ok(drives) => (drives, None),
        Err(error) => (Vec::new(), Some(error.to_string())),
    };
    let rig = Rc::new(Rig::new(tree, store, &platform, &drives, why)?);
    let cpus =
        cpu::allowed().map_err(|e| Error::Tool { what: "the CPUs of this process".into(), why: e.to_string() })?;
    let mut contenders: Vec<Box<dyn Contender + '_>> = Vec::new();
    for (level, &name) in STEPS.iter().enumerate() {
        let way = if level >= IO_THREADS { IOMILL_DRIVE_THREADS } else { IOMILL_INLINE };
        let inner = Iomill::new(way, arena, &settings.options)?;
        let inner = if level >= BOUND { inner.bound(cpus.clone()) } else { inner };
        contenders.push(Box::new(Step { name, level, inner, rig: Rc::clone(&rig) }));
    }
    let measured = rounds::run(&mut contenders, &settings.plan, &mut |at| stage(Stage::Measuring(at)), cancel)?;
    Ok(Report::new(Machine::look(target.parts()), &[measured]))
}

impl<'a> Rig<'a> {
    /// Switches off everything that can be switched, after saving the old settings.
    fn new(
        tree: &'a Tree,
        store: &'a Store,
        platform: &Platform,
        drives: &[Drive],
        why: Option<String>,
    ) -> Result<Rig<'a>> {
        let mut switches: Vec<Switch> = STEPS.iter().map(|_| Switch::default()).collect();
        for (step, mut switch) in [(INTERRUPTS, spread(tree, platform, drives)), (SCHEDULER, scheduler(tree, drives))] {
            if let Some(why) = &why {
                switch.why_not = Some(why.clone());
            }
            let denied =
                switch.off.iter().find_map(|setting| tree.check_writable(&setting.path).err().map(|e| (setting, e)));
            if let Some((setting, error)) = denied {
                let why = format!("/{} cannot be set: {error}; run as root", setting.path);
                switch = Switch { why_not: Some(why), ..Switch::default() };
            }
            let changes = apply::apply(tree, &switch.off, store)?;
            let refused: Vec<usize> =
                (0..changes.len()).filter(|&index| changes[index].outcome != Outcome::Set).collect();
            if let (Some(&first), true) = (refused.first(), refused.len() == changes.len()) {
                let why = match &changes[first].outcome {
                    Outcome::Refused(why) => format!("{}: {why}", changes[first].path),
                    Outcome::Set => String::new(),
                };
                switch = Switch { why_not: Some(why), ..Switch::default() };
            }
            for &index in refused.iter().rev().filter(|_| switch.why_not.is_none()) {
                switch.off.remove(index);
                switch.on.remove(index);
            }
            switches[step] = switch;
        }
        Ok(Rig { tree, store, switches, level: Cell::new(0) })
    }

    /// Switches on the settings of all steps up to `level`, and switches off those of the steps above it.
    fn climb(&self, level: usize) -> Result<()> {
        if self.level.get() == level {
            return Ok(());
        }
        for (step, switch) in self.switches.iter().enumerate() {
            for setting in if step <= level { &switch.on } else { &switch.off } {
                self.tree
                    .write(&setting.path, &setting.value)
                    .map_err(|e| Error::io("set", format!("/{}", setting.path), e))?;
            }
        }
        self.level.set(level);
        Ok(())
    }
}

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        // `run` also restores, and reports errors. The drop is for a panic.
        let _ = put_back(self.tree, self.store);
    }
}

/// Switched off: all movable interrupts are on one CPU. Switched on: they are spread in turn over the CPUs near their
/// drive.
fn spread(tree: &Tree, platform: &Platform, drives: &[Drive]) -> Switch {
    let mut switch = Switch::default();
    let mut managed = 0;
    for drive in drives {
        let near = if drive.near.is_empty() { &platform.online } else { &drive.near };
        let Some(first) = platform.online.first() else { continue };
        let found = interrupts::of(tree, drive);
        managed += found.iter().filter(|one| one.mobility == Mobility::Managed).count();
        for one in found.iter().filter(|one| one.mobility != Mobility::Managed) {
            if switch.off.iter().any(|setting| setting.path == one.path()) {
                continue;
            }
            let target = near[switch.off.len() % near.len()];
            switch.off.push(Setting { path: one.path(), value: first.to_string() });
            switch.on.push(Setting { path: one.path(), value: target.to_string() });
        }
    }
    if switch.off == switch.on {
        let why = match (managed, switch.off.len()) {
            (0, 0) => "the drives have no visible interrupts".to_owned(),
            (managed, 0) => {
                format!("all {managed} interrupts are managed: the kernel has spread them and refuses to move them")
            }
            (_, some) => format!("there is nothing to spread: {some} movable interrupts, all for the same CPU"),
        };
        switch = Switch { why_not: Some(why), ..Switch::default() };
    }
    switch
}

/// Switched off: a scheduler that orders requests. Switched on: no scheduler.
fn scheduler(tree: &Tree, drives: &[Drive]) -> Switch {
    let mut switch = Switch::default();
    for queue in drives.iter().flat_map(|drive| &drive.queues) {
        let path = format!("{queue}/queue/scheduler");
        let Some(text) = tree.get(&path) else { continue };
        let offered: Vec<&str> = text.split_whitespace().map(|word| word.trim_matches(['[', ']'])).collect();
        let none = ["none", "noop"].into_iter().find(|name| offered.contains(name));
        let some = ["mq-deadline", "deadline", "kyber", "bfq"].into_iter().find(|name| offered.contains(name));
        if let (Some(none), Some(some)) = (none, some) {
            switch.off.push(Setting { path: path.clone(), value: some.to_owned() });
            switch.on.push(Setting { path, value: none.to_owned() });
        } else {
            switch.why_not = Some(format!("the kernel offers no choice of schedulers: {}", chosen(&text)));
        }
    }
    if switch.off.is_empty() && switch.why_not.is_none() {
        switch.why_not = Some("the drives' queues have no scheduler".to_owned());
    }
    if !switch.off.is_empty() {
        switch.why_not = None;
    }
    switch
}

/// iomill on a machine with some of the steps switched on.
struct Step<'a> {
    name: &'static str,
    level: usize,
    inner: Iomill,
    rig: Rc<Rig<'a>>,
}

impl Contender for Step<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cache(&self) -> Cache {
        self.inner.cache()
    }

    fn prepare(&mut self, workload: &Workload) -> Result<Option<String>> {
        if let Some(why) = &self.rig.switches[self.level].why_not {
            return Ok(Some(why.clone()));
        }
        self.inner.prepare(workload)
    }

    fn run(&mut self, slice: &Slice<'_>) -> Result<Sample> {
        self.rig.climb(self.level)?;
        self.inner.run(slice)
    }
}
